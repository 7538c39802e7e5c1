"""Gradient communication in other buckets, and beside the backward pass or behind it."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from analyzers.replay.changes import BucketSize, Overlap
from analyzers.replay.costs import Costs, bus_bytes, costs
from analyzers.replay.graph import Edge, Graph, Node, UnreplayableError
from analyzers.replay.links import gradients
from analyzers.replay.regroup import Bucket, Piece, Scale, regrouped
from analyzers.replay.rewriting import Rewritten, Setting, by_issue, nodes_by_call


def bucket_size(graph: Graph, change: BucketSize, setting: Setting) -> Rewritten:
    """Gradients in buckets that close once they hold `size` bytes, as DDP's do."""
    if change.size < 1:
        raise UnreplayableError("a bucket needs at least a byte")
    if not setting.complete:
        raise UnreplayableError("what a bucket costs, and what is waiting, only all ranks tell: record every rank")
    calls, found = gradients(graph), costs(graph, setting)
    if any(graph.calls[call].op == "reduce_scatter" for call in calls):
        raise UnreplayableError("gradients are scattered module by module here: there are no buckets, group modules")
    scale = scales(graph, calls, found, setting)
    first = change.size if change.first is None else change.first
    changed = regrouped(graph, calls, lambda sizes: buckets(sizes, change.size, first), found, scale)
    return Rewritten(
        changed,
        f"{found.basis(graph, calls)}; gradients within a bucket taken to become ready evenly",
    )


def buckets(sizes: list[int], size: int, first: int) -> list[Bucket]:
    """Old buckets of `sizes` bytes cut and joined into new ones that close with at least `size` bytes."""
    made: list[list[Piece]] = [[]]
    for old, nbytes in enumerate(sizes):
        parts = max(1, nbytes // size)
        for part in range(parts):
            limit = first if len(made) == 1 else size
            if made[-1] and sum(piece.bytes for piece in made[-1]) >= limit:
                made.append([])
            piece = nbytes * (part + 1) // parts - nbytes * part // parts
            made[-1].append(Piece(old, piece, (part + 1) / parts))
    return list(made)


def scales(graph: Graph, calls: list[int], found: Costs, setting: Setting) -> Scale:
    """What transfers took in fact by what the models expect: of the last of a step, and of those before.

    While the backward pass goes on, transfers share cores, memory and links with it; the last one has them alone.
    """
    node = nodes_by_call(graph, Node.ARRIVAL)
    final: dict[tuple[int, int], int] = {}
    for call in by_issue(graph, calls):
        final[graph.calls[call].rank, int(graph.nodes["step"][node[call]])] = call
    last = set(final.values())
    worse = 1 + setting.bias * max(found.error(graph, call) for call in calls)
    alone = _taken(graph, [call for call in calls if call in last], found)
    beside = _taken(graph, [call for call in calls if call not in last], found) or alone
    return Scale(worse * beside, worse * alone)


def _taken(graph: Graph, calls: list[int], found: Costs) -> float:
    expected = sum(found.model(graph, call).expected(bus_bytes(graph, call) or 0.0) for call in calls)
    return float(sum(int(found.transfer[call]) for call in calls) / max(expected, 1))


def overlap(graph: Graph, change: Overlap, setting: Setting) -> Rewritten:
    """Gradient communication only once the last of a step is issued; the reverse the trace can't tell."""
    del setting
    if change.on:
        raise UnreplayableError(
            "gradients are sent during the backward pass already, or the trace does not tell when each is ready"
        )
    calls, node = gradients(graph), nodes_by_call(graph, Node.ARRIVAL)
    if any(graph.calls[call].op == "reduce_scatter" for call in calls):
        raise UnreplayableError("gradients are scattered module by module here, and waited for in between")
    place_of = np.flatnonzero(np.isin(graph.edges["why"], (Edge.LAUNCH, Edge.EVENT)))
    into: dict[int, list[int]] = defaultdict(list)
    for place, dst in zip(place_of.tolist(), graph.edges["dst"][place_of].tolist(), strict=True):
        into[dst].append(place)
    last: dict[tuple[int, int], int] = {}
    for call in by_issue(graph, calls):
        last[graph.calls[call].rank, int(graph.nodes["step"][node[call]])] = int(node[call])
    edges: list[tuple[int, int, int, int]] = []
    for call in calls:
        arrival = int(node[call])
        final = last[graph.calls[call].rank, int(graph.nodes["step"][arrival])]
        if arrival != final:
            rows = ((int(graph.edges[name][place]) for name in ("src", "lag", "why")) for place in into[final])
            edges += [(src, arrival, lag, why) for src, lag, why in rows]
    return Rewritten(graph.add([], edges), "every gradient bucket waits for the last one's issue")
