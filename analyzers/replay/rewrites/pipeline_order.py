"""A pipeline's computations in another order, cut smaller, or as long on all stages, on the hosts and devices that ran
them.

With a computation moves what is launched for it: kernels, the receives before it, the sends behind it, and the host's
time to launch them. So hosts, streams, messages that share a link and kernels beside them are replayed as elsewhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.changes import EvenStages, MicroBatches, PipelineChange, Schedule
from gpuscope.analyzers.facts.pipeline_facts.flushes import Flush
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.pipelines.message_times import message_time
from gpuscope.analyzers.pipelines.schedules import recognise, schedule_order
from gpuscope.analyzers.replay.engine import CircleError, replay
from gpuscope.analyzers.replay.graph import EDGE_COLUMNS, NONE, QUEUE, Edge, EdgeRow, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Setting
from gpuscope.analyzers.replay.rewrites.micro_batches import Sizes, cut
from gpuscope.analyzers.replay.rewrites.pipeline_blocks import Blocks, blocks
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.schema import NA, Kind

REORDERED: tuple[PipelineChange, ...] = (Schedule("gpipe"), Schedule("1f1b"), EvenStages())
"""Changes that need no other computations than those recorded."""


def moved(
    graph: Graph,
    changes: Sequence[PipelineChange],
    facts: RunFacts,
    numbers: Sequence[int],
    counted: Mask,
    setting: Setting,
) -> Graph | None:
    """The graph with these changes; None where it can't hold them. `numbers` are those of the replayed steps."""
    if facts.stages is None or not all(change in REORDERED or isinstance(change, MicroBatches) for change in changes):
        return None
    try:
        flushes = facts.flushes[0]
        found = blocks(graph, flushes, facts.stages, numbers)
        if len(found.stages) < counted.sum() * len(graph.ranks):
            return None
        for change in changes:
            if isinstance(change, MicroBatches):
                graph, found = cut(graph, found, change, _sizes(facts, flushes[0], change, setting))
                graph = reordered(graph, found, recognise(flushes[0]).name)
            else:
                graph = reordered(graph, found, change.name) if isinstance(change, Schedule) else evened(graph, found)
        replay(graph)
    except (UnreplayableError, CircleError):
        return None
    return graph


def _sizes(facts: RunFacts, flush: Flush, change: MicroBatches, setting: Setting) -> Sizes:
    scale = flush.micro_batches / max(1, change.count) if change.keep_batch else 1.0
    sent = message_time(facts, setting.gpu)
    shorter = sent.shorter(scale, setting.bias) / sent.transfer if sent is not None else 0.0
    return Sizes(scale, 1 - shorter, setting.bias)


def evened(graph: Graph, found: Blocks) -> Graph:
    """Kernels of each stage as much longer or shorter as its computations of a kind are than those of all stages."""
    kinds = [one.kind for stage in found.stages for one in stage.own]
    kernels = np.flatnonzero((found.of != NONE) & graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE))
    code = {kind: place for place, kind in enumerate(sorted(set(kinds)))}
    kind = np.array([code[kinds[number]] for number in found.of[kernels].tolist()], np.int64)
    rank = np.searchsorted(graph.ranks, graph.nodes["rank"][kernels])
    total = np.zeros((len(graph.ranks), len(code)))
    np.add.at(total, (rank, kind), graph.nodes["dur"][kernels])
    dur = graph.nodes["dur"].copy()
    factor = total.mean(axis=0) / np.maximum(total, 1)
    dur[kernels] = np.rint(dur[kernels] * factor[rank, kind]).astype(np.int64)
    return graph.with_nodes(dur=dur)


def reordered(graph: Graph, found: Blocks, name: str) -> Graph:
    """The computations in the order of a schedule. Raises `UnreplayableError`."""
    place = _places(found, name)
    moved = (found.of != NONE) & (place[found.of] != np.arange(len(place))[found.of])
    if bool((moved & (graph.nodes["release"] != NA)).any()):
        raise UnreplayableError("the launches of some computations are not recorded")
    chains = _Chains(graph, found, place)
    src, dst, why = (graph.edges[name] for name in ("src", "dst", "why"))
    crossing = (found.of[src] != found.of[dst]) & np.isin(why, (Edge.PROGRAM, Edge.STREAM, Edge.EVENT, Edge.SYNC))
    rows = zip(*(graph.edges[name][crossing].tolist() for name in EDGE_COLUMNS), strict=True)
    return graph.keep_edges(~crossing).add([], [*chains.edges(rows)])


