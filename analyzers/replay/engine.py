"""When everything happens: each node starts as soon as all it waits for has ended.

The longest path through the graph, O(nodes + edges), in topological order by Kahn's algorithm: compiled where there is
a native core, else with plain integers, since chains are long and levels too narrow for numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuscope.analyzers.replay.graph import Graph
from gpuscope.native import core
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA


class CircleError(Exception):
    """Nodes wait for each other in a circle."""


_CORE: Any = getattr(core, "longest_path", None)


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
    release = graph.nodes["release"]
    # What has no release begins with the earliest that has one: nothing replayed is older.
    known = release[release != NA]
    start = np.where(release == NA, int(known.min()) if len(known) else 0, release)
    return _in_python(graph, start) if _CORE is None else _compiled(graph, start)


def _compiled(graph: Graph, start: Times) -> Replayed:
    columns = (graph.edges["src"], graph.edges["dst"], graph.edges["lag"], graph.nodes["dur"])
    end = np.zeros(len(graph), np.int64)
    done = _CORE(*(np.ascontiguousarray(column, np.int64) for column in columns), start, end)
    _check_all(done, len(graph))
    return Replayed(start, end)


def _in_python(graph: Graph, earliest: Times) -> Replayed:
    count = len(graph)
    src, dst = graph.edges["src"], graph.edges["dst"]
    order = np.argsort(src, kind="stable")
    first = np.searchsorted(src[order], np.arange(count + 1)).tolist()
    target, lag = dst[order].tolist(), graph.edges["lag"][order].tolist()
    left = np.bincount(dst, minlength=count).tolist()
    start = earliest.tolist()
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
    _check_all(done, count)
    return Replayed(np.array(start, np.int64), np.array(end, np.int64))


def _check_all(done: int, count: int) -> None:
    if done != count:
        raise CircleError(f"{count - done} operations wait for each other in a circle")
