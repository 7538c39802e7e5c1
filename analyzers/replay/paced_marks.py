"""Steps that begin with a copy on a stream of its own: by the kernels behind it, since copies may run steps ahead."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.schema import Kind


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
