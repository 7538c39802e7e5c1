"""Gradient communication in other buckets, and beside the backward pass or behind it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.replay.graph import CAUSES, EDGE_COLUMNS, NONE, Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import (
    Costs,
    Rewritten,
    Setting,
    bus_bytes,
    by_issue,
    costs,
    edges_into,
    launched_at,
    nodes_by_call,
    on_host,
    unissued,
    weights,
)
from gpuscope.analyzers.replay.rewrites.regroup import Bucket, Piece, Scale, regrouped
from gpuscope.analyzers.replay.rewrites.transfer_cost import EarlyIssue, gradients, steps_of
from gpuscope.analyzers.what_if_changes import (
    SENT_EARLY,
    AccumulatedGradients,
    BucketSize,
    Overlap,
    ReplacedRank,
    SharedWork,
)
from gpuscope.trace.schema import Kind
from gpuscope.trace.table import Array, Mask, Times, distinct_values

# One rank made as fast as its peers, or its work shared by them.

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


FEWEST = 3
"""Transfers from which a mean is taken."""


def bucket_size(graph: Graph, change: BucketSize, setting: Setting) -> Rewritten:
    """Gradients in buckets that close once they hold `size` bytes, as DDP's do."""
    if change.size < 1:
        raise UnreplayableError("a bucket needs at least a byte")
    calls, found = gradients(graph), costs(graph, setting, alike=not setting.complete)
    if _module_by_module(graph, calls):
        raise UnreplayableError("gradients are scattered module by module here: there are no buckets, group modules")
    first = change.size if change.first is None else change.first
    if _as_they_are(graph, calls, change.size, first):
        return Rewritten(graph, "gradients come in such buckets already", found.provenance(graph, calls))
    _need_cores(setting)
    scale = scales(graph, calls, found, setting)
    changed = regrouped(graph, calls, lambda own: buckets(own, change.size, first), found, scale, key=change)
    known = all(graph.calls[call].gradients for call in calls)
    when = "gradients as they became ready" if known else "gradients within a bucket assumed to become ready evenly"
    basis = f"{found.basis(graph, calls)}; {when}"
    lacking = found.lacking(graph, calls)
    if not known and any(graph.calls[call].by_structure for call in calls):
        lacking = lacking or "when each gradient is ready is not recorded"
    return Rewritten(changed, basis, found.provenance(graph, calls), lacking)


def _module_by_module(graph: Graph, calls: Sequence[int]) -> bool:
    """Whether gradients are scattered with parameters gathered in between (FSDP, ZeRO-3), or by operators known to do
    so; scattered alone they come in buckets (ZeRO-1 and 2, Megatron's distributed optimizer)."""
    scattered = [call for call in calls if graph.calls[call].op == "reduce_scatter"]
    if not scattered or not all(graph.calls[call].by_structure for call in scattered):
        return bool(scattered)
    arrival = nodes_by_call(graph, Node.ARRIVAL)
    gathered = [call for call, own in enumerate(graph.calls) if own.op == "all_gather" and arrival[call] >= 0]
    at = launched_at(graph)[arrival]
    starts = {rank: np.sort([at[call] for call in gathered if graph.calls[call].rank == rank]) for rank in graph.ranks}
    for own in _by_step(graph, scattered).values():
        times = starts[graph.calls[own[0]].rank]
        if np.searchsorted(times, at[own[0]]) != np.searchsorted(times, at[own[-1]]):
            return True
    return False


def _as_they_are(graph: Graph, calls: Sequence[int], size: int, first: int) -> bool:
    """Whether each step's collectives of gradients hold what buckets of that size would hold."""

    def same(own: Sequence[int]) -> bool:
        made = buckets([graph.calls[call] for call in own], size, first)
        return [{piece.old for piece in bucket} for bucket in made] == [{place} for place in range(len(own))]

    return bool(calls) and all(same(own) for own in _by_step(graph, calls).values())


def _by_step(graph: Graph, calls: Sequence[int]) -> dict[tuple[int, int], list[int]]:
    """Calls of each rank's step, in the order of their issue."""
    node = nodes_by_call(graph, Node.ARRIVAL)
    present = [call for call in calls if node[call] >= 0]
    own: dict[tuple[int, int], list[int]] = defaultdict(list)
    step = steps_of(graph, present)
    for call in by_issue(graph, present):
        own[graph.calls[call].rank, step[call]].append(call)
    return own


