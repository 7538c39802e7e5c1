"""Gradient communication in other buckets, and beside the backward pass or behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.changes import SENT_EARLY, AccumulatedGradients, BucketSize, Overlap
from gpuscope.analyzers.replay.collective_costs import Costs, bus_bytes, costs
from gpuscope.analyzers.replay.graph import NONE, Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, by_issue, edges_into, nodes_by_call, unissued
from gpuscope.analyzers.replay.rewrites.early_issue import EarlyIssue
from gpuscope.analyzers.replay.rewrites.regroup import Bucket, Piece, Scale, regrouped
from gpuscope.analyzers.replay.rewrites.transfer_cost import gradients, steps_of

FEWEST = 3
"""Transfers from which a mean is taken."""


def bucket_size(graph: Graph, change: BucketSize, setting: Setting) -> Rewritten:
    """Gradients in buckets that close once they hold `size` bytes, as DDP's do."""
    if change.size < 1:
        raise UnreplayableError("a bucket needs at least a byte")
    calls, found = gradients(graph), costs(graph, setting, alike=not setting.complete)
    if any(graph.calls[call].op == "reduce_scatter" for call in calls):
        raise UnreplayableError("gradients are scattered module by module here: there are no buckets, group modules")
    first = change.size if change.first is None else change.first
    if _as_they_are(graph, calls, change.size, first):
        return Rewritten(graph, "gradients come in such buckets already", found.provenance(graph, calls))
    _need_cores(setting)
    scale = scales(graph, calls, found, setting)
    changed = regrouped(graph, calls, lambda own: buckets(own, change.size, first), found, scale, key=change)
    known = all(graph.calls[call].gradients for call in calls)
    when = "gradients as they became ready" if known else "gradients within a bucket assumed to become ready evenly"
    basis = f"{found.basis(graph, calls)}; {when}"
    return Rewritten(changed, basis, found.provenance(graph, calls), found.lacking(graph, calls))


def _as_they_are(graph: Graph, calls: Sequence[int], size: int, first: int) -> bool:
    """Whether each step's collectives of gradients hold what buckets of that size would hold."""

    def same(own: Sequence[int]) -> bool:
        made = buckets([graph.calls[call] for call in own], size, first)
        return [{piece.old for piece in bucket} for bucket in made] == [{place} for place in range(len(own))]

    return bool(calls) and all(same(own) for own in _by_step(graph, calls).values())


