"""One rank made as fast as its peers, or its work shared by them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.changes import ReplacedRank, SharedWork
from gpuscope.analyzers.replay.graph import CAUSES, EDGE_COLUMNS, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, on_host, weights
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.schema import Kind

Sums = dict[int, dict[int, int]]
"""ns by rank and key."""


def replaced_rank(graph: Graph, change: ReplacedRank, setting: Setting) -> Rewritten:
    """Its host segments and compute take, stretch by stretch, what the median of its peers takes: of the ranks of its
    stage that are not replaced too. So do its launches until what they launch may begin.

    A stretch lies between two collectives of a step, where all ranks issue as many; else it is the step.
    """
    if setting.stand_ins.get(change.rank) in setting.replaced:
        return Rewritten(graph, f"rank {change.rank} like the one that stands for it")
    _need_peers(graph, change.rank)
    peers = _peers_of(graph, change.rank, setting)
    asked = change, peers
    known: tuple[object, Rewritten] | None = graph.memo.get(ReplacedRank)
    if known is None or known[0] != asked:  # alike in each case of the range; kept is one graph
        known = graph.memo[ReplacedRank] = asked, _as_peers(graph, change.rank, peers, setting)
    return known[1]


def _as_peers(graph: Graph, late: int, peers: Sequence[int], setting: Setting) -> Rewritten:
    counts = weights(setting, peers)
    host = on_host(graph)
    device = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    stretch = _stretches(graph)
    dur = graph.nodes["dur"].astype(np.float64)
    columns: dict[str, Array] = {}
    for which, key in ((host, stretch), (device, graph.nodes["step"])):
        sums = _sums(graph, which, key, setting)
        ratio = {place: _median(sums, place, peers, counts) / ns for place, ns in sums[late].items() if ns > 0}
        own = which & (graph.nodes["rank"] == late)
        factor = np.ones(len(graph))
        factor[own] = [ratio.get(int(k), 1.0) for k in key[own]]
        dur *= factor
        if which is host:
            columns = {name: np.rint(graph.nodes[name] * np.minimum(factor, 1)).astype(np.int64) for name in CAUSES}
    found = graph.with_nodes(dur=np.rint(dur).astype(np.int64), **columns)
    found = found.with_edges(lag=_launched_as_peers(graph, late, peers))
    like = f"rank {peers[0]}" if len(peers) == 1 else f"the median of its {len(peers)} peers"
    return Rewritten(
        found,
        f"rank {late} computes between collectives as long as {like}",
    )


def _launched_as_peers(graph: Graph, late: int, peers: Sequence[int]) -> Times:
    """The lags of edges, those of its launches as much shorter or longer as the peers' are in the median, by what is
    launched: a call takes a slow host longer until the device sees it, too."""
    _, dst, lag, why = (graph.edges[name] for name in EDGE_COLUMNS)
    rank, work = graph.nodes["rank"][dst], graph.nodes["work"][dst]
    found = lag.copy()
    for kind in distinct_values(work[(why == Edge.LAUNCH) & (rank == late)]).tolist():
        launches = (why == Edge.LAUNCH) & (work == kind)
        own, theirs = launches & (rank == late), launches & np.isin(rank, peers)
        if theirs.any() and (usual := float(np.median(lag[own]))) > 0:
            found[own] = np.rint(lag[own] * (np.median(lag[theirs]) / usual))
    return found


def _peers_of(graph: Graph, rank: int, setting: Setting) -> list[int]:
    others = [other for other in graph.ranks if other != rank]
    alike = [other for other in others if setting.stage_of.get(other) == setting.stage_of.get(rank)] or others
    return [other for other in alike if other not in setting.replaced] or alike


def shared_work(graph: Graph, change: SharedWork, setting: Setting) -> Rewritten:
    """What it computes beyond the median of its peers shared evenly by all n ranks: each gets 1/n of it. Without a rank
    all compute the mean of what they do in a step.

    Step by step on devices, kernel by kernel where all ranks run the same (an optimizer's take no longer on more data);
    where training threads compute, stretch by stretch (`replaced_rank`).
    """
    _need_peers(graph, graph.ranks[0] if change.rank is None else change.rank)
    computes = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    key = _kernels(graph, computes)
    if not computes.any():
        computes, key = graph.of(Node.HOST), _stretches(graph)
    sums = _sums(graph, computes, key, setting)
    factor = np.ones(len(graph))
    for rank in graph.ranks:
        ratio = {}
        for place in sums[rank if change.rank is None else change.rank]:
            own = sums[rank].get(place, 0)
            given = _given(sums, place, rank, change.rank, setting)
            ratio[place] = max(0.0, 1 + given / own) if own > 0 else 1.0
        mine = np.flatnonzero(computes & (graph.nodes["rank"] == rank))
        factor[mine] = [ratio.get(place, 1.0) for place in key[mine].tolist()]
    found = graph.with_nodes(dur=np.rint(graph.nodes["dur"] * factor).astype(np.int64))
    whose = "all compute in a step" if change.rank is None else f"rank {change.rank} computes beyond its peers"
    return Rewritten(found, f"what {whose} shared by all {sum(weights(setting, sums))} ranks")


def _given(sums: Sums, place: int, rank: int, late: int | None, setting: Setting) -> float:
    """ns that a rank gets of what is shared: less than none where it gives."""
    if late is None:
        computed = [own.get(place, 0) for own in sums.values()]
        return float(np.average(computed, weights=weights(setting, sums))) - sums[rank][place]
    peers = [other for other in sums if other != late]
    extra = sums[late][place] - _median(sums, place, peers, weights(setting, peers))
    return extra / sum(weights(setting, sums)) - (extra if rank == late else 0.0)


def _need_peers(graph: Graph, rank: int) -> None:
    """Raises `UnreplayableError`."""
    if rank not in graph.marks:
        raise UnreplayableError(f"rank {rank} is not replayed: give its trace too")
    if len(graph.ranks) < 2:
        raise UnreplayableError("the other ranks are not there: record all of them")


def _stretches(graph: Graph) -> Times:
    """Per node, the step and how many collectives its rank's host has issued in it, as one number."""
    issue = np.zeros(len(graph), np.int64)
    arrival = graph.of(Node.ARRIVAL) & (graph.nodes["call"] >= 0)
    launch = (graph.edges["why"] == Edge.LAUNCH) & arrival[graph.edges["dst"]]
    np.add.at(issue, graph.edges["src"][launch], 1)
    found = np.zeros(len(graph), np.int64)
    steps = int(graph.nodes["step"].max()) + 1
    # Nodes of a rank's host stand in its order.
    hosts = np.flatnonzero(graph.of(Node.HOST, Node.WAIT) & (graph.nodes["step"] >= 0))
    place = np.searchsorted(graph.ranks, graph.nodes["rank"][hosts]) * steps + graph.nodes["step"][hosts]
    order = np.argsort(place, kind="stable")
    hosts, place = hosts[order], place[order]
    behind = np.cumsum(issue[hosts])
    counts = np.bincount(place, issue[hosts], len(graph.ranks) * steps).astype(np.int64)
    found[hosts] = behind - issue[hosts] - (np.cumsum(counts) - counts)[place]
    even = not np.ptp(counts.reshape(-1, steps), axis=0).any()
    width = int(counts.max(initial=0)) + 2
    return np.asarray(graph.nodes["step"] * width + (found if even else 0))


def _kernels(graph: Graph, computes: Mask) -> Times:
    """Per node its step and, where all ranks run as many of each kernel in it, its kernel, as one number."""
    nodes, step = graph.nodes, graph.nodes["step"]
    width = int(nodes["kernel"].max(initial=0)) + 2
    found = step * width + nodes["kernel"] + 1
    for which in distinct_values(step[computes]).tolist():
        mine = computes & (step == which)
        kinds, of = np.unique(found[mine], return_inverse=True)
        rank = np.searchsorted(graph.ranks, nodes["rank"][mine])
        counts = np.bincount(rank * len(kinds) + of, minlength=len(graph.ranks) * len(kinds))
        if np.ptp(counts.reshape(len(graph.ranks), -1), axis=0).any():
            found[mine] = which * width
    return found


def _median(sums: Sums, key: int, ranks: Sequence[int], counts: Sequence[int]) -> float:
    """The median time of these ranks, each counted so often."""
    return float(np.median(np.repeat([sums[rank].get(key, 0) for rank in ranks], counts)))


def _sums(graph: Graph, which: Mask, key: Times, setting: Setting) -> Sums:
    """ns of these nodes, undisturbed: kernels of the ranks that wait run beside the collective that they wait in."""
    dur = graph.nodes["dur"].astype(np.float64)
    if setting.alone is not None:
        dur[: len(setting.alone)] *= setting.alone
    sums: Sums = {own: {} for own in graph.ranks}
    nodes = np.flatnonzero(which)
    width = int(key.max(initial=0)) + 1
    both, place = np.unique(graph.nodes["rank"][nodes] * width + key[nodes], return_inverse=True)
    total = np.bincount(place, dur[nodes], len(both)).astype(np.int64)
    for one, ns in zip(both.tolist(), total.tolist(), strict=True):
        sums[one // width][one % width] = ns
    return sums
