"""The data loader with other workers: how long the consumer still waits for a batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np

from gpuscope.analyzers.host_time.fsdp_options import LIMITER
from gpuscope.analyzers.replay.engine import by_chance, replay
from gpuscope.analyzers.replay.graph import Call, Edge, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import (
    CoreUse,
    Rewritten,
    Setting,
    by_issue,
    costs,
    edges_into,
    launched_at,
    nodes_by_call,
    on_host,
    unissued,
)
from gpuscope.analyzers.replay.rewrites.gradient_buckets import scales
from gpuscope.analyzers.replay.rewrites.regroup import Bucket, Piece, regrouped
from gpuscope.analyzers.what_if_changes import (
    NOT_GATHERED_AGAIN,
    GroupModules,
    KeepParameters,
    LoaderWorkers,
    MoreLoaderWorkers,
    Prefetch,
)
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Mask, Times, distinct_values
from gpuscope.words import units

# Sharded parameters: gathered earlier, not again in the backward pass, or several modules at a time.


def gathers(graph: Graph) -> list[int]:
    """Calls that gather parameters."""
    calls = [place for place, call in enumerate(graph.calls) if call.op == "all_gather"]
    if not calls:
        raise UnreplayableError("the replayed steps hold no all-gather of parameters")
    return calls


def keep_parameters(graph: Graph, change: KeepParameters, setting: Setting) -> Rewritten:
    """No all-gather in the backward pass, nor FSDP1's wait before one. Where it turns out badly, the host still does
    what it did to issue them."""
    del change
    calls = [call for call in gathers(graph) if graph.calls[call].backward]
    if not calls:
        why = "no all-gather in the backward pass: parameters are kept, or the pass is not recorded"
        raise UnreplayableError(why, NOT_GATHERED_AGAIN)
    gone = np.zeros(len(graph), np.bool_)
    for kind in (Node.ARRIVAL, Node.TRANSFER):
        gone[nodes_by_call(graph, kind)[calls]] = True
    gone |= graph.of(Node.JOIN) & np.isin(graph.nodes["call"], calls)
    graph = _unlimited(graph, gone)
    # Stream order goes on through them, at no cost; they wait for neither other ranks nor compute.
    kept = ~(
        edges_into(graph, gone, Edge.EVENT)
        | (gone[graph.edges["src"]] & np.isin(graph.edges["why"], (Edge.SYNC, Edge.EVENT)))
    )
    joins = graph.of(Node.JOIN) & gone
    kept &= ~(joins[graph.edges["src"]] | joins[graph.edges["dst"]])
    dur = graph.nodes["dur"] if setting.bias > 0 else unissued(graph, calls)
    found = graph.with_nodes(dur=np.where(gone, 0, dur)).keep_edges(kept)
    return Rewritten(found, f"{len(calls)} all-gathers of the backward pass removed, with the host time of their issue")


def _unlimited(graph: Graph, gone: Mask) -> Graph:
    """Without FSDP1's waits for room right before it issues one of these gathers."""
    src, dst, why = (graph.edges[name] for name in ("src", "dst", "why"))
    issuing = np.zeros(len(graph), np.bool_)
    issuing[src[(why == Edge.LAUNCH) & gone[dst]]] = True
    before = np.zeros(len(graph), np.bool_)
    before[src[(why == Edge.PROGRAM) & issuing[dst]]] = True
    limiter = np.array([LIMITER in label for label in graph.labels] + [False], np.bool_)
    limiting = before & graph.blocking() & limiter[graph.nodes["site"]]
    found = graph.with_nodes(dur=np.where(limiting, 0, graph.nodes["dur"]))
    return found.keep_edges(~edges_into(graph, limiting, Edge.SYNC))


