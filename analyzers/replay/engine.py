"""When everything happens: each node starts as soon as all it waits for has ended.

The longest path through the graph, O(nodes + edges).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import hypot
from typing import Literal

import numpy as np

from gpuscope import native
from gpuscope.analyzers.facts.pipeline_facts import Computation, Flush, StageMap
from gpuscope.analyzers.replay.graph import Graph, Node, Trait, UnreplayableError
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.analyzers.what_if_changes import EvenStages, MicroBatches, PipelineChange
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Mask, Times, distinct_values
from gpuscope.welch import middle, quantile, student
from gpuscope.when_used import dataclass

# Steps that begin with a copy on a stream of its own: by the kernels behind it, since copies may run steps ahead.


def paced_by_kernels(graph: Graph) -> Graph:
    """The graph with each mark that is such a copy moved to the first operation of its step on a stream of kernels."""
    nodes, device = graph.nodes, graph.of(Node.DEVICE)
    copies = device & (nodes["work"] == Kind.MEMORY) & ~beside_kernels(graph)
    if not any(copies[own].any() for own in graph.marks.values()):
        return graph
    behind = np.flatnonzero(device & beside_kernels(graph))
    behind = behind[np.argsort(nodes["start"][behind], kind="stable")]
    first: dict[tuple[int, int], int] = {}
    for node, rank, step in zip(
        behind.tolist(), nodes["rank"][behind].tolist(), nodes["step"][behind].tolist(), strict=True
    ):
        first.setdefault((rank, step), node)
    marks = {
        rank: np.array(
            [first.get((rank, int(nodes["step"][node])), node) if copies[node] else node for node in own.tolist()],
            np.int64,
        )
        for rank, own in graph.marks.items()
    }
    return replace(graph, marks=marks)


def beside_kernels(graph: Graph) -> Mask:
    """Which nodes are on a stream that runs kernels."""
    lane = graph.nodes["rank"] * (int(graph.nodes["lane"].max(initial=0)) + 2) + graph.nodes["lane"]
    kernels = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    return np.asarray(np.isin(lane, distinct_values(lane[kernels])))


class CircleError(Exception):
    """Nodes wait for each other in a circle."""


@dataclass(frozen=True)
class Replayed:
    """ns per node, on the run's clock."""

    start: Times
    end: Times

    def steps(self, graph: Graph) -> dict[int, Times]:
        """ns of each replayed step, by rank."""
        return {rank: np.diff(self.start[marks]) for rank, marks in graph.marks.items()}


def replay(graph: Graph) -> Replayed:
    """Start and end of every node. Raises `CircleError`."""
    release = graph.nodes["release"]
    # What has no release begins with the earliest that has one: nothing replayed is older.
    known = release[release != NA]
    earliest = np.where(release == NA, int(known.min()) if len(known) else 0, release)
    edges = graph.edges["src"], graph.edges["dst"], graph.edges["lag"]
    start, end, done = native.longest_path(*edges, graph.nodes["dur"], earliest)
    if done != len(graph):
        raise CircleError(f"{len(graph) - done} operations wait for each other in a circle")
    return Replayed(start, end)


# When a pipeline's computations run in a replay: what another layout of them begins with.


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


# The critical path of a recording: the chain of operations, each of which the next one waited for, that ends last.

On = Literal["host", "device", "communication"]


@dataclass(frozen=True)
class PathSpan:
    """A stretch of the path on one rank, from where the one before it ends; as recorded, ns on the rank's own clock."""

    rank: int
    start: int
    end: int
    on: On


def critical_path(graph: Graph, done: Replayed, offset: Mapping[int, int]) -> list[PathSpan]:
    """In order of time, neighbours of one kind on one rank as one; `offset` is what a rank's clock shows beyond the
    graph's. What begins when it is released, not when something before it ends, begins the path."""
    ends = [int(marks[-1]) for marks in graph.marks.values() if len(marks)]
    if not ends:
        return []
    source, target, lag = (graph.edges[name] for name in ("src", "dst", "lag"))
    tight = np.flatnonzero(done.end[source] + lag == done.start[target])
    tight = tight[np.argsort(target[tight], kind="stable")]
    first = np.searchsorted(target[tight], np.arange(len(graph) + 1))
    node, path = max(ends, key=lambda one: int(done.start[one])), []
    while True:
        path.append(node)
        if first[node] == first[node + 1]:
            break
        # Of several that end at once the one that took longest: marks and joins take no time.
        before = source[tight[first[node] : first[node + 1]]]
        node = int(before[np.argmax(done.end[before] - done.start[before])])
    return _spans(graph, path[::-1], offset)