def _by_step(graph: Graph, calls: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """Calls of each rank's step, in the order of their issue."""
    node = nodes_by_call(graph, Node.ARRIVAL)
    present = [call for call in calls if node[call] >= 0]
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    step = steps_of(graph, present)
    for call in by_issue(graph, present):
        own[graph.calls[call].rank, step[call]].append(call)
    return own


def accumulated(graph: Graph, change: AccumulatedGradients, setting: Setting) -> Rewritten:
    """All-reduces of gradients but those of a step's last micro-batch take no time, and nobody waits for them.

    Each micro-batch has as many buckets.
    """
    del setting
    if change.micro_batches < 2:
        raise UnreplayableError("gradients are reduced once in a step")
    kept, gone = 0, np.zeros(len(graph), np.bool_)
    left: list[int] = []
    of = graph.nodes["call"]
    for calls in _by_step(graph, gradients(graph)).values():
        passes = {graph.calls[call].passes for call in calls}
        own = [call for call in calls if graph.calls[call].passes == max(passes)]
        if len(passes) != change.micro_batches:  # not recorded
            if len(calls) % change.micro_batches:
                raise UnreplayableError(f"a step's gradient collectives are no {change.micro_batches} times as many")
            own = calls[-(len(calls) // change.micro_batches) :]
        kept += len(own)
        left += [call for call in calls if call not in own]
    gone |= np.isin(of, left) & graph.of(Node.ARRIVAL, Node.TRANSFER)
    if not gone.any():
        raise UnreplayableError(
            "no step repeats its buckets: gradients are reduced once, or their sizes are not recorded"
        )
    joins = edges_into(graph, gone & graph.of(Node.TRANSFER), Edge.JOIN) & graph.of(Node.JOIN)[graph.edges["src"]]
    held = gone[graph.edges["src"]] & (graph.edges["why"] == Edge.SYNC)
    changed = graph.keep_edges(~(joins | held)).with_nodes(dur=np.where(gone, 0, unissued(graph, left)))
    return Rewritten(changed, f"{int((gone & graph.of(Node.TRANSFER)).sum())} all-reduces left out, {kept} kept")


def buckets(calls: Sequence[Call], size: int, first: int) -> list[Bucket]:
    """Old buckets cut and joined into new ones that close with at least `size` bytes, the `first` of a backward pass
    apart, and at the end of one.

    They are cut between gradients where these are known, else into even parts.
    """
    made: list[list[Piece]] = []
    held, limit, passes = 0, first, NONE
    for old, call in enumerate(calls):
        for piece in _pieces(old, call, size):
            if call.passes != passes or held >= limit:
                limit = first if call.passes != passes else size
                held, passes = 0, call.passes
                made.append([])
            made[-1].append(piece)
            held += piece.bytes
    return list(made)


def _pieces(old: int, call: Call, size: int) -> list[Piece]:
    if call.gradients:
        # What is sent behind the backward pass stays there: when it is sent is another change.
        return [Piece(old, part.bytes, early=part.early if call.backward else 0) for part in call.gradients]
    nbytes = call.bytes or 0
    parts = max(1, nbytes // size)
    return [
        Piece(old, nbytes * (part + 1) // parts - nbytes * part // parts, (part + 1) / parts) for part in range(parts)
    ]


def scales(graph: Graph, calls: list[int], found: Costs, setting: Setting) -> Scale:
    """What transfers took in fact by what the models expect: of the last of a step, and of those before.

    While the backward pass goes on, transfers share cores, memory and links with it and with each other; the last one
    has them alone, unless one before it is late.
    """
    last = {own[-1] for own in _by_step(graph, calls).values()}
    worse = 1 + setting.bias * max(found.error(graph, call) for call in calls)
    undisturbed = _undisturbed(graph, calls, last)
    alone = _taken(graph, undisturbed, found)
    beside = _taken(graph, [call for call in calls if call not in last], found) or alone
    if setting.gpu:
        return Scale(worse * beside, worse * alone)
    # On a CPU threads are late to take a message up, which is no longer for a larger one.
    late = (alone - 1) * _expected(graph, undisturbed, found) / len(undisturbed)
    return Scale(worse * beside, worse, worse * late) if late > 0 else Scale(worse * beside, worse * alone)


def _undisturbed(graph: Graph, calls: list[int], last: set[int]) -> list[int]:
    """Of the last transfers of steps, those that began with no other in flight; all, if that is hardly any."""
    node = nodes_by_call(graph, Node.TRANSFER)
    end = graph.nodes["end"][node]
    start, rank = end - graph.nodes["dur"][node], graph.nodes["rank"][node]
    own = np.array(calls)
    free = [
        call
        for call in own.tolist()
        if call in last
        and not bool(((rank[own] == rank[call]) & (start[own] < start[call]) & (end[own] > start[call])).any())
    ]
    return free if len(free) >= FEWEST else sorted(last)


def _taken(graph: Graph, calls: list[int], found: Costs) -> float:
    return float(sum(int(found.transfer[call]) for call in calls) / max(_expected(graph, calls, found), 1))


def _expected(graph: Graph, calls: list[int], found: Costs) -> int:
    return sum(found.model(graph, call).expected(bus_bytes(graph, call) or 0.0) for call in calls)


def overlap(graph: Graph, change: Overlap, setting: Setting) -> Rewritten:
    """Gradient communication only once the last of a step is issued, or each as soon as its gradients are there."""
    if change.on:
        return _beside(graph, setting)
    calls, node = gradients(graph), nodes_by_call(graph, Node.ARRIVAL)
    if any(graph.calls[call].op == "reduce_scatter" for call in calls):
        raise UnreplayableError("gradients are scattered module by module here, and waited for in between")
    place_of = np.flatnonzero(np.isin(graph.edges["why"], (Edge.LAUNCH, Edge.EVENT)))
    into: dict[int, list[int]] = defaultdict(list)
    for place, dst in zip(place_of.tolist(), graph.edges["dst"][place_of].tolist(), strict=True):
        into[dst].append(place)
    edges: list[tuple[int, int, int, int]] = []
    for *earlier, final in _by_step(graph, calls).values():
        issue = [[int(graph.edges[name][place]) for name in ("src", "lag", "why")] for place in into[int(node[final])]]
        edges += [(src, int(node[call]), lag, why) for call in earlier for src, lag, why in issue]
    return Rewritten(graph.add([], edges), "every gradient bucket waits for the last one's issue")


def _need_cores(setting: Setting) -> None:
    """Raises `UnreplayableError` where buckets would take cores from the backward pass and it is unknown how many."""
    if not setting.gpu and not setting.cores_known:
        raise UnreplayableError(
            "on a CPU the threads that communicate take cores from the backward pass, and the trace does not record "
            "what that costs: gpuscope record counts it, where nothing else holds the cores"
        )


def _beside(graph: Graph, setting: Setting) -> Rewritten:
    """Each collective of gradients issued with the last one that it holds."""
    early = {place: call.gradients[-1].early for place, call in enumerate(graph.calls) if call.gradients}
    early = {place: ns for place, ns in early.items() if ns > 0}
    if not early and any(call.gradients for call in graph.calls):
        raise UnreplayableError("gradients are sent during the backward pass already", SENT_EARLY)
    if not early:
        raise UnreplayableError(
            "the trace does not record when each gradient is ready: record operators with their shapes"
        )
    _need_cores(setting)
    node, issue = nodes_by_call(graph, Node.ARRIVAL), EarlyIssue(graph)
    moved = np.zeros(len(graph), np.bool_)
    moved[node[list(early)]] = True
    edges = [edge for call, ns in early.items() for edge in issue.edges(int(node[call]), int(node[call]), ns)]
    return Rewritten(
        graph.keep_edges(~edges_into(graph, moved, Edge.LAUNCH, Edge.EVENT)).add([], edges),
        f"{len(early)} collectives issued when their gradients were ready, with the same bytes each",
    )
