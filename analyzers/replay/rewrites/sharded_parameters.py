"""Sharded parameters: gathered earlier, not again in the backward pass, or several modules at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

import numpy as np

from gpuscope.analyzers.changes import NOT_GATHERED_AGAIN, GroupModules, KeepParameters, Prefetch
from gpuscope.analyzers.host_time.fsdp_options import LIMITER
from gpuscope.analyzers.replay.collective_costs import costs
from gpuscope.analyzers.replay.graph import Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import (
    Rewritten,
    Setting,
    by_issue,
    edges_into,
    launched_at,
    nodes_by_call,
    unissued,
)
from gpuscope.analyzers.replay.rewrites.gradient_buckets import scales
from gpuscope.analyzers.replay.rewrites.regroup import Bucket, Piece, regrouped
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.schema import NA


def gathers(graph: Graph) -> list[int]:
    """Calls that gather parameters."""
    calls = [place for place, call in enumerate(graph.calls) if call.op == "all_gather"]
    if not calls:
        raise UnreplayableError("the replayed steps hold no all-gather of parameters")
    return calls


def keep_parameters(graph: Graph, change: KeepParameters, setting: Setting) -> Rewritten:
    """No all-gather in the backward pass, nor FSDP1's wait before one. Where it turns out badly, the host still does
    what it did to issue them."""
    del change
    calls = [call for call in gathers(graph) if graph.calls[call].backward]
    if not calls:
        why = "no all-gather in the backward pass: parameters are kept, or the pass is not recorded"
        raise UnreplayableError(why, NOT_GATHERED_AGAIN)
    gone = np.zeros(len(graph), np.bool_)
    for kind in (Node.ARRIVAL, Node.TRANSFER):
        gone[nodes_by_call(graph, kind)[calls]] = True
    gone |= graph.of(Node.JOIN) & np.isin(graph.nodes["call"], calls)
    graph = _unlimited(graph, gone)
    # Stream order goes on through them, at no cost; they wait for neither other ranks nor compute.
    kept = ~(
        edges_into(graph, gone, Edge.EVENT)
        | (gone[graph.edges["src"]] & np.isin(graph.edges["why"], (Edge.SYNC, Edge.EVENT)))
    )
    joins = graph.of(Node.JOIN) & gone
    kept &= ~(joins[graph.edges["src"]] | joins[graph.edges["dst"]])
    dur = graph.nodes["dur"] if setting.bias > 0 else unissued(graph, calls)
    found = graph.with_nodes(dur=np.where(gone, 0, dur)).keep_edges(kept)
    return Rewritten(found, f"{len(calls)} all-gathers of the backward pass removed, with the host time of their issue")


def _unlimited(graph: Graph, gone: Mask) -> Graph:
    """Without FSDP1's waits for room right before it issues one of these gathers."""
    src, dst, why = (graph.edges[name] for name in ("src", "dst", "why"))
    issuing = np.zeros(len(graph), np.bool_)
    issuing[src[(why == Edge.LAUNCH) & gone[dst]]] = True
    before = np.zeros(len(graph), np.bool_)
    before[src[(why == Edge.PROGRAM) & issuing[dst]]] = True
    limiter = np.array([LIMITER in label for label in graph.labels] + [False], np.bool_)
    limiting = before & graph.blocking() & limiter[graph.nodes["site"]]
    found = graph.with_nodes(dur=np.where(limiting, 0, graph.nodes["dur"]))
    return found.keep_edges(~edges_into(graph, limiting, Edge.SYNC))


def prefetch(graph: Graph, change: Prefetch, setting: Setting) -> Rewritten:
    """Each all-gather issued with the one `depth` modules before it in its pass, or with the first.

    It then waits for what that one waited for, and stands on its stream where it is issued: ahead of the gradients of
    the modules in between. Needs memory for as many modules.
    """
    del setting
    if change.depth < 1:
        raise UnreplayableError("prefetching needs a depth of at least 1")
    node, issued, passes = nodes_by_call(graph, Node.ARRIVAL), launched_at(graph), _passes(graph, gathers(graph))
    ahead = _ahead(graph, passes)
    into: dict[int, list[int]] = defaultdict(list)
    for place in np.flatnonzero(np.isin(graph.edges["why"], (Edge.LAUNCH, Edge.EVENT))).tolist():
        into[int(graph.edges["dst"][place])].append(place)
    moved = np.zeros(len(graph), np.bool_)
    edges: list[tuple[int, int, int, int]] = []
    order = np.stack((issued, np.zeros(len(graph), np.int64)), axis=1)
    for calls in passes:
        for place, call in enumerate(calls):
            with_place = max(0, place - max(0, change.depth - ahead[call]))
            if with_place == place:
                continue
            old, new = int(node[call]), int(node[calls[with_place]])
            moved[old] = True
            order[old] = issued[new], place
            for edge in into[new]:
                src, lag, why = (int(graph.edges[name][edge]) for name in ("src", "lag", "why"))
                edges.append((src, old, lag, why))
    if not moved.any() or max(map(len, passes)) <= change.depth:
        raise UnreplayableError(f"no pass gathers more than {change.depth} modules")
    kept = ~edges_into(graph, moved, Edge.LAUNCH, Edge.EVENT)
    lanes = {(int(graph.nodes["rank"][dst]), int(graph.nodes["lane"][dst])) for dst in np.flatnonzero(moved).tolist()}
    for lane in sorted(lanes):
        again, gone = _in_order(graph, lane, order)
        edges += again
        kept &= ~gone
    changed = graph.keep_edges(kept).add([], edges)
    return Rewritten(changed, f"{int(moved.sum())} all-gathers issued {change.depth} modules ahead")


