"""When everything happens: each node starts as soon as all it waits for has ended.

The longest path through the graph, O(nodes + edges): the topological order by Kahn's algorithm, with plain
integers, since chains are long and levels narrow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.analyzers.replay.graph import Graph
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA


class CircleError(Exception):
    """Nodes wait for each other in a circle."""


@dataclass(frozen=True)
class Replayed:
    """ns per node, on the run's clock."""

    start: Times
    end: Times

    def steps(self, graph: Graph) -> dict[int, Times]:
        """ns of each replayed step, by rank."""
        return {rank: np.diff(self.start[marks]) for rank, marks in graph.marks.items()}


def replay(graph: Graph) -> Replayed:
    """Start and end of every node. Raises `CircleError`."""
    count = len(graph)
    src, dst = graph.edges["src"], graph.edges["dst"]
    order = np.argsort(src, kind="stable")
    first = np.searchsorted(src[order], np.arange(count + 1)).tolist()
    target, lag = dst[order].tolist(), graph.edges["lag"][order].tolist()
    left = np.bincount(dst, minlength=count).tolist()
    release = graph.nodes["release"]
    # What has no release begins with the earliest that has one: nothing replayed is older.
    known = release[release != NA]
    origin = int(known.min()) if len(known) else 0
    start = np.where(release == NA, origin, release).tolist()
    dur = graph.nodes["dur"].tolist()
    end = [0] * count
    ready = [node for node in range(count) if not left[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        at = end[node] = start[node] + dur[node]
        for place in range(first[node], first[node + 1]):
            behind = target[place]
            since = at + lag[place]
            if since > start[behind]:
                start[behind] = since
            left[behind] -= 1
            if not left[behind]:
                ready.append(behind)
    if done != count:
        raise CircleError(f"{count - done} operations wait for each other in a circle")
    return Replayed(np.array(start, np.int64), np.array(end, np.int64))
