"""Sharded parameters: gathered earlier, not again in the backward pass, or several modules at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.frame.changes import GroupModules, KeepParameters, Prefetch
from gpuscope.analyzers.replay.collective_costs import costs
from gpuscope.analyzers.replay.graph import Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, edges_into, nodes_by_call
from gpuscope.analyzers.replay.rewrites.gradient_buckets import scales
from gpuscope.analyzers.replay.rewrites.regroup import Bucket, Piece, regrouped


def gathers(graph: Graph) -> list[int]:
    """Calls that gather parameters."""
    calls = [place for place, call in enumerate(graph.calls) if call.op == "all_gather"]
    if not calls:
        raise UnreplayableError("the replayed steps hold no all-gather of parameters")
    return calls


def keep_parameters(graph: Graph, change: KeepParameters, setting: Setting) -> Rewritten:
    """No all-gather in the backward pass; the host still does what it did to issue them."""
    del change, setting
    calls = [call for call in gathers(graph) if graph.calls[call].backward]
    if not calls:
        raise UnreplayableError("no all-gather in the backward pass: parameters are kept, or the pass is not recorded")
    gone = np.zeros(len(graph), np.bool_)
    for kind in (Node.ARRIVAL, Node.TRANSFER):
        gone[nodes_by_call(graph, kind)[calls]] = True
    gone |= graph.of(Node.JOIN) & np.isin(graph.nodes["call"], calls)
    # Stream order goes on through them, at no cost; they wait for neither other ranks nor compute.
    kept = ~(
        edges_into(graph, gone, Edge.EVENT)
        | (gone[graph.edges["src"]] & np.isin(graph.edges["why"], (Edge.SYNC, Edge.EVENT)))
    )
    joins = graph.of(Node.JOIN) & gone
    kept &= ~(joins[graph.edges["src"]] | joins[graph.edges["dst"]])
    found = graph.with_nodes(dur=np.where(gone, 0, graph.nodes["dur"])).keep_edges(kept)
    return Rewritten(found, f"{len(calls)} all-gathers of the backward pass removed, their host time kept")


def prefetch(graph: Graph, change: Prefetch, setting: Setting) -> Rewritten:
    """Each all-gather issued with the one `depth` before it in its pass. Needs memory for as many modules."""
    del setting
    if change.depth < 1:
        raise UnreplayableError("prefetching needs a depth of at least 1")
    node = nodes_by_call(graph, Node.ARRIVAL)
    passes: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for call in sorted(gathers(graph), key=lambda call: int(graph.nodes["start"][node[call]])):
        step = int(graph.nodes["step"][node[call]])
        passes[graph.calls[call].rank, step, graph.calls[call].backward].append(call)
    moved = np.zeros(len(graph), np.bool_)
    edges: list[tuple[int, int, int, int]] = []
    launch = np.flatnonzero(graph.edges["why"] == Edge.LAUNCH)
    issue = dict(zip(graph.edges["dst"][launch].tolist(), launch.tolist(), strict=True))
    for calls in passes.values():
        for call, earlier in zip(calls[change.depth :], calls, strict=False):
            new, old = issue.get(int(node[earlier])), issue.get(int(node[call]))
            if new is not None and old is not None:
                moved[node[call]] = True
                src, lag = int(graph.edges["src"][new]), int(graph.edges["lag"][old])
                edges.append((src, int(node[call]), lag, int(Edge.LAUNCH)))
    if not edges:
        raise UnreplayableError(f"no pass gathers more than {change.depth} modules")
    kept = ~edges_into(graph, moved, Edge.LAUNCH, Edge.EVENT)
    return Rewritten(
        graph.keep_edges(kept).add([], edges), f"{len(edges)} all-gathers issued {change.depth} modules ahead"
    )


def group_modules(graph: Graph, change: GroupModules, setting: Setting) -> Rewritten:
    """`count` neighbouring modules gathered, and their gradients scattered, in one."""
    if change.count < 2:
        raise UnreplayableError("grouping needs at least two modules")
    if not setting.complete:
        raise UnreplayableError("only all ranks together show what a joined collective costs: record every rank")
    found = costs(graph, setting)
    parameters = gathers(graph)
    scatters = [place for place, call in enumerate(graph.calls) if call.op == "reduce_scatter" and call.backward]
    families = [
        [call for call in parameters if not graph.calls[call].backward],
        [call for call in parameters if graph.calls[call].backward],
        scatters,
    ]
    before = len(parameters) + len(scatters)
    changed = graph
    for calls in families:
        if calls:
            scale = scales(graph, calls, found, setting)
            first = calls is not scatters
            changed = regrouped(changed, calls, lambda own: _groups(own, change.count), found, scale, at_first=first)
    return Rewritten(
        changed,
        f"{before} collectives joined {change.count} by {change.count}; {found.basis(graph, parameters)}",
        found.provenance(graph, [*parameters, *scatters]),
    )


def _groups(calls: Sequence[Call], count: int) -> list[Bucket]:
    pieces = [Piece(old, call.bytes or 0) for old, call in enumerate(calls)]
    return [pieces[at : at + count] for at in range(0, len(pieces), count)]