def _spans(graph: Graph, path: list[int], offset: Mapping[int, int]) -> list[PathSpan]:
    nodes, found, reached = graph.nodes, list[PathSpan](), -(1 << 62)
    for node in path:
        start, end, rank = (int(nodes[name][node]) for name in ("start", "end", "rank"))
        if start == NA or end <= max(start, reached):
            continue
        start, reached = max(start, reached), end  # what waits has begun before what it waits for ends
        on, by = _on(int(nodes["kind"][node]), int(nodes["work"][node])), offset.get(rank, 0)
        last = found[-1] if found else None
        if last is not None and (last.rank, last.on) == (rank, on):
            found[-1] = PathSpan(rank, last.start, max(end + by, last.end), on)
        else:
            found.append(PathSpan(rank, start + by, end + by, on))
    return found


def _on(kind: int, work: int) -> On:
    if kind in (Node.HOST, Node.WAIT):
        return "host"
    return "device" if kind == Node.DEVICE and work != Kind.COMMUNICATION else "communication"


# The range of a prediction from the sources of its error.

_MISSED = 0.05
"""Probability on either side of a range that holds nine times in ten."""

MODEL_ERROR = 0.03
"""Of a change's effect on the step, what its prediction may miss beside what is known to be uncertain, on a CPU."""


def bounds(cases: Sequence[float], errors: Sequence[float], margin: float = 0.0) -> tuple[int, int]:
    """Where the step lies nine times in ten, ns, of a predicted one.

    `cases` are the steps as expected, and where what is assumed turns out well and badly: the truth may be at any.
    `errors` are how far each other source may move the step either way, ns, nine times in ten. These are independent,
    so they add up as squares do: that all are at their worst together is rarer than that one is. Beyond them lies a
    `margin`.
    """
    beyond = hypot(*errors) + margin
    return max(0, round(min(cases) - beyond)), round(max(cases) + beyond)


def by_chance(times: Array) -> float | None:
    """How far another run's mean of as many times may lie from that of these, relative, nine times in ten: Student's t
    times the standard error of the difference of two such means. None of fewer than two."""
    if len(times) < 2:
        return None
    return float(_quantile(times) * times.std(ddof=1) * np.sqrt(2 / len(times)) / max(times.mean(), 1.0))


SPREAD_OF_QUARTILES = 1.349
"""Between the quartiles of a normal distribution, in standard deviations…"""
OF_MEDIAN = 1.2533
"""… and the standard error of a median by that of a mean, of one."""
LEAST_STEPS = 4
"""Steps from which quartiles tell more than all of them."""
LEAST_CHANCE = 0.001
"""Of the step: quartiles of so few may lie together by chance."""


def median_by_chance(times: Array) -> float | None:
    """The same of medians, as «the step» is one: the first step of a recording, which nothing held up, or a single slow
    one says nothing of how far the median may lie off. The spread is that of the middle half."""
    if len(times) < LEAST_STEPS:
        return by_chance(times)
    low, middle, high = (quantile(times.tolist(), part) for part in (0.25, 0.5, 0.75))
    error = (high - low) / SPREAD_OF_QUARTILES * OF_MEDIAN / np.sqrt(len(times))
    return max(LEAST_CHANCE, float(_quantile(times) * error * np.sqrt(2) / max(middle, 1.0)))


def _quantile(times: Array) -> float:
    return student(_MISSED, len(times) - 1)


# What devices do in the steps of a replay: what they must compute, and where the time goes.

PARTS = ("compute", "exposed_communication", "exposed_memory", "idle")
"""As in the breakdown of the report."""


def compute_floor(graph: Graph, done: Replayed, counted: Mask, pipelined: Sequence[PipelineChange] = ()) -> float:
    """What a device computes in a step, on all its streams: the median over the steps that count, of each the largest
    over ranks, in ns. By the steps in which operations were launched, for marks may move past work done steps ahead.

    Behind what a graph holds, changes of its pipeline: an even split makes it the mean over ranks, and of other
    micro-batches it is not known (0) where they alter what is computed, as operators' dispatch on a CPU.
    """
    gpu = _on_device(graph)
    cut = [change for change in pipelined if isinstance(change, MicroBatches)]
    if cut and not (gpu and all(change.keep_batch for change in cut)):
        return 0.0
    steps, nodes, (start, end) = len(counted), *_computing(graph, done, gpu)
    step = graph.nodes["step"][nodes]
    kept = (step >= 0) & (step < steps)
    if not kept.any():
        return 0.0
    start, end, ranks = start[kept], end[kept], graph.ranks
    place = np.searchsorted(ranks, graph.nodes["rank"][nodes][kept]) * steps + step[kept]
    # One after the other, so that no two ranks or steps overlap.
    width = int(end.max() - start.min()) + 1
    behind, begin = place * width - int(start.min()), np.arange(len(ranks) * steps, dtype=np.int64) * width
    spent = measure_within(union(start + behind, end + behind), begin, begin + width).reshape(-1, steps)
    spent = np.maximum(spent, _needed(graph, nodes[kept], place, spent.size).reshape(-1, steps))
    evened = any(isinstance(change, EvenStages) for change in pipelined)
    return middle((spent.mean(axis=0) if evened else spent.max(axis=0))[counted])