def _passes(graph: Graph, calls: Sequence[int]) -> list[list[int]]:
    """Gathers of each pass of a rank, as issued."""
    node = nodes_by_call(graph, Node.ARRIVAL)
    passes: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for place in by_issue(graph, calls):
        call = graph.calls[place]
        passes[call.rank, int(graph.nodes["step"][node[place]]), call.backward].append(place)
    return list(passes.values())


def _ahead(graph: Graph, passes: Sequence[Sequence[int]]) -> dict[int, int]:
    """Per gather, how many modules gathered before it in its pass were not used yet when it was issued."""
    node, issued = nodes_by_call(graph, Node.ARRIVAL), launched_at(graph)
    used = _used(graph, issued)
    return {
        call: sum(used.get(other, NA) > issued[node[call]] for other in own[:place])
        for own in passes
        for place, call in enumerate(own)
    }


def _used(graph: Graph, issued: Times) -> dict[int, int]:
    """Per call, when the host launched the first operation that waited for it."""
    found: dict[int, int] = {}
    edges = graph.edges
    waited = np.flatnonzero(np.isin(edges["why"], (Edge.EVENT, Edge.SYNC)) & graph.of(Node.TRANSFER)[edges["src"]])
    for src, dst in zip(edges["src"][waited].tolist(), edges["dst"][waited].tolist(), strict=True):
        call = int(graph.nodes["call"][src])
        found[call] = min(found.get(call, int(issued[dst])), int(issued[dst]))
    return found


def _in_order(graph: Graph, lane: tuple[int, int], order: Times) -> tuple[list[tuple[int, int, int, int]], Mask]:
    """The order of a stream anew, by (issue, place) of its operations; and which of the edges it replaces."""
    nodes, edges = graph.nodes, graph.edges
    own = (nodes["rank"] == lane[0]) & (nodes["lane"] == lane[1])
    last = nodes_by_call(graph, Node.TRANSFER)
    first = np.flatnonzero(own & graph.of(Node.DEVICE, Node.ARRIVAL))
    first = first[np.lexsort((first, order[first, 1], order[first, 0]))]
    gone = (edges["why"] == Edge.STREAM) & own[edges["src"]] & own[edges["dst"]]
    lag = int(np.median(edges["lag"][gone])) if gone.any() else 0
    ends = [int(last[nodes["call"][node]]) if nodes["call"][node] >= 0 else node for node in first.tolist()]
    return [(src, dst, lag, int(Edge.STREAM)) for src, dst in zip(ends, first[1:].tolist(), strict=False)], gone


def group_modules(graph: Graph, change: GroupModules, setting: Setting) -> Rewritten:
    """`count` neighbouring modules gathered, and their gradients scattered, in one."""
    if change.count < 2:
        raise UnreplayableError("grouping needs at least two modules")
    found = costs(graph, setting, alike=not setting.complete)
    parameters = gathers(graph)
    scatters = [place for place, call in enumerate(graph.calls) if call.op == "reduce_scatter" and call.backward]
    families = [
        [call for call in parameters if not graph.calls[call].backward],
        [call for call in parameters if graph.calls[call].backward],
        scatters,
    ]
    before = len(parameters) + len(scatters)
    depths = [_depth(graph, calls) for calls in families[:2]] + [0]
    changed = _not_limited(graph, families[:2], depths, change.count)
    for calls, depth in zip(families, depths, strict=True):
        if calls:
            scale = scales(graph, calls, found, setting)
            changed = regrouped(
                changed,
                calls,
                partial(_groups, count=change.count, depth=depth),
                found,
                scale,
                key=change,
                at_first=calls is not scatters,
                whole=True,
            )
    return Rewritten(
        changed,
        f"{before} collectives joined {change.count} by {change.count}; {found.basis(graph, parameters)}",
        found.provenance(graph, [*parameters, *scatters]),
        found.lacking(graph, [*parameters, *scatters]),
    )


def _depth(graph: Graph, calls: Sequence[int]) -> int:
    """How many modules ahead of their use the gathers of a pass are issued, the median of those behind the first."""
    passes = _passes(graph, calls)
    ahead = _ahead(graph, passes)
    behind = [ahead[call] for own in passes for call in own[1:]]
    return int(np.median(behind)) if behind else 0


def _not_limited(graph: Graph, families: Sequence[Sequence[int]], depths: Sequence[int], count: int) -> Graph:
    """Without FSDP1's waits for room before gathers with which no group is issued."""
    gone = np.zeros(len(graph), np.bool_)
    node = nodes_by_call(graph, Node.ARRIVAL)
    for calls, depth in zip(families, depths, strict=False):
        for own in _passes(graph, calls):
            with_them = set(_issued_with(len(own), count, depth))
            gone[[node[call] for place, call in enumerate(own) if place not in with_them]] = True
    return _unlimited(graph, gone)


def _issued_with(modules: int, count: int, depth: int) -> list[int]:
    """Of each group the module with whose gather it is issued: as many groups ahead of its use as modules were, when
    the first module of that group is to run."""
    places = range(-(-modules // count))
    return [min(max(0, (place - depth) * count + depth), place * count) for place in places]


def _groups(calls: Sequence[Call], count: int, depth: int) -> list[Bucket]:
    """Groups issued with other gathers begin with those, of which they hold nothing."""
    pieces = [Piece(old, call.bytes or 0) for old, call in enumerate(calls)]
    groups = [pieces[at : at + count] for at in range(0, len(pieces), count)]
    with_them = _issued_with(len(calls), count, depth)
    return [[Piece(at, 0), *own] if at < own[0].old else own for at, own in zip(with_them, groups, strict=True)]
