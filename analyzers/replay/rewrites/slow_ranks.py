"""One rank made as fast as its peers."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.analyzers.frame.changes import ReplacedRank
from gpuscope.analyzers.replay.graph import CAUSES, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting
from gpuscope.report.view import units
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.schema import Kind

Sums = dict[int, dict[int, int]]
"""ns by rank and key."""


def replaced_rank(graph: Graph, change: ReplacedRank, setting: Setting) -> Rewritten:
    """Its host segments and compute take, stretch by stretch, what the median of its peers takes.

    A stretch lies between two collectives of a step, where all ranks issue as many; else it is the step.
    """
    del setting
    if change.rank not in graph.marks:
        raise UnreplayableError(f"rank {change.rank} is not replayed: give its trace too")
    if len(graph.ranks) < 2:
        raise UnreplayableError("the other ranks are not there: record all of them")
    host = graph.of(Node.HOST)
    device = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    stretch = _stretches(graph)
    dur = graph.nodes["dur"].astype(np.float64)
    columns: dict[str, Array] = {}
    for which, key in ((host, stretch), (device, graph.nodes["step"])):
        ratio = _ratios(graph, which, key, change.rank)
        own = which & (graph.nodes["rank"] == change.rank)
        factor = np.ones(len(graph))
        factor[own] = [ratio.get(int(k), 1.0) for k in key[own]]
        dur *= factor
        if which is host:
            columns = {name: np.rint(graph.nodes[name] * np.minimum(factor, 1)).astype(np.int64) for name in CAUSES}
    found = graph.with_nodes(dur=np.rint(dur).astype(np.int64), **columns)
    return Rewritten(
        found,
        f"rank {change.rank} with the median time of {units.plural(len(graph.ranks) - 1, 'peer')} between collectives",
    )


def _stretches(graph: Graph) -> Times:
    """Per node, the step and how many collectives its rank's host has issued in it, as one number."""
    issue = np.zeros(len(graph), np.int64)
    arrival = graph.of(Node.ARRIVAL) & (graph.nodes["call"] >= 0)
    launch = (graph.edges["why"] == Edge.LAUNCH) & arrival[graph.edges["dst"]]
    np.add.at(issue, graph.edges["src"][launch], 1)
    found = np.zeros(len(graph), np.int64)
    counts: dict[int, list[int]] = defaultdict(list)
    steps = int(graph.nodes["step"].max()) + 1
    # Nodes of a rank's host stand in its order.
    for rank in graph.ranks:
        own = np.flatnonzero((graph.nodes["rank"] == rank) & graph.of(Node.HOST, Node.WAIT))
        for step in range(steps):
            mine = own[graph.nodes["step"][own] == step]
            before = np.cumsum(issue[mine]) - issue[mine]
            found[mine] = before
            counts[step].append(int(issue[mine].sum()))
    even = all(len(set(own)) == 1 for own in counts.values())
    width = max((max(own) for own in counts.values()), default=0) + 2
    return np.asarray(graph.nodes["step"] * width + (found if even else 0))


def _ratios(graph: Graph, which: Mask, key: Times, rank: int) -> dict[int, float]:
    """Per key, the median of the peers' time by the rank's own."""
    sums: Sums = {own: defaultdict(int) for own in graph.ranks}
    nodes = np.flatnonzero(which)
    columns = (graph.nodes["rank"][nodes], key[nodes], graph.nodes["dur"][nodes])
    for own, place, ns in zip(*(column.tolist() for column in columns), strict=True):
        sums[own][place] += ns
    found: dict[int, float] = {}
    for place, ns in sums[rank].items():
        peers = [sums[other].get(place, 0) for other in graph.ranks if other != rank]
        if ns > 0:
            found[place] = float(np.median(peers)) / ns
    return found
