"""What devices do in the steps of a replay: what they must compute, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.changes import EvenStages, MicroBatches, PipelineChange
from gpuscope.analyzers.replay.engine import Replayed
from gpuscope.analyzers.replay.graph import Graph, Node, Trait
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.averages import middle
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.intervals import EMPTY, Spans, join, measure_within, union
from gpuscope.trace.schema import Kind

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