def accumulated(graph: Graph, change: AccumulatedGradients, setting: Setting) -> Rewritten:
    """All-reduces of gradients but those of a step's last micro-batch take no time, and nobody waits for them.

    Each micro-batch has as many buckets.
    """
    del setting
    if change.micro_batches < 2:
        raise UnreplayableError("gradients are reduced once in a step")
    kept, gone = 0, np.zeros(len(graph), np.bool_)
    left: list[int] = []
    of = graph.nodes["call"]
    for calls in _by_step(graph, gradients(graph)).values():
        passes = {graph.calls[call].passes for call in calls}
        own = [call for call in calls if graph.calls[call].passes == max(passes)]
        if len(passes) != change.micro_batches:  # not recorded
            if len(calls) % change.micro_batches:
                raise UnreplayableError(f"a step's gradient collectives are no {change.micro_batches} times as many")
            own = calls[-(len(calls) // change.micro_batches) :]
        kept += len(own)
        left += [call for call in calls if call not in own]
    gone |= np.isin(of, left) & graph.of(Node.ARRIVAL, Node.TRANSFER)
    if not gone.any():
        raise UnreplayableError(
            "no step repeats its buckets: gradients are reduced once, or their sizes are not recorded"
        )
    joins = edges_into(graph, gone & graph.of(Node.TRANSFER), Edge.JOIN) & graph.of(Node.JOIN)[graph.edges["src"]]
    held = gone[graph.edges["src"]] & (graph.edges["why"] == Edge.SYNC)
    changed = graph.keep_edges(~(joins | held)).with_nodes(dur=np.where(gone, 0, unissued(graph, left)))
    return Rewritten(changed, f"{int((gone & graph.of(Node.TRANSFER)).sum())} all-reduces left out, {kept} kept")


def buckets(calls: Sequence[Call], size: int, first: int) -> list[Bucket]:
    """Old buckets cut and joined into new ones that close with at least `size` bytes, the `first` of a backward pass
    apart, and at the end of one.

    They are cut between gradients where these are known, else into even parts.
    """
    made: list[list[Piece]] = []
    held, limit, passes = 0, first, NONE
    for old, call in enumerate(calls):
        for piece in _pieces(old, call, size):
            if call.passes != passes or held >= limit:
                limit = first if call.passes != passes else size
                held, passes = 0, call.passes
                made.append([])
            made[-1].append(piece)
            held += piece.bytes
    return list(made)


def _pieces(old: int, call: Call, size: int) -> list[Piece]:
    if call.gradients:
        # What is sent behind the backward pass stays there: when it is sent is another change.
        return [Piece(old, part.bytes, early=part.early if call.backward else 0) for part in call.gradients]
    nbytes = call.bytes or 0
    parts = max(1, nbytes // size)
    return [
        Piece(old, nbytes * (part + 1) // parts - nbytes * part // parts, (part + 1) / parts) for part in range(parts)
    ]


def scales(graph: Graph, calls: list[int], found: Costs, setting: Setting) -> Scale:
    """What transfers took in fact by what the models expect: of the last of a step, and of those before.

    While the backward pass goes on, transfers share cores, memory and links with it and with each other; the last one
    has them alone, unless one before it is late.
    """
    last = {own[-1] for own in _by_step(graph, calls).values()}
    worse = 1 + setting.bias * max(found.error(graph, call) for call in calls)
    undisturbed = _undisturbed(graph, calls, last)
    alone = _taken(graph, undisturbed, found)
    beside = _taken(graph, [call for call in calls if call not in last], found) or alone
    if setting.gpu:
        return Scale(worse * beside, worse * alone)
    # On a CPU threads are late to take a message up, which is no longer for a larger one.
    late = (alone - 1) * _expected(graph, undisturbed, found) / len(undisturbed)
    return Scale(worse * beside, worse, worse * late) if late > 0 else Scale(worse * beside, worse * alone)


def _undisturbed(graph: Graph, calls: list[int], last: set[int]) -> list[int]:
    """Of the last transfers of steps, those that began with no other in flight; all, if that is hardly any."""
    node = nodes_by_call(graph, Node.TRANSFER)
    end = graph.nodes["end"][node]
    start, rank = end - graph.nodes["dur"][node], graph.nodes["rank"][node]
    own = np.array(calls)
    free = [
        call
        for call in own.tolist()
        if call in last
        and not bool(((rank[own] == rank[call]) & (start[own] < start[call]) & (end[own] > start[call])).any())
    ]
    return free if len(free) >= FEWEST else sorted(last)


def _taken(graph: Graph, calls: list[int], found: Costs) -> float:
    return float(sum(int(found.transfer[call]) for call in calls) / max(_expected(graph, calls, found), 1))


def _expected(graph: Graph, calls: list[int], found: Costs) -> int:
    return sum(found.model(graph, call).expected(bus_bytes(graph, call) or 0.0) for call in calls)


def overlap(graph: Graph, change: Overlap, setting: Setting) -> Rewritten:
    """Gradient communication only once the last of a step is issued, or each as soon as its gradients are there."""
    if change.on:
        return _beside(graph, setting)
    calls, node = gradients(graph), nodes_by_call(graph, Node.ARRIVAL)
    if any(graph.calls[call].op == "reduce_scatter" for call in calls):
        raise UnreplayableError("gradients are scattered module by module here, and waited for in between")
    place_of = np.flatnonzero(np.isin(graph.edges["why"], (Edge.LAUNCH, Edge.EVENT)))
    into: dict[int, list[int]] = defaultdict(list)
    for place, dst in zip(place_of.tolist(), graph.edges["dst"][place_of].tolist(), strict=True):
        into[dst].append(place)
    edges: list[tuple[int, int, int, int]] = []
    for *earlier, final in _by_step(graph, calls).values():
        issue = [[int(graph.edges[name][place]) for name in ("src", "lag", "why")] for place in into[int(node[final])]]
        edges += [(src, int(node[call]), lag, why) for call in earlier for src, lag, why in issue]
    return Rewritten(graph.add([], edges), "every gradient bucket waits for the last one's issue")


def _need_cores(setting: Setting) -> None:
    """Raises `UnreplayableError` where buckets would take cores from the backward pass and it is unknown how many."""
    if not setting.gpu and not setting.cores_known:
        raise UnreplayableError(
            "on a CPU the threads that communicate take cores from the backward pass, and the trace does not record "
            "what that costs: gpuscope record counts it, where nothing else holds the cores"
        )


def _beside(graph: Graph, setting: Setting) -> Rewritten:
    """Each collective of gradients issued with the last one that it holds."""
    early = {place: call.gradients[-1].early for place, call in enumerate(graph.calls) if call.gradients}
    early = {place: ns for place, ns in early.items() if ns > 0}
    assumed = not early and not any(call.gradients for call in graph.calls)
    if assumed:
        early = _evenly_ready(graph, setting)
    if (
        not early
        and (assumed or any(call.gradients for call in graph.calls))
        and any(call.by_structure or call.gradients for call in graph.calls)
    ):
        raise UnreplayableError("gradients are sent during the backward pass already", SENT_EARLY)
    if not early:
        raise UnreplayableError(
            "the trace does not record when each gradient is ready: record operators with their shapes"
        )
    _need_cores(setting)
    node, issue = nodes_by_call(graph, Node.ARRIVAL), EarlyIssue(graph)
    moved = np.zeros(len(graph), np.bool_)
    moved[node[list(early)]] = True
    edges = [edge for call, ns in early.items() for edge in issue.edges(int(node[call]), int(node[call]), ns)]
    changed = graph.keep_edges(~edges_into(graph, moved, Edge.LAUNCH, Edge.EVENT)).add([], edges)
    basis = f"{len(early)} collectives issued when their gradients were ready, with the same bytes each"
    if not assumed:
        return Rewritten(changed, basis)
    lacking = "when each gradient is ready is not recorded, evenly in the last two thirds of the compute is assumed"
    return Rewritten(changed, f"{basis}; {lacking}", "assumed", lacking)


FORWARD = {-1: 1 / 4, 0: 1 / 3, 1: 1 / 2}
"""Of the compute launched before gradients are sent what comes before the first of them is ready, by case: a backward
pass takes twice the time of a forward pass, three times with recomputation."""


def _evenly_ready(graph: Graph, setting: Setting) -> dict[int, int]:
    """By call of gradients that are sent behind the backward pass by their place in the step: how much sooner its share
    of them was ready, if they come evenly while the backward pass is launched."""
    calls = [place for place, call in enumerate(graph.calls) if call.by_structure and call.behind]
    if not calls:
        return {}
    at, arrival, nodes = launched_at(graph), nodes_by_call(graph, Node.ARRIVAL), graph.nodes
    compute = np.flatnonzero(graph.of(Node.DEVICE) & (nodes["work"] == Kind.COMPUTE))
    early: dict[int, int] = {}
    for (rank, step), own in _by_step(graph, calls).items():
        first = int(at[arrival[own[0]]])
        before = compute[(nodes["rank"][compute] == rank) & (nodes["step"][compute] == step) & (at[compute] < first)]
        if not len(before):
            continue
        before = before[np.argsort(at[before], kind="stable")]
        spent = np.cumsum(nodes["dur"][before])
        sizes = np.cumsum([graph.calls[call].bytes or 0 for call in own])
        forward = FORWARD[setting.bias]
        for call, share in zip(own, (sizes / max(sizes[-1], 1)).tolist(), strict=True):
            ready = np.searchsorted(spent, spent[-1] * (forward + (1 - forward) * share))
            launched = int(at[before[min(int(ready), len(before) - 1)]])
            early[call] = max(0, int(at[arrival[call]]) - launched)
    return {call: ns for call, ns in early.items() if ns > 0}
