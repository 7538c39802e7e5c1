"""What transfers could be at best: the bounds of what is done about them, for which no framework's marks are needed."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.replay.graph import Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Costs, Rewritten, Setting, bus_bytes, costs, nodes_by_call
from gpuscope.analyzers.replay.rewrites.transfer_cost import alike
from gpuscope.analyzers.what_if_changes import AtBest
from gpuscope.collective_costs.message_cost import NODE_LATENCY_NS, RANKS_IN_A_NODE
from gpuscope.trace.table import Array, Times


def at_best(graph: Graph, change: AtBest, setting: Setting) -> Rewritten:
    """The best case whatever the assumptions: what is not known to be waiting is taken for transfer, and costs are
    divided as it gains most within their error. Raises `UnreplayableError` where sizes are missing that it needs."""
    found = costs(graph, setting)
    node = nodes_by_call(graph, Node.TRANSFER)
    if not (node >= 0).any():
        raise UnreplayableError("the replayed steps hold no collective")
    if change.part == "hidden":
        return Rewritten(
            _hidden(graph, node, found.transfer), "transfers hidden, as far as links carry them in a step", "inferred"
        )
    calls = [place for place in range(len(graph.calls)) if node[place] >= 0]
    if not all(graph.calls[call].bytes for call in calls):
        raise UnreplayableError("sizes are missing: record collective arguments")
    dur = graph.nodes["dur"].copy()
    for own in alike(graph, calls):
        taken = dur[node[own]].astype(np.float64)
        fixed = _fixed_ns(graph, found, own[0], most=change.part == "no_fixed_cost")
        fixed = np.minimum(fixed, taken)
        left = taken - fixed if change.part == "no_fixed_cost" else fixed + (taken - fixed) / 2
        dur[node[own]] = np.rint(left).astype(np.int64)
    basis = "what is not known to be waiting taken for transfer; " + found.basis(graph, calls)
    return Rewritten(graph.with_nodes(dur=dur), basis, found.provenance(graph, calls))


SLOWER_INSIDE, SLOWER_ACROSS = 4, 20
"""Times that a link may be slower than PCI Express at its usual rate, inside a host and between hosts: what shared
memory or a slot of four lanes give, and 10 Gbit/s."""


def _fixed_ns(graph: Graph, found: Costs, call: int, *, most: bool) -> Array:
    """The fixed cost of a message of so many bytes, at the end of what is possible that gains most."""
    model, error = found.model(graph, call), found.error(graph, call)
    if not model.assumed and model.divided:
        return np.array(model.alpha * max(0.0, 1 + error if most else 1 - error))
    if most:
        return np.array(max(model.alpha * (1 + error), NODE_LATENCY_NS))
    slower = SLOWER_INSIDE if (graph.calls[call].group_size or 2) <= RANKS_IN_A_NODE else SLOWER_ACROSS
    return np.array(found.transfer[call] - slower * model.beta * (bus_bytes(graph, call) or 0.0)).clip(0)


def _hidden(graph: Graph, node: Times, transfer: Times) -> Graph:
    """Transfers that nothing waits for; but a rank's streams carry all those of a step before the next one begins."""
    present = node[node >= 0]
    dur, nodes = graph.nodes["dur"].copy(), graph.nodes
    rows: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    for rank, marks in graph.marks.items():
        own = present[nodes["rank"][present] == rank]
        lanes = {int(lane) for lane in nodes["lane"][own]}
        for step, (begin, end) in enumerate(zip(marks[:-1].tolist(), marks[1:].tolist(), strict=True)):
            of_step = own[nodes["step"][own] == step]
            spent = transfer[nodes["call"][of_step]]
            carried = max((int(spent[nodes["lane"][of_step] == lane].sum()) for lane in lanes), default=0)
            rows.append({"kind": Node.MARK, "rank": rank, "step": step, "dur": carried})
            new = len(graph) + len(rows) - 1
            edges.append((begin, new, -int(dur[begin]), int(Edge.STREAM)))
            edges.append((new, end, 0, int(Edge.STREAM)))
    dur[present] = 0
    return graph.with_nodes(dur=dur).add(rows, edges)
