"""The graphs of all ranks as one: collectives begin to transfer when the last rank has arrived.

Of a collective each rank's transfer is the time from the latest start to its own end (never below 0, whatever the
clocks say); an end of a message that was through before the other began did not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.matching import Instances, Matched
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.replay.graph import NONE, Edge, Graph, Node, join
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


def joined(graphs: Sequence[Graph], facts: RunFacts) -> Graph:
    """One graph on one clock, from the graphs of all ranks."""
    graph = join([_shifted(graph, facts.clocks) for graph in graphs])
    arrival = _nodes_of(graph, Node.ARRIVAL)
    transfer = _nodes_of(graph, Node.TRANSFER)
    start, end, dur = graph.nodes["start"], graph.nodes["end"], graph.nodes["dur"].copy()
    nodes: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    for calls in _instances(graph, facts.trace, facts.matched):
        latest = max(int(start[arrival[call]]) for call in calls)
        # The last to arrive is held by none but itself.
        held = [call for call in calls if int(end[transfer[call]]) >= latest]
        node = len(graph) + len(nodes)
        nodes.append({"kind": Node.JOIN, "start": latest, "end": latest, "call": calls[0], "rank": -1})
        edges += [(arrival[call], node, 0, Edge.JOIN) for call in calls]
        for call in held:
            edges.append((node, transfer[call], 0, Edge.JOIN))
            dur[transfer[call]] = max(0, int(end[transfer[call]]) - latest)
    return graph.with_nodes(dur=dur).add(nodes, edges)


def _shifted(graph: Graph, clock: Clocks) -> Graph:
    (rank,) = graph.marks
    by = clock.offset.get(rank, 0)
    times = ("start", "end", "release")
    return graph.with_nodes(**{
        name: np.where(graph.nodes[name] == NA, NA, graph.nodes[name] - by) for name in times
    })  # fmt: skip


def _nodes_of(graph: Graph, kind: Node) -> dict[int, int]:
    """The node of each call."""
    places = np.flatnonzero(graph.of(kind) & (graph.nodes["call"] >= 0))
    return dict(zip(graph.nodes["call"][places].tolist(), places.tolist(), strict=True))


def _instances(graph: Graph, trace: Trace, matched: Matched) -> list[list[int]]:
    """Calls (places in `graph.calls`) that are one collective or message, at least two of them."""
    table = trace["collectives"]
    keys = zip(*(table[name].tolist() for name in ("rank", "start", "end", "op")), strict=True)
    row_of = {(rank, start, end, trace.names[op]): row for row, (rank, start, end, op) in enumerate(keys)}
    call_of = np.full(len(table), NONE, np.int64)
    for place, call in enumerate(graph.calls):
        row = row_of.get((call.rank, call.start, call.end, call.op))
        if row is not None:
            call_of[row] = place
    return [*_of(matched.instances, call_of), *_of(matched.partial, call_of)]


def _of(instances: Instances, call_of: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[list[int]]:
    calls = call_of[instances.rows]
    bounds = instances.bounds.tolist()
    found = (calls[low:high] for low, high in pairwise(bounds))
    # Where some of an operation's ranks lie outside the replayed steps, those inside keep what they measured.
    return [own.tolist() for own in found if len(own) > 1 and bool((own >= 0).all())]