def prefetch(graph: Graph, change: Prefetch, setting: Setting) -> Rewritten:
    """Each all-gather issued with the one `depth` modules before it in its pass, or with the first.

    It then waits for what that one waited for, and stands on its stream where it is issued: ahead of the gradients of
    the modules in between. Needs memory for as many modules.
    """
    del setting
    if change.depth < 1:
        raise UnreplayableError("prefetching needs a depth of at least 1")
    node, issued, passes = nodes_by_call(graph, Node.ARRIVAL), launched_at(graph), _passes(graph, gathers(graph))
    ahead = _ahead(graph, passes)
    into: dict[int, list[int]] = defaultdict(list)
    for place in np.flatnonzero(np.isin(graph.edges["why"], (Edge.LAUNCH, Edge.EVENT))).tolist():
        into[int(graph.edges["dst"][place])].append(place)
    moved = np.zeros(len(graph), np.bool_)
    edges: list[tuple[int, int, int, int]] = []
    order = np.stack((issued, np.zeros(len(graph), np.int64)), axis=1)
    for calls in passes:
        for place, call in enumerate(calls):
            with_place = max(0, place - max(0, change.depth - ahead[call]))
            if with_place == place:
                continue
            old, new = int(node[call]), int(node[calls[with_place]])
            moved[old] = True
            order[old] = issued[new], place
            for edge in into[new]:
                src, lag, why = (int(graph.edges[name][edge]) for name in ("src", "lag", "why"))
                edges.append((src, old, lag, why))
    if not moved.any() or max(map(len, passes)) <= change.depth:
        raise UnreplayableError(f"no pass gathers more than {change.depth} modules")
    kept = ~edges_into(graph, moved, Edge.LAUNCH, Edge.EVENT)
    lanes = {(int(graph.nodes["rank"][dst]), int(graph.nodes["lane"][dst])) for dst in np.flatnonzero(moved).tolist()}
    for lane in sorted(lanes):
        again, gone = _in_order(graph, lane, order)
        edges += again
        kept &= ~gone
    changed = graph.keep_edges(kept).add([], edges)
    return Rewritten(changed, f"{int(moved.sum())} all-gathers issued {change.depth} modules ahead")


def _passes(graph: Graph, calls: Sequence[int]) -> list[list[int]]:
    """Gathers of each pass of a rank, as issued."""
    node = nodes_by_call(graph, Node.ARRIVAL)
    passes: dict[tuple[int, int, bool], list[int]] = defaultdict(list)
    for place in by_issue(graph, calls):
        call = graph.calls[place]
        passes[call.rank, int(graph.nodes["step"][node[place]]), call.backward].append(place)
    return list(passes.values())


def _ahead(graph: Graph, passes: Sequence[Sequence[int]]) -> dict[int, int]:
    """Per gather, how many modules gathered before it in its pass were not used yet when it was issued."""
    node, issued = nodes_by_call(graph, Node.ARRIVAL), launched_at(graph)
    used = _used(graph, issued)
    return {
        call: sum(used.get(other, NA) > issued[node[call]] for other in own[:place])
        for own in passes
        for place, call in enumerate(own)
    }


def _used(graph: Graph, issued: Times) -> dict[int, int]:
    """Per call, when the host launched the first operation that waited for it."""
    found: dict[int, int] = {}
    edges = graph.edges
    waited = np.flatnonzero(np.isin(edges["why"], (Edge.EVENT, Edge.SYNC)) & graph.of(Node.TRANSFER)[edges["src"]])
    for src, dst in zip(edges["src"][waited].tolist(), edges["dst"][waited].tolist(), strict=True):
        call = int(graph.nodes["call"][src])
        found[call] = min(found.get(call, int(issued[dst])), int(issued[dst]))
    return found


def _in_order(graph: Graph, lane: tuple[int, int], order: Times) -> tuple[list[tuple[int, int, int, int]], Mask]:
    """The order of a stream anew, by (issue, place) of its operations; and which of the edges it replaces."""
    nodes, edges = graph.nodes, graph.edges
    own = (nodes["rank"] == lane[0]) & (nodes["lane"] == lane[1])
    last = nodes_by_call(graph, Node.TRANSFER)
    first = np.flatnonzero(own & graph.of(Node.DEVICE, Node.ARRIVAL))
    first = first[np.lexsort((first, order[first, 1], order[first, 0]))]
    gone = (edges["why"] == Edge.STREAM) & own[edges["src"]] & own[edges["dst"]]
    lag = int(np.median(edges["lag"][gone])) if gone.any() else 0
    ends = [int(last[nodes["call"][node]]) if nodes["call"][node] >= 0 else node for node in first.tolist()]
    return [(src, dst, lag, int(Edge.STREAM)) for src, dst in zip(ends, first[1:].tolist(), strict=False)], gone


