"""On a CPU compute is slower while communication runs beside it: its threads take cores from the training thread.

How much slower follows from the recorder, which counts how long the training thread waited for a core
(`analyzers/facts/core_waits.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.replay.engine import Replayed, replay
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.intervals import measure_within, union
from gpuscope.when_used import dataclass
from gpuscope.words import units

ROUNDS = 3
"""Replays of a change: compute takes longer or shorter, which moves what it runs beside. The third moves little."""
MOST = 3.0
"""Slowdown at most: a rank computes on one thread, and gloo carries out its collectives on three (two of its own and
the loop that they share)."""


@dataclass(frozen=True)
class Slowdown:
    """Compute takes 1 + `factor` times as long beside a collective of its rank; `error` is a standard one."""

    factor: float
    error: float
    waited: int
    """ns without a core in all, from which it is estimated."""

    @property
    def significant(self) -> bool:
        """Whether it is more than its own error."""
        return self.factor > self.error

    def text(self) -> str:
        """What a prediction rests on."""
        return (
            f"compute {units.whole_share(self.factor)} (± {units.whole_share(self.error)}) slower beside collectives, "
            f"because the training thread waited {units.duration(self.waited)} in all for a core"
        )


NONE = Slowdown(0.0, 0.0, 0)


def slowdown(graph: Graph, done: Replayed, waits: Mapping[int, Sequence[int]]) -> Slowdown:
    """From what training threads waited for cores (ns per replayed step, by rank), all of it attributed to collectives.

    `done` is the graph's own replay. A thread that computed for C ns beside collectives and waited for W of them would
    have taken C − W alone. `NONE` beyond `MOST`: then others than its own collectives held the cores. The error is the
    jackknife's, leaving out a step of a rank at a time.
    """
    waited: list[int] = []
    beside: list[int] = []
    found, nodes = _beside(graph, done), graph.nodes
    for rank, own in waits.items():
        waited += own
        mine = nodes["rank"] == rank
        beside += [int(found[mine & (nodes["step"] == step)].sum()) for step in range(len(own))]
    both = np.array([waited, beside], np.float64)
    without = [_factor(*np.delete(both, step, 1).sum(1)) for step in range(both.shape[1])]
    if len(without) < 2 or not np.isfinite(without).all() or (factor := _factor(*both.sum(1))) > MOST:
        return NONE
    error = float(np.sqrt((len(without) - 1) * np.var(without)))
    estimate = Slowdown(factor, error, sum(waited))
    return estimate if estimate.significant else NONE


def _factor(waited: float, beside: float) -> float:
    return float(waited / (beside - waited)) if beside > waited else np.inf


class Contended:
    """Replays changes of a graph with compute as much slower as it then runs beside collectives."""

    def __init__(self, graph: Graph, done: Replayed, found: Slowdown) -> None:
        self.found = found
        self._before = _shares(graph, done)

    def replay(self, graph: Graph, bias: int = 0) -> tuple[Graph, Replayed]:
        """A graph made from the one given, its compute slowed; `bias` moves the slowdown by its standard error."""
        done = replay(graph)
        if not self.found.significant:
            return graph, done
        factor = max(0.0, self.found.factor + bias * self.found.error)
        compute = _compute(graph)
        before = np.zeros(len(graph))
        before[: len(self._before)] = _of_work(self._before, factor)
        changed = graph
        for _ in range(ROUNDS - 1):
            ratio = (1 + factor * _of_work(_shares(changed, done), factor)) / (1 + factor * before)
            dur = graph.nodes["dur"] + np.rint(compute * (ratio - 1)).astype(np.int64)
            changed = graph.with_nodes(dur=np.maximum(dur, 0))
            done = replay(changed)
        return changed, done


def _of_work(share: Array, factor: float) -> Array:
    """The share of work that was done in a share of the time, in which it went 1 + `factor` times as slowly."""
    return np.asarray(share / (1 + factor * (1 - share)))


def _shares(graph: Graph, done: Replayed) -> Array:
    """Of each node's compute the share beside its rank's collectives."""
    return np.asarray(_beside(graph, done) / np.maximum(_compute(graph), 1))


def _beside(graph: Graph, done: Replayed) -> Array:
    """Of each node's compute the ns beside its rank's collectives: from the rank's arrival to the collective's end, for
    gloo's threads work for other ranks' parts too."""
    found = np.zeros(len(graph))
    compute, rank_of = _compute(graph), graph.nodes["rank"]
    arrival, transfer = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
    for rank in graph.ranks:
        own = rank_of[arrival] == rank
        in_flight = union(done.start[arrival[own]], done.end[transfer[own]])
        mine = np.flatnonzero((compute > 0) & (rank_of == rank))
        start, end = done.start[mine], done.end[mine]
        found[mine] = compute[mine] * measure_within(in_flight, start, end) / np.maximum(end - start, 1)
    return found


def _compute(graph: Graph) -> Times:
    """ns of each stretch of a training thread in operators."""
    return np.where(graph.of(Node.HOST), np.minimum(graph.nodes["compute"], graph.nodes["dur"]), 0)
