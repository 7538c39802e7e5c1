"""Messages of a pipeline received beside compute: each receive posted before the kernels launched before it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.changes import EarlyMessages
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import EDGE_COLUMNS, Edge, EdgeRow, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, edges_into
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
    launch = edges_into(graph, moved, Edge.LAUNCH)
    source = dict(zip(*(graph.edges[name][launch].tolist() for name in ("dst", "src")), strict=True))
    found = _issued(graph.keep_edges(~(launch | edges_into(graph, moved, Edge.EVENT))), source, rows)
    return Rewritten(found, f"{int(moved.sum())} receives posted before the kernels before them")


def _issued(graph: Graph, source: Mapping[int, int], rows: Sequence[EdgeRow]) -> Graph:
    """With arrivals launched by these edges, each by a segment of the host of its own behind the one that is named. It
    takes what the issue took of the segment that was its `source`."""
    program = graph.edges["why"] == Edge.PROGRAM
    after = dict(zip(graph.edges["src"][program].tolist(), graph.edges["dst"][program].tolist(), strict=True))
    dur, chain = graph.nodes["dur"].copy(), dict(after)
    added: list[dict[str, int]] = []
    edges: list[EdgeRow] = []
    for host, arrival, lag, why in rows:
        if why == Edge.LAUNCH and host in chain and host != source[arrival]:
            new, cost = len(graph) + len(added), graph.calls[int(graph.nodes["call"][arrival])].issue
            moved = min(cost, int(dur[source[arrival]]))
            dur[source[arrival]] -= moved
            own = {name: int(graph.nodes[name][host]) for name in ("rank", "step", "thread")}
            added.append({"kind": Node.HOST, "dur": moved, **own})
            chain[host], chain[new] = new, chain[host]
            edges.append((new, arrival, lag, why))
        else:
            edges.append((host, arrival, lag, why))
    changed = [(src, dst, 0, int(Edge.PROGRAM)) for src, dst in chain.items() if after.get(src) != dst]
    left = program & np.isin(graph.edges["src"], [src for src, _, _, _ in changed])
    return graph.with_nodes(dur=dur).keep_edges(~left).add(added, [*changed, *edges])


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
