"""When a pipeline's computations run in a replay: what another layout of them begins with."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts.flushes import Computation, Flush
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap
from gpuscope.analyzers.replay.engine import Replayed
from gpuscope.analyzers.replay.graph import Graph, Node, UnreplayableError
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import Kind


class _Moved:
    """Instants of one rank's recording as a replay has them."""

    def __init__(self, graph: Graph, done: Replayed, rank: int) -> None:
        mine = graph.nodes["rank"] == rank
        computing = np.flatnonzero(mine & graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE))
        if not len(computing):  # the training thread is the device
            computing = np.flatnonzero(mine & graph.of(Node.HOST, Node.WAIT))
        own = computing[np.argsort(graph.nodes["start"][computing], kind="stable")]
        self._start, self._end = graph.nodes["start"][own], graph.nodes["end"][own]
        self._new_start, self._new_end = done.start[own], done.end[own]

    def at(self, times: Times, side: str) -> Times:
        """In a node by its share of it, behind one as long after it. `side`: `right` for what begins, `left` for what
        ends, for at an instant one node may end and the next begin."""
        if not len(self._start):
            return times
        place = np.maximum(np.searchsorted(self._start, times, side) - 1, 0)  # type: ignore[call-overload]
        start, end = self._start[place], self._end[place]
        new_start, new_end = self._new_start[place], self._new_end[place]
        share = np.clip((times - start) / np.maximum(end - start, 1), 0.0, 1.0)
        inside = new_start + np.rint(share * (new_end - new_start)).astype(np.int64)
        return np.asarray(inside + np.maximum(times - end, 0) + np.minimum(times - start, 0))


def as_replayed(
    graph: Graph, done: Replayed, flushes: Sequence[Flush], stages: StageMap, steps: Collection[int]
) -> tuple[Flush, ...]:
    """The flushes of these steps at the times of a replay. Raises `UnreplayableError` where there are none."""
    rank_of = {place: rank for rank, place in stages.places.items()}
    moved = {rank: _Moved(graph, done, rank) for rank in graph.ranks}
    found: list[Flush] = []
    for flush in flushes:
        ranks = [rank_of.get((flush.pipeline, stage)) for stage in range(len(flush.stages))]
        if flush.step in steps and all(rank in moved for rank in ranks):
            own = (_stage(moved[rank], one) for rank, one in zip(ranks, flush.stages, strict=True) if rank is not None)
            found.append(replace(flush, stages=tuple(own)))
    if not found:
        raise UnreplayableError("the replayed steps hold no whole pipeline: a change of it can be predicted alone only")
    return tuple(found)


def _stage(moved: _Moved, own: Sequence[Computation]) -> tuple[Computation, ...]:
    start = moved.at(np.array([one.start for one in own], np.int64), "right").tolist()
    end = moved.at(np.array([one.end for one in own], np.int64), "left").tolist()
    return tuple(
        replace(one, start=begin, end=max(begin, until)) for one, begin, until in zip(own, start, end, strict=True)
    )
