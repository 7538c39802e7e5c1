"""Messages of a pipeline received beside compute: each receive posted before the kernels launched before it."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.changes import EarlyMessages
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import EDGE_COLUMNS, Edge, EdgeRow, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting
from gpuscope.analyzers.replay.rewrites.early_issue import EarlyIssue
from gpuscope.trace.columns.distinct import distinct_pairs
from gpuscope.trace.columns.table import Times
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import Kind


def early_messages(graph: Graph, change: EarlyMessages, setting: Setting) -> Rewritten:
    """A receive is issued right behind the message before those kernels, else with the first of them in its step."""
    del change, setting
    done = replay(graph)  # computations may have been put into another order
    timed = graph.with_nodes(start=done.start, end=done.end)
    issue, moved = EarlyIssue(timed), np.zeros(len(graph), np.bool_)
    rows: list[EdgeRow] = []
    for arrival, earlier in _earlier(timed):
        moved[arrival] = True
        rows += issue.edges(arrival, arrival, earlier)
    if not rows:
        raise UnreplayableError("no message is received behind kernels whose launch is recorded")
    old = moved[graph.edges["dst"]] & np.isin(graph.edges["why"], (Edge.LAUNCH, Edge.EVENT))
    return Rewritten(
        graph.keep_edges(~old).add([], rows), f"{int(moved.sum())} receives posted before the kernels before them"
    )


def _earlier(graph: Graph) -> list[tuple[int, int]]:
    """Arrivals of receives, and by how many ns each can be issued earlier."""
    nodes = graph.nodes
    src, dst, _, why = (graph.edges[name] for name in EDGE_COLUMNS)
    op = np.array([call.op for call in graph.calls] + [""])[nodes["call"]]
    launch = why == Edge.LAUNCH
    at, node = nodes["end"][src[launch]], dst[launch]
    message = graph.of(Node.ARRIVAL)[node] & np.isin(op[node], tuple(POINT_TO_POINT))
    kernel = graph.of(Node.DEVICE)[node] & (nodes["work"][node] == Kind.COMPUTE)
    found: list[tuple[int, int]] = []
    for rank, step in distinct_pairs(nodes["rank"], nodes["step"])[0]:
        own = (nodes["rank"][node] == rank) & (nodes["step"][node] == step)
        messages, kernels = np.sort(at[own & message]), np.sort(at[own & kernel])
        received = own & message & (op[node] == "recv")
        for arrival, now in zip(node[received].tolist(), at[received].tolist(), strict=True):
            before = kernels[: np.searchsorted(kernels, now)]
            if len(before):
                found.append((arrival, now - _behind(messages, before)))
    return found


def _behind(messages: Times, kernels: Times) -> int:
    """When the last message before the last of these kernels was issued, else the first of them."""
    place = int(np.searchsorted(messages, kernels[-1], "right")) - 1
    return int(messages[place]) if place >= 0 else int(kernels[0]) - 1
