"""Two threads of gloo take up neighbouring collectives in either order; what counts is the order of issue."""

from __future__ import annotations

from gpuscope.analyzers.replay.graph import Call, Edge, Graph, Node, edge_columns, node_columns
from gpuscope.analyzers.replay.rewrite import by_issue


def test_the_second_one_started_first() -> None:
    host = {"kind": Node.HOST, "rank": 0}
    nodes = [
        host | {"start": 0, "end": 10},
        host | {"start": 10, "end": 20},
        {"kind": Node.ARRIVAL, "rank": 0, "call": 0, "start": 35, "end": 35},
        {"kind": Node.ARRIVAL, "rank": 0, "call": 1, "start": 30, "end": 30},
    ]
    edges = [(0, 2, 25, Edge.LAUNCH), (1, 3, 10, Edge.LAUNCH)]
    calls = tuple(Call(0, "all_reduce", at, at, size, "0", 2, True) for at, size in ((35, 64), (30, 128)))
    graph = Graph(node_columns(nodes), edge_columns(edges), calls, (), {})
    assert by_issue(graph, [1, 0]) == [0, 1]
