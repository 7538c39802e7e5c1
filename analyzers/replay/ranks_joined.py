"""The graphs of all ranks as one: collectives begin to transfer when the last rank has arrived.

Of a collective each rank's transfer is the time from the latest start to its own end (never below 0, whatever the
clocks say); an end of a message that was through before the other began did not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.replay.graph import NONE, Edge, Graph, Node, join
from gpuscope.analyzers.replay.rewrite import nodes_by_call
from gpuscope.trace.schema import NA

MESSAGES = ("send", "recv")


def joined(graphs: Sequence[Graph], facts: RunFacts, stand_ins: Mapping[int, int] | None = None) -> Graph:
    """One graph on one clock, from the graphs of all ranks; or of some, with who stands in for each of the others: one
    of these arrives as much behind its stand-in as it did."""
    graph = join([_shifted(graph, facts.clocks) for graph in graphs])
    arrival = _nodes_of(graph, Node.ARRIVAL)
    transfer = _nodes_of(graph, Node.TRANSFER)
    start, end, dur = graph.nodes["start"], graph.nodes["end"], graph.nodes["dur"].copy()
    nodes: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    for calls, others in _instances(graph, facts, stand_ins or {}):
        begun = {graph.calls[call].rank: int(start[arrival[call]]) for call in calls}
        last = max(begun, key=lambda rank: begun[rank])
        behind = dict.fromkeys(begun, 0)
        for rank, at in others:
            stands = (stand_ins or {}).get(rank, last)
            stands = stands if stands in begun else last
            behind[stands] = max(behind[stands], at - begun[stands])
        latest = max(at + behind[rank] for rank, at in begun.items())
        # The last to arrive is held by none but itself.
        held = [call for call in calls if int(end[transfer[call]]) >= latest]
        node = len(graph) + len(nodes)
        nodes.append({"kind": Node.JOIN, "start": latest, "end": latest, "call": calls[0], "rank": -1})
        edges += [(arrival[call], node, behind[graph.calls[call].rank], Edge.JOIN) for call in calls]
        for call in held:
            edges.append((node, transfer[call], 0, Edge.JOIN))
            dur[transfer[call]] = max(0, int(end[transfer[call]]) - latest)
    return graph.with_nodes(dur=dur).add(nodes, edges)


def unmatched_messages(graph: Graph) -> int:
    """Sends and receives whose other end is not in the graph."""
    met = np.zeros(len(graph), np.bool_)
    met[graph.edges["src"][graph.of(Node.JOIN)[graph.edges["dst"]]]] = True
    arrival = nodes_by_call(graph, Node.ARRIVAL)
    return sum(
        call.op in MESSAGES and arrival[place] >= 0 and not met[arrival[place]]
        for place, call in enumerate(graph.calls)
    )


def _shifted(graph: Graph, clock: Clocks) -> Graph:
    (rank,) = graph.marks
    by = clock.offset.get(rank, 0)
    times = ("start", "end", "release")
    return graph.with_nodes(**{name: np.where(graph.nodes[name] == NA, NA, graph.nodes[name] - by) for name in times})


def _nodes_of(graph: Graph, kind: Node) -> dict[int, int]:
    """The node of each call."""
    places = np.flatnonzero(graph.of(kind) & (graph.nodes["call"] >= 0))
    return dict(zip(graph.nodes["call"][places].tolist(), places.tolist(), strict=True))


def _instances(
    graph: Graph, facts: RunFacts, stand_ins: Mapping[int, int]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Calls (places in `graph.calls`) that are one collective or message, and of its ranks that have stand-ins when
    each began, on the run's clock; two ranks at least."""
    table, names = facts.trace["collectives"], facts.trace.names
    keys = zip(*(table[name].tolist() for name in ("rank", "start", "end", "op")), strict=True)
    row_of = {(rank, start, end, names[op]): row for row, (rank, start, end, op) in enumerate(keys)}
    call_of = np.full(len(table), NONE, np.int64)
    for place, call in enumerate(graph.calls):
        row = row_of.get((call.rank, call.start, call.end, call.op))
        if row is not None:
            call_of[row] = place
    absent = np.isin(table["rank"], list(stand_ins))
    offset = {rank: facts.clocks.offset.get(rank, 0) for rank in stand_ins}
    for instances in (facts.matched.instances, facts.matched.partial):
        for low, high in pairwise(instances.bounds.tolist()):
            rows = instances.rows[low:high]
            own, away = rows[~absent[rows]], rows[absent[rows]]
            # Where some of an operation's ranks lie outside the replayed steps, those inside keep what they measured.
            if len(own) and len(rows) > 1 and bool((call_of[own] >= 0).all()):
                others = zip(table["rank"][away].tolist(), table["start"][away].tolist(), strict=True)
                yield call_of[own].tolist(), [(rank, at - offset[rank]) for rank, at in others]
