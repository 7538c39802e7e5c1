"""The critical path of a recording: the chain of operations, each of which the next one waited for, that ends last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from gpuscope.analyzers.replay.engine import Replayed
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.trace.schema import NA, Kind
from gpuscope.when_used import dataclass

On = Literal["host", "device", "communication"]


@dataclass(frozen=True)
class PathSpan:
    """A stretch of the path on one rank, from where the one before it ends; as recorded, ns on the rank's own clock."""

    rank: int
    start: int
    end: int
    on: On


def critical_path(graph: Graph, done: Replayed, offset: Mapping[int, int]) -> list[PathSpan]:
    """In order of time, neighbours of one kind on one rank as one; `offset` is what a rank's clock shows beyond the
    graph's. What begins when it is released, not when something before it ends, begins the path."""
    ends = [int(marks[-1]) for marks in graph.marks.values() if len(marks)]
    if not ends:
        return []
    source, target, lag = (graph.edges[name] for name in ("src", "dst", "lag"))
    tight = np.flatnonzero(done.end[source] + lag == done.start[target])
    tight = tight[np.argsort(target[tight], kind="stable")]
    first = np.searchsorted(target[tight], np.arange(len(graph) + 1))
    node, path = max(ends, key=lambda one: int(done.start[one])), []
    while True:
        path.append(node)
        if first[node] == first[node + 1]:
            break
        # Of several that end at once the one that took longest: marks and joins take no time.
        before = source[tight[first[node] : first[node + 1]]]
        node = int(before[np.argmax(done.end[before] - done.start[before])])
    return _spans(graph, path[::-1], offset)


def _spans(graph: Graph, path: list[int], offset: Mapping[int, int]) -> list[PathSpan]:
    nodes, found, reached = graph.nodes, list[PathSpan](), -(1 << 62)
    for node in path:
        start, end, rank = (int(nodes[name][node]) for name in ("start", "end", "rank"))
        if start == NA or end <= max(start, reached):
            continue
        start, reached = max(start, reached), end  # what waits has begun before what it waits for ends
        on, by = _on(int(nodes["kind"][node]), int(nodes["work"][node])), offset.get(rank, 0)
        last = found[-1] if found else None
        if last is not None and (last.rank, last.on) == (rank, on):
            found[-1] = PathSpan(rank, last.start, max(end + by, last.end), on)
        else:
            found.append(PathSpan(rank, start + by, end + by, on))
    return found


def _on(kind: int, work: int) -> On:
    if kind in (Node.HOST, Node.WAIT):
        return "host"
    return "device" if kind == Node.DEVICE and work != Kind.COMMUNICATION else "communication"