def _places(found: Blocks, name: str) -> Times:
    """Per computation its place in the new order: those of a stage take the numbers of each other."""
    place: list[int] = []
    for stage in found.stages:
        chunks, kinds = {one.model_chunk for one in stage.own}, [one.kind for one in stage.own]
        if len(chunks) > 1 or set(kinds) != {"F", "B"}:
            raise UnreplayableError("only forwards and backwards of one chunk per stage are put into another order")
        own = {kind: iter([at for at, each in enumerate(kinds) if each == kind]) for kind in "FB"}
        order = schedule_order(name, stage.stage, stage.stages, kinds.count("F"), 1)
        new = [next(own[kind]) for kind, _ in order]
        place += (stage.first + np.argsort(new)).tolist()
    return np.array(place, np.int64)


class _Chains:
    """The computations on each host and stream, in their new order."""

    def __init__(self, graph: Graph, found: Blocks, place: Times) -> None:
        self._graph, self._of, self._place = graph, found.of, place
        self._stage = np.repeat(np.arange(len(found.stages)), [len(stage.own) for stage in found.stages])
        self._ends: dict[tuple[int, int], tuple[int, int]] = {}
        """First and last node of a computation on a stream."""
        self._on: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Computations of a stage on a stream (-1: the host)."""
        for node in np.flatnonzero(found.of != NONE).tolist():  # in the order of each host and stream
            number, lane = int(found.of[node]), int(graph.nodes["lane"][node])
            first, _ = self._ends.get((number, lane), (node, node))
            self._ends[number, lane] = first, node
        for number, lane in self._ends:
            self._on[int(self._stage[number]), lane].append(number)
        for own in self._on.values():
            own.sort(key=lambda number: int(place[number]))

    def edges(self, crossing: Iterable[EdgeRow]) -> Iterator[EdgeRow]:
        """In place of those that lead from one computation to another, into the first or out of the last one."""
        into: dict[tuple[int, int], EdgeRow] = {}
        for row in crossing:
            src, dst, lag, why = row
            if why in (Edge.PROGRAM, Edge.STREAM):
                number, lane = int(self._of[dst]), int(self._graph.nodes["lane"][dst])
                if number != NONE and (number, lane) in into:
                    raise UnreplayableError("computations of a stage are launched in turns")
                if number != NONE:
                    into[number, lane] = row
                if self._leaves(src, dst):
                    yield self._last(src), dst, lag, why
            elif (source := self._waited_for(src, dst)) is not None:
                yield source, dst, lag, why
        for (_, lane), own in self._on.items():
            entry = next((into[number, lane] for number in own if self._enters(into.get((number, lane)))), None)
            if entry is not None:
                yield entry[0], self._ends[own[0], lane][0], entry[2], entry[3]
            for before, number in pairwise(own):
                _, _, lag, why = into.get((number, lane)) or entry or (0, 0, 0, Edge.STREAM)
                yield self._ends[before, lane][1], self._ends[number, lane][0], lag, why

    def _same_stage(self, src: int, dst: int) -> bool:
        ends = self._of[src], self._of[dst]
        return NONE not in ends and bool(self._stage[ends[0]] == self._stage[ends[1]])

    def _leaves(self, src: int, dst: int) -> bool:
        return bool(self._of[src] != NONE) and not self._same_stage(src, dst)

    def _enters(self, row: EdgeRow | None) -> bool:
        return row is not None and not self._same_stage(row[0], row[1])

    def _last(self, node: int) -> int:
        """The last node of its stage on its stream."""
        lane = int(self._graph.nodes["lane"][node])
        return self._ends[self._on[int(self._stage[self._of[node]]), lane][-1], lane][1]

    def _waited_for(self, src: int, dst: int) -> int | None:
        """What stands where `src` stood for who waited for its stream; None where nothing does."""
        label = int(self._graph.nodes["label"][dst])
        if self._of[src] == NONE or (label != NONE and self._graph.labels[label] == QUEUE):
            return src
        if self._leaves(src, dst):
            return self._last(src)
        call = int(self._graph.nodes["call"][src])
        if self._graph.inferred and call != NONE and self._graph.calls[call].op == "send":
            return None  # inferred from the order in which computations were
        lane, place = int(self._graph.nodes["lane"][src]), self._place[self._of[dst]]
        before = [number for number in self._on[int(self._stage[self._of[src]]), lane] if self._place[number] < place]
        return self._ends[before[-1], lane][1] if before else None