def group_modules(graph: Graph, change: GroupModules, setting: Setting) -> Rewritten:
    """`count` neighbouring modules gathered, and their gradients scattered, in one."""
    if change.count < 2:
        raise UnreplayableError("grouping needs at least two modules")
    found = costs(graph, setting, alike=not setting.complete)
    parameters = gathers(graph)
    scatters = [place for place, call in enumerate(graph.calls) if call.op == "reduce_scatter" and call.backward]
    families = [
        [call for call in parameters if not graph.calls[call].backward],
        [call for call in parameters if graph.calls[call].backward],
        scatters,
    ]
    before = len(parameters) + len(scatters)
    depths = [_depth(graph, calls) for calls in families[:2]] + [0]
    changed = _not_limited(graph, families[:2], depths, change.count)
    for calls, depth in zip(families, depths, strict=True):
        if calls:
            scale = scales(graph, calls, found, setting)
            changed = regrouped(
                changed,
                calls,
                partial(_groups, count=change.count, depth=depth),
                found,
                scale,
                key=change,
                at_first=calls is not scatters,
                whole=True,
            )
    return Rewritten(
        changed,
        f"{before} collectives joined {change.count} by {change.count}; {found.basis(graph, parameters)}",
        found.provenance(graph, [*parameters, *scatters]),
        found.lacking(graph, [*parameters, *scatters]),
    )


def _depth(graph: Graph, calls: Sequence[int]) -> int:
    """How many modules ahead of their use the gathers of a pass are issued, the median of those behind the first."""
    passes = _passes(graph, calls)
    ahead = _ahead(graph, passes)
    behind = [ahead[call] for own in passes for call in own[1:]]
    return int(np.median(behind)) if behind else 0


def _not_limited(graph: Graph, families: Sequence[Sequence[int]], depths: Sequence[int], count: int) -> Graph:
    """Without FSDP1's waits for room before gathers with which no group is issued."""
    gone = np.zeros(len(graph), np.bool_)
    node = nodes_by_call(graph, Node.ARRIVAL)
    for calls, depth in zip(families, depths, strict=False):
        for own in _passes(graph, calls):
            with_them = set(_issued_with(len(own), count, depth))
            gone[[node[call] for place, call in enumerate(own) if place not in with_them]] = True
    return _unlimited(graph, gone)


