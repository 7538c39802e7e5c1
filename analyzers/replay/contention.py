"""Compute is slower while communication runs beside it: how much, as the trace shows, and what that makes of a change.

On a CPU the threads that communicate take cores from the training thread; on a GPU collectives take multiprocessors
and memory bandwidth from kernels. The slowdown s is estimated from operations that a rank repeats in each step: one that
takes b ns alone takes b·(1 + s·w) where a share w of its work was done beside a transfer. That an operation is as large
in each step tells b apart from s (a regression with fixed effects: Wooldridge, Econometric Analysis of Cross Section and
Panel Data, chapter 10); the error of s is that of leaving out one step at a time (jackknife).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.lanes import LaneView
from analyzers.replay.engine import Replayed, replay
from analyzers.replay.graph import Graph, Node
from analyzers.replay.window import Window
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.schema import Kind
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.trace.trace import Trace

LEAST_STEPS = 3
"""Steps of a rank with the same operations: of fewer, a slow one is not told from the rule."""
SIGNIFICANT = 1.0
"""Standard errors by which a slowdown must exceed 0: else there is none."""
ROUNDS = 3
"""Replays of a change: compute takes longer or shorter, which moves what it runs beside. The third moves little."""
FITS = 20
"""Turns between the times alone and the slowdown; they settle within ten."""


@dataclass(frozen=True)
class Repeated:
    """Compute that a rank repeats: `start` and `end` in ns on its own clock, each of shape (steps, operations)."""

    start: Times
    end: Times

    def shifted(self, by: int) -> Repeated:
        """On a clock that tells `by` ns more."""
        return Repeated(self.start + by, self.end + by)


@dataclass(frozen=True)
class Slowdown:
    """Compute takes 1 + `factor` times as long while a transfer of its rank is in flight; `error` is a standard one."""

    factor: float
    error: float
    operations: int
    """It was measured on."""

    @property
    def told(self) -> bool:
        """Whether it is more than chance."""
        return self.factor > SIGNIFICANT * self.error

    def text(self) -> str:
        """What a prediction rests on."""
        return (
            f"compute taken {self.factor:.0%} (± {self.error:.0%}) slower while transfers are in flight, "
            f"as {self.operations:,} operations were"
        )


NONE = Slowdown(0.0, 0.0, 0)


def repeated(trace: Trace, view: LaneView, window: Window) -> Repeated | None:
    """The compute of the replayed steps that most often have the same operations; None if fewer than `LEAST_STEPS`."""
    device = trace["device_events"]
    rows = view.rows[device["kind"][view.rows] == Kind.COMPUTE]
    start = device["start"][rows]
    steps = [
        rows[low:high]
        for low, high in (np.searchsorted(start, [step.start, step.end]).tolist() for step in window.steps)
    ]
    names = [device["name"][own].tobytes() for own in steps]
    (most, times) = Counter(names).most_common(1)[0]
    if times < LEAST_STEPS or not most:
        return None
    alike = np.stack([own for own, name in zip(steps, names, strict=True) if name == most])
    return Repeated(device["start"][alike], device["end"][alike])


def in_flight(graph: Graph, rank: int, found: Replayed | None = None) -> Spans:
    """When a rank's transfers ran, as measured or as replayed.

    A thread that waits for another rank takes no core; a kernel that does keeps its multiprocessors.
    """
    nodes = graph.nodes
    end = nodes["end"] if found is None else found.end
    start = end - nodes["dur"]
    own = (nodes["rank"] == rank) & (nodes["work"] == Kind.COMMUNICATION)
    if bool((graph.of(Node.DEVICE) & (nodes["work"] == Kind.COMPUTE)).any()):
        arrived = nodes["start"] if found is None else found.start
        spinning = own & graph.of(Node.ARRIVAL)
        since = dict(zip(nodes["call"][spinning].tolist(), arrived[spinning].tolist(), strict=True))
        start = np.array([since.get(call, at) for call, at in zip(nodes["call"].tolist(), start.tolist(), strict=True)])
    own &= graph.of(Node.TRANSFER, Node.DEVICE)
    return union(start[own], end[own])


def slowdown(graph: Graph, work: Mapping[int, Repeated]) -> Slowdown:
    """One for all ranks, `work` (on the graph's clock) by rank; `NONE` where the trace tells none."""
    shares, times = [], []
    for rank, own in work.items():
        took = (own.end - own.start).astype(np.float64)
        beside = measure_within(in_flight(graph, rank), own.start.ravel(), own.end.ravel()).reshape(took.shape)
        shares.append(beside / np.maximum(took, 1))
        times.append(took)
    factor = _fit(shares, times)
    if factor <= 0:
        return NONE
    without = [
        _fit(
            [np.delete(own, step, 0) if place == which else own for place, own in enumerate(shares)],
            [np.delete(own, step, 0) if place == which else own for place, own in enumerate(times)],
        )
        for which, own in enumerate(times)
        for step in range(len(own))
    ]
    spread = float(np.sqrt((len(without) - 1) * np.var(without)))
    found = Slowdown(factor, spread, sum(own.size for own in times))
    return found if found.told else NONE


def _fit(shares: Sequence[Array], times: Sequence[Array]) -> float:
    """Least squares of time = b·(1 + s·w), b by operation; s of all ranks together, 0 where shares do not vary."""
    factor = 0.0
    for _ in range(FITS):
        above = below = 0.0
        for share, took in zip(shares, times, strict=True):
            work = _of_work(share, factor)
            slowed = work * (took / (1 + factor * work)).mean(0)
            slowed = slowed - slowed.mean(0)
            above += float((slowed * (took - took.mean(0))).sum())
            below += float((slowed**2).sum())
        if below <= 0:
            return 0.0
        factor = max(0.0, above / below)
    return factor


def _of_work(share: Array, factor: float) -> Array:
    """The share of work that was done in a share of the time, in which it went 1 + `factor` times as slowly."""
    return np.asarray(share / (1 + factor * (1 - share)))


class Contended:
    """Replays changes of a graph with compute as much slower as it then runs beside transfers."""

    def __init__(self, graph: Graph, found: Slowdown) -> None:
        self.found = found
        self._size = len(graph)
        self._before = self._shares(graph, replay(graph)) if found.told else np.zeros(0)

    def replay(self, graph: Graph, bias: int = 0) -> tuple[Graph, Replayed]:
        """A graph made from the one given, its compute slowed; `bias` moves the slowdown by its standard error."""
        done = replay(graph)
        if not self.found.told:
            return graph, done
        factor = max(0.0, self.found.factor + bias * self.found.error)
        compute = _compute(graph)
        before = np.zeros(len(graph))
        before[: self._size] = _of_work(self._before, factor)
        changed = graph
        for _ in range(ROUNDS - 1):
            ratio = (1 + factor * _of_work(self._shares(changed, done), factor)) / (1 + factor * before)
            dur = graph.nodes["dur"] + np.rint(compute * (ratio - 1)).astype(np.int64)
            changed = graph.with_nodes(dur=np.maximum(dur, 0))
            done = replay(changed)
        return changed, done

    def _shares(self, graph: Graph, done: Replayed) -> Array:
        """Of each node's time the share beside its rank's transfers."""
        found = np.zeros(len(graph))
        own = _compute(graph) > 0
        for rank in graph.ranks:
            mine = np.flatnonzero(own & (graph.nodes["rank"] == rank))
            start, end = done.start[mine], done.end[mine]
            beside = measure_within(in_flight(graph, rank, done), start, end)
            found[mine] = beside / np.maximum(end - start, 1)
        return found


def _compute(graph: Graph) -> Times:
    """ns per node that are compute: of a kernel all, of a training thread's segment what its operators took."""
    kernel: Mask = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    dur = graph.nodes["dur"]
    return np.where(kernel, dur, np.where(graph.of(Node.HOST), np.minimum(graph.nodes["compute"], dur), 0))
