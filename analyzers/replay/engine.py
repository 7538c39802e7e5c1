"""When everything happens: each node starts as soon as all it waits for has ended.

The longest path through the graph, O(nodes + edges).
"""

from __future__ import annotations

import numpy as np

from gpuscope import native
from gpuscope.analyzers.replay.graph import Graph
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass


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
    release = graph.nodes["release"]
    # What has no release begins with the earliest that has one: nothing replayed is older.
    known = release[release != NA]
    earliest = np.where(release == NA, int(known.min()) if len(known) else 0, release)
    edges = graph.edges["src"], graph.edges["dst"], graph.edges["lag"]
    start, end, done = native.longest_path(*edges, graph.nodes["dur"], earliest)
    if done != len(graph):
        raise CircleError(f"{len(graph) - done} operations wait for each other in a circle")
    return Replayed(start, end)