def _issued_with(modules: int, count: int, depth: int) -> list[int]:
    """Of each group the module with whose gather it is issued: as many groups ahead of its use as modules were, when
    the first module of that group is to run."""
    places = range(-(-modules // count))
    return [min(max(0, (place - depth) * count + depth), place * count) for place in places]


def _groups(calls: Sequence[Call], count: int, depth: int) -> list[Bucket]:
    """Groups issued with other gathers begin with those, of which they hold nothing."""
    pieces = [Piece(old, call.bytes or 0) for old, call in enumerate(calls)]
    groups = [pieces[at : at + count] for at in range(0, len(pieces), count)]
    with_them = _issued_with(len(calls), count, depth)
    return [[Piece(at, 0), *own] if at < own[0].old else own for at, own in zip(with_them, groups, strict=True)]


HAND_OVER_NS = {-1: 0, 0: 100_000, 1: 1_000_000}
"""What taking a ready batch from worker processes costs the training thread, by case: queue, wake-up, pinning."""

BEHIND = 0.05
"""Of the time between batches: if less is waited for one on average, that is what taking it costs: workers keep up."""

NOT_FOR_ALL = (
    "whether the loader's workers, which kept training waiting for a batch, make them faster than they were asked to"
)


def loader_workers(graph: Graph, change: LoaderWorkers, setting: Setting) -> Rewritten:
    """Batches made beside training: a worker makes every `workers`-th one, after its last and after it was asked for.

    What a batch takes is what the training thread itself spends on loading it: so it is known only for a loader
    without workers. The replayed steps begin amid others: what the first batches are waited for is what those before
    them were.
    Batches take as much longer or shorter as their mean may by chance: where workers can't keep up, they are the step.
    What workers compute (`_computing`) where training leaves no core free takes cores from it (`_taken`).
    """
    loading = np.where(on_host(graph), graph.nodes["input"], 0)
    if not loading.any():
        raise UnreplayableError("the replayed steps hold no wait for the data loader")
    if setting.loader_processes:
        raise UnreplayableError(
            "batches come from worker processes already, of which neither the number nor what a batch takes them is "
            "recorded: MoreLoaderWorkers, or record once with num_workers=0"
        )
    if change.workers < 1:
        raise UnreplayableError("without workers the training thread loads itself; how long is not recorded")
    slept = all((use := setting.core_use.get(rank)) is not None and use.asleep is not None for rank in graph.ranks)
    if change.cores is not None and change.workers > change.cores and not slept:
        raise UnreplayableError("how much of loading computes is not recorded: no more workers than cores are told of")
    dur = graph.nodes["dur"] - loading
    computing = {rank: _computing(graph, loading, rank, setting) for rank in graph.ranks}
    for rank, ns in computing.items():
        consumers = [consumer for consumer, _ in _batches(graph, loading, rank)]
        dur[consumers] += _taken(ns, change.workers, setting.core_use.get(rank), setting.bias)
    free = graph.with_nodes(dur=dur, input=graph.nodes["input"] - loading)
    done = replay(free)
    own = float(np.mean([times.mean() for times in done.steps(free).values()]))
    extra = HAND_OVER_NS[setting.bias]
    nodes: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    src = free.edges["src"].copy()
    for rank in graph.ranks:
        batches = _batches(graph, loading, rank)
        taking = np.array([spent for _, spent in batches] or [0], np.float64)
        longer = max(0.0, 1 + setting.bias * (by_chance(taking) or 0.0))
        every = float(taking.mean()) * longer / change.workers
        use = setting.core_use.get(rank)
        if use is not None and use.free and setting.bias >= 0:
            every = max(every, computing[rank] / use.free)
        origin = int(done.end[batches[0][0]] + max(0.0, every - own)) if batches else 0
        first = len(graph) + len(nodes)
        for place, (consumer, spent) in enumerate(batches):
            made, taken = first + 2 * place, first + 2 * place + 1
            begun = place < change.workers
            lasts = round(place * every if begun else max(spent * longer, every * change.workers))
            # Neither is a host segment or a blocking call: no change of these shortens them.
            nodes.append({"kind": Node.MARK, "rank": rank, "dur": lasts, "release": origin if begun else NA})
            end = int(graph.nodes["end"][consumer])
            step = int(graph.nodes["step"][consumer])
            nodes.append({"kind": Node.MARK, "rank": rank, "start": end, "end": end, "step": step})
            src[src == consumer] = taken
            own_part = min(extra, spent)
            edges += [(consumer, taken, own_part, Edge.PROGRAM), (made, taken, own_part, Edge.SYNC)]
            if not begun:
                edges.append((made - 2 * change.workers, made, 0, Edge.STREAM))
            if place >= (ahead := change.workers * change.prefetch):
                edges.append((taken - 2 * ahead, made, 0, Edge.STREAM))
    longest = max(float(loading[graph.nodes["rank"] == rank].sum()) for rank in graph.ranks)
    steps = max(1, len(graph.marks[graph.ranks[0]]) - 1)
    return Rewritten(
        free.with_edges(src=src).add(nodes, edges),
        f"{longest / steps / 1e6:.1f} ms of loading per batch spread over {units.plural(change.workers, 'worker')}, "
        + _cores_told(computing, setting),
    )


def _computing(graph: Graph, loading: Times, rank: int, setting: Setting) -> float:
    """ns of loading a batch in which the thread was on a core: all but what it slept in a step beside its calls that
    wait. Where that is not recorded, none, and at worst all."""
    batches = _batches(graph, loading, rank)
    each = float(np.mean([spent for _, spent in batches] or [0]))
    use = setting.core_use.get(rank)
    if use is None or use.asleep is None:
        return each if setting.bias > 0 else 0.0
    waits = graph.blocking() & (graph.nodes["rank"] == rank)
    waited = float((graph.nodes["end"] - graph.nodes["start"])[waits].sum()) / max(len(graph.marks[rank]) - 1, 1)
    return each - min(max(use.asleep - waited, 0.0), each)


def _taken(computing: float, workers: int, use: CoreUse | None, bias: int) -> int:
    """ns that training is held up for a batch by what workers compute without a core of their own.

    Where none is free: at best its threads and the workers share all cores evenly, as expected all its threads wait for
    the one that gave way, at worst they hold their cores meanwhile, spinning. Where some are free, the workers beyond
    them at worst take turns with training.
    """
    if use is None:
        return 0
    times = {-1: 0.0, 0: 0.0, 1: 1.0} if use.free else {-1: 1 / use.cores, 0: 1.0, 1: 2.0}
    return round(computing * max(0.0, 1 - use.free / workers) * times[bias])


def _cores_told(computing: Mapping[int, float], setting: Setting) -> str:
    """What is known of the cores that workers have."""
    if not setting.core_use:
        return "assumed to have a core each"
    rank, use = min(setting.core_use.items(), key=lambda one: one[1].free)
    return (
        f"{computing.get(rank, 0.0) / 1e6:.1f} ms of it computing; training leaves {use.free} of "
        f"{units.plural(use.cores, 'core')} free"
    )


def more_workers(graph: Graph, change: MoreLoaderWorkers, setting: Setting) -> Rewritten:
    """Where every batch is waited for, the workers are all busy, so that batches come `times` as often from `times` as
    many. Between two that were not both waited for, workers had time to spare: they come no later than so.
    Taking one costs the thread no less than the shortest wait, up to `HAND_OVER_NS`. Where it turns out badly, batches
    take as much longer as their mean may by chance.
    """
    loading = np.where(on_host(graph), graph.nodes["input"], 0)
    if not loading.any():
        raise UnreplayableError("the replayed steps hold no wait for the data loader")
    if not setting.loader_processes:
        raise UnreplayableError("the training thread loads batches itself: it has no workers yet")
    of_rank = {rank: _batches(graph, loading, rank) for rank in graph.ranks}
    if any(len(batches) == 1 for batches in of_rank.values()):
        raise UnreplayableError("one step tells nothing of how often batches come: record two or more")
    behind = {rank: batches for rank, batches in of_rank.items() if _waited_for(graph, batches)}
    if not behind:
        return Rewritten(graph, "its workers keep up: batches are ready when they are asked for")
    loading[~np.isin(graph.nodes["rank"], list(behind))] = 0
    free = graph.with_nodes(dur=graph.nodes["dur"] - loading, input=graph.nodes["input"] - loading)
    nodes: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    src = free.edges["src"].copy()
    for rank, batches in behind.items():
        consumers = [consumer for consumer, _ in batches]
        extra = min([HAND_OVER_NS[setting.bias], *(spent for _, spent in batches)])
        came = graph.nodes["end"][consumers]
        between = np.diff(came)
        slower = max(0.0, 1 + setting.bias * _pace_error(came))
        use = setting.core_use.get(rank)
        # What they compute is not recorded: at worst they have no more cores than now.
        held = setting.bias > 0 and use is not None and use.free < change.times
        times = 1.0 if held else change.times
        every = np.rint(np.append(between.mean(), between) * slower / times).astype(np.int64)
        begin = int(came[0] - between.mean())
        for place, consumer in enumerate(consumers):
            made, taken = len(graph) + len(nodes), len(graph) + len(nodes) + 1
            end, step = int(graph.nodes["end"][consumer]), int(graph.nodes["step"][consumer])
            release = begin if place == 0 else NA
            nodes.append({"kind": Node.MARK, "rank": rank, "dur": int(every[place]), "release": release})
            nodes.append({"kind": Node.MARK, "rank": rank, "start": end, "end": end, "step": step})
            src[src == consumer] = taken
            edges += [(consumer, taken, extra, Edge.PROGRAM), (made, taken, 0, Edge.SYNC)]
            edges += [(made - 2, made, 0, Edge.STREAM)] if place else []
    return Rewritten(
        free.with_edges(src=src).add(nodes, edges),
        f"batches {change.times:g} times as often, from {change.times:g} times as many workers with a core each",
    )


def as_they_came(graph: Graph, but: Collection[int], bias: int = 0) -> Rewritten:
    """Batches of workers come no sooner because the training thread asks sooner, where these fall behind and so were at
    work all the time; by chance as much earlier or later as their mean may.
    Workers that were waited for now and then might be faster than they were asked, or not: at worst batches come as
    they came. Of those that were never waited for nothing is known but that they keep up with what is recorded.
    `but`: ranks whose loaders are other ones.
    """
    loading = np.where(on_host(graph), graph.nodes["input"], 0)
    dur, src = graph.nodes["dur"].copy(), graph.edges["src"].copy()
    nodes: list[dict[str, int]] = []
    edges: list[tuple[int, int, int, int]] = []
    kept_up: list[float] = []
    lacking = ""
    for rank in set(graph.ranks).difference(but):
        batches = _batches(graph, loading, rank)
        if len(batches) < 2:
            continue
        came = graph.nodes["end"][[consumer for consumer, _ in batches]]
        least, slower = HAND_OVER_NS[0], bias * _pace_error(came)
        if not _waited_for(graph, batches):
            if not _late_once(graph, batches):
                kept_up.append(1e9 / max(float(np.diff(came).mean()), 1.0))
                continue
            lacking = NOT_FOR_ALL
            if bias <= 0:
                continue
            least, slower = 0, 0.0
        consumers = [consumer for consumer, _ in batches]
        waits = np.minimum(loading[consumers], [spent for _, spent in batches]) - least
        ready = came if bias < 0 else _evenly(came, waits > 0)
        for place, consumer in enumerate(consumers):
            waited = max(int(waits[place]), 0)
            if not waited and ready[place] == came[place]:
                continue
            end, step = int(came[place]), int(graph.nodes["step"][consumer])
            release = int(ready[place]) + round(slower * float(end - came[0]))
            made, taken = len(graph) + len(nodes), len(graph) + len(nodes) + 1
            dur[consumer] -= waited
            nodes.append({"kind": Node.MARK, "rank": rank, "dur": 0, "release": release})
            nodes.append({"kind": Node.MARK, "rank": rank, "start": end, "end": end, "step": step})
            src[src == consumer] = taken
            edges += [(consumer, taken, 0, Edge.PROGRAM), (made, taken, 0, Edge.SYNC)]
    if nodes:
        graph = graph.with_nodes(dur=dur).with_edges(src=src).add(nodes, edges)
    seen = (
        f"if the loader's workers, which keep up with {max(kept_up):.3g} batches/s, keep up with more"
        if kept_up
        else ""
    )
    return Rewritten(graph, seen, lacking=lacking)


def _waited_for(graph: Graph, batches: Sequence[tuple[int, int]]) -> bool:
    """Whether a rank waits for its workers, and not only for what taking a batch costs."""
    came = graph.nodes["end"][[consumer for consumer, _ in batches]]
    return len(came) > 1 and sum(spent for _, spent in batches) >= BEHIND * float(np.diff(came).mean()) * len(came)


def _late_once(graph: Graph, batches: Sequence[tuple[int, int]]) -> bool:
    """Whether a rank was kept waiting for any batch: clearly longer than taking one costs it."""
    waits = np.array([spent for _, spent in batches])
    came = graph.nodes["end"][[consumer for consumer, _ in batches]]
    return bool(waits.max() - waits.min() >= BEHIND * float(np.diff(came).mean()))


def _evenly(came: Times, waited: Mask) -> Times:
    """When batches of workers that are never idle were ready: those that were not waited for, as often as the others
    came, and no later than they were taken."""
    late = np.flatnonzero(waited)
    if not len(late):
        return came
    first, last = late[0], late[-1]
    pace = (came[last] - came[first]) / (last - first) if last > first else float(np.diff(came).mean())
    place = np.arange(len(came))
    outside = np.where(place < first, came[first] + (place - first) * pace, came[last] + (place - last) * pace)
    inside = (first <= place) & (place <= last)
    return np.asarray(np.minimum(came, np.where(inside, np.interp(place, late, came[late]), outside)), np.int64)


def _pace_error(came: Times) -> float:
    """How far the mean time between batches may lie from another run's, relative, nine times in ten: twice the standard
    error of a line through their instants, since workers that take turns deliver in bunches."""
    count = np.arange(len(came))
    slope, first = np.polyfit(count, came - came[0], 1)
    rest = came - came[0] - first - slope * count
    spread = float(np.sqrt((rest**2).sum() / max(len(came) - 2, 1)))
    return 2 * spread / float(np.sqrt(((count - count.mean()) ** 2).sum())) / max(float(slope), 1.0)


def _batches(graph: Graph, loading: Times, rank: int) -> list[tuple[int, int]]:
    """Per replayed step in which a rank loads, the host segment that does most of it, and ns of loading."""
    own = np.flatnonzero((graph.nodes["rank"] == rank) & (loading > 0))
    step = graph.nodes["step"][own]
    found: list[tuple[int, int]] = []
    for number in distinct_values(step).tolist():
        mine = own[step == number]
        found.append((int(mine[np.argmax(loading[mine])]), int(loading[mine].sum())))
    return found