def _needed(graph: Graph, nodes: Times, place: Times, places: int) -> Array:
    """ns that the work of kernels needs by place (a step of a rank): of all streams together at the peak of their
    precision or at the memory's bandwidth, whichever is more. What a change has taken away needs nothing."""
    floor = np.where(graph.nodes["dur"][nodes] > 0, graph.nodes["floor"][nodes], 0).astype(np.float64)
    by_memory = (graph.nodes["traits"][nodes] & int(Trait.BY_MEMORY)) > 0
    sums = [np.bincount(place[own], floor[own], places) for own in (by_memory, ~by_memory)]
    return np.asarray(np.maximum(*sums))


def parts(graph: Graph, done: Replayed, counted: Mask) -> dict[str, float]:
    """ns of each of `PARTS` in a step, mean over ranks and the steps that count. Where a training thread is the device,
    communication is what it waits for."""
    totals, gpu = np.zeros(len(PARTS)), _on_device(graph)
    nodes, (start, end) = _computing(graph, done, gpu)
    arrival, transfer = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
    calls = np.flatnonzero((arrival >= 0) & (transfer >= 0))
    arrived, moved = arrival[calls], np.flatnonzero(graph.of(Node.DEVICE) & (graph.nodes["work"] != Kind.COMPUTE))
    threads = np.flatnonzero(graph.of(Node.HOST, Node.WAIT))
    busy = _by_rank(graph, nodes, start, end)
    communicating = _by_rank(graph, arrived, done.start[arrived], done.end[transfer[calls]])
    copying, awake = (_by_rank(graph, own, done.start[own], done.end[own]) for own in (moved, threads))
    for rank, marks in graph.marks.items():
        low, high = done.start[marks[:-1]][counted], done.start[marks[1:]][counted]
        if gpu:
            totals += _tiled((busy[rank], communicating[rank], copying[rank]), low, high)
        else:
            compute, idle, _, waited = _tiled((busy[rank], awake[rank], EMPTY), low, high)
            totals += np.array([compute, waited, 0.0, idle])
    return dict(zip(PARTS, (totals / max(len(graph.marks), 1)).tolist(), strict=True))


def _by_rank(graph: Graph, nodes: Times, start: Times, end: Times) -> dict[int, Spans]:
    """When each rank's own of these nodes are at work."""
    rank = np.searchsorted(graph.ranks, graph.nodes["rank"][nodes])
    order = np.argsort(rank, kind="stable")
    parts = np.split(order, np.searchsorted(rank[order], np.arange(1, len(graph.ranks))))
    return {rank: union(start[own], end[own]) for rank, own in zip(graph.ranks, parts, strict=True)}


def _tiled(kinds: Sequence[Spans], low: Times, high: Times) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Mean ns per window of each kind beside those before it, and of the rest."""
    found, covered, so_far = [], EMPTY, np.zeros(len(low), np.int64)
    for own in kinds:
        covered = join(covered, own)
        within = measure_within(covered, low, high)
        found.append(float(np.mean(within - so_far)))
        so_far = within
    return np.array([*found, float(np.mean(high - low - so_far))])


def _on_device(graph: Graph) -> bool:
    """Whether devices compute, whose model may not be recorded; else training threads do."""
    return bool((graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)).any())


def _computing(graph: Graph, done: Replayed, gpu: bool) -> tuple[Times, tuple[Times, Times]]:
    """Nodes that compute, and when."""
    if gpu:
        nodes = np.flatnonzero(graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE))
        return nodes, (done.start[nodes], done.end[nodes])
    nodes = np.flatnonzero(graph.of(Node.HOST) & (graph.nodes["compute"] > 0))
    start = done.start[nodes]
    return nodes, (start, np.minimum(done.end[nodes], start + graph.nodes["compute"][nodes]))
