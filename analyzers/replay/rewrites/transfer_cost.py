"""Changes to what transfers cost: the link, the bytes on it, the ranks around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.nccl.predicted_cost import Estimate, changed, chosen_unasked, has_algorithms, predict
from gpuscope.analyzers.replay.engine import replay
from gpuscope.analyzers.replay.graph import EDGE_COLUMNS, NONE, Edge, EdgeRow, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Costs, Rewritten, Setting, bus_bytes, costs, edges_into, nodes_by_call
from gpuscope.analyzers.what_if_changes import (
    NO_GRADIENTS,
    Algorithm,
    EarlyMessages,
    ExpertLoads,
    LineRate,
    LinkSpeed,
    MeasuredTransfers,
    MoreRanks,
    Refused,
    WireBytes,
)
from gpuscope.collective_costs.bus_bandwidth import Choice, Place, more_steps
from gpuscope.collective_costs.message_cost import OTHER_GROUP_ERROR, CostModel, fit
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.name_pool import item_bytes
from gpuscope.trace.schema import Kind
from gpuscope.trace.table import Times, distinct_pairs
from gpuscope.words import units

GRADIENT_OPS = ("all_reduce", "reduce_scatter")
REACHED = {-1: 0.85, 0: 0.7, 1: 0.5}
"""Share of its line rate that a healthy link carries, by case: NCCL's own figures (`usable` of
gpuscope/hardware/links.toml) are 0.7 to 0.85 of it, and below half of it a link counts as unhealthy."""


def gradients(graph: Graph) -> list[int]:
    """Calls that carry gradients: of each rank those of one group, since ranks of other columns have other groups.

    Reductions whose contents are known to be gradients, else those issued in the backward pass, else behind it (a loop
    over the gradients written by hand), in the group with most bytes: tensor parallelism reduces there too.
    """
    reductions = [(place, call) for place, call in enumerate(graph.calls) if call.op in GRADIENT_OPS and call.bytes]
    known = {call.rank for call in graph.calls if call.gradients}
    within = {call.rank for _, call in reductions if call.backward} | known
    calls = [
        place
        for place, call in reductions
        if (call.gradients if call.rank in known else call.backward if call.rank in within else call.behind)
    ]
    if not calls:
        raise UnreplayableError(
            "gradient communication can't be identified: record operators or ranges of the backward pass, "
            "and the collectives' sizes",
            NO_GRADIENTS,
        )
    total: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for place in calls:
        total[graph.calls[place].rank][graph.calls[place].group] += graph.calls[place].bytes or 0
    largest = {rank: max(own, key=lambda group: own[group]) for rank, own in total.items()}
    return [
        place
        for place, call in reductions
        if (call.backward or call.gradients or (call.behind and call.rank not in within))
        and call.group == largest.get(call.rank)
    ]


def steps_of(graph: Graph, calls: Sequence[int]) -> dict[int, int]:
    """By call the step that it works for: of gradients that in which the first of their backward pass arrived.

    A device may have a step's last buckets to send when a copy for the next step has begun that one. Gradients of a
    pass that began before the window are of step `NONE`. Parameters may be gathered before the pass that uses them.
    """
    arrival = nodes_by_call(graph, Node.ARRIVAL)
    found = {call: int(graph.nodes["step"][arrival[call]]) for call in calls}
    reduced = [call for call in calls if graph.calls[call].op in GRADIENT_OPS]
    pass_of = {call: (graph.calls[call].rank, graph.calls[call].passes) for call in reduced}
    known = {rank for rank, number in pass_of.values() if number}
    first: dict[tuple[int, int], int] = {}
    for call, own in pass_of.items():
        first[own] = min(first.get(own, found[call]), found[call])
    return found | {call: first[own] if own[1] else NONE for call, own in pass_of.items() if own[0] in known}


def rescaled(graph: Graph, found: Costs, ratio: dict[int, float]) -> Graph:
    """Each call's transfer times its ratio; time that may be waiting stays."""
    node = nodes_by_call(graph, Node.TRANSFER)
    dur = graph.nodes["dur"].copy()
    calls, factors = np.array(list(ratio), np.int64), np.array(list(ratio.values()))
    dur[node[calls]] += np.rint(found.transfer[calls] * (factors - 1)).astype(np.int64)
    return graph.with_nodes(dur=np.maximum(dur, 0))


def _fixed_share(graph: Graph, found: Costs, call: int, size: float, worse: float) -> float:
    """The share of a transfer that is fixed cost; `worse` in [-1, 1] moves it within the model's error."""
    share = found.model(graph, call).fixed_share(size)
    return min(1.0, max(0.0, share * (1 + worse * found.error(graph, call))))


def alike(graph: Graph, calls: Iterable[int]) -> Iterator[list[int]]:
    """Calls that cost the same: of one operation, group and size."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for call in calls:
        own = graph.calls[call]
        found[own.op, own.group, own.group_size, own.bytes].append(call)
    yield from found.values()


def link_speed(graph: Graph, change: LinkSpeed, setting: Setting) -> Rewritten:
    """Fixed cost and cost of the bytes scaled apart, in the proportion of the model."""
    if change.bandwidth <= 0 or change.latency < 0:
        raise UnreplayableError("a link needs a bandwidth above 0 and a latency of at least 0")
    found = costs(graph, setting)
    # Which share is the worse one depends on which of the two parts gains more.
    sign = 1 if change.latency > 1 / change.bandwidth else -1
    ratio: dict[int, float] = {}
    for calls in alike(graph, range(len(graph.calls))):
        size = bus_bytes(graph, calls[0])
        if size:
            share = _fixed_share(graph, found, calls[0], size, sign * setting.bias)
            ratio |= dict.fromkeys(calls, share * change.latency + (1 - share) / change.bandwidth)
    if not ratio:
        raise UnreplayableError("the replayed steps hold no collective of known size: record collective arguments")
    return Rewritten(
        rescaled(graph, found, ratio),
        found.basis(graph, list(ratio)),
        found.provenance(graph, ratio),
        found.lacking(graph, ratio),
    )


def line_rate(graph: Graph, change: LineRate, setting: Setting) -> Rewritten:
    """The bytes at what a healthy link of that rate carries; the fixed cost stays, though a shorter way has less."""
    found, rates = costs(graph, setting), dict(change.rates)
    ratio: dict[int, float] = {}
    for calls in alike(graph, range(len(graph.calls))):
        size, rate = bus_bytes(graph, calls[0]), rates.get(graph.calls[calls[0]].group_size or 0)
        if size and rate:
            fixed = _fixed_share(graph, found, calls[0], size, setting.bias)
            moved = (1 - fixed) * found.model(graph, calls[0]).expected(size)
            then = size / (rate * REACHED[setting.bias])  # a GB/s is a byte per ns
            ratio |= dict.fromkeys(calls, fixed + (1 - fixed) * min(1.0, then / max(moved, 1.0)))
    if not ratio:
        raise UnreplayableError("the replayed steps hold no collective of known size over links of known rate")
    basis = f"; then links at {units.whole_share(REACHED[1])} to {units.whole_share(REACHED[-1])} of their line rate, "
    basis += "with the fixed cost as it is"
    return Rewritten(
        rescaled(graph, found, ratio), found.basis(graph, list(ratio)) + basis, "assumed", found.lacking(graph, ratio)
    )


def wire_bytes(graph: Graph, change: WireBytes, setting: Setting) -> Rewritten:
    """Gradient transfers with fewer bytes. Casting and compressing cost compute, which the trace doesn't record."""
    if not change.factor > 0:
        raise UnreplayableError("bytes can't shrink to nothing")
    calls, found = gradients(graph), costs(graph, setting)
    if change.factor < 1 and all(item_bytes(graph.calls[call].dtype) in (1, 2) for call in calls):
        raise UnreplayableError("gradients are sent in 16 bits already")
    sign = 1 if change.factor < 1 else -1
    ratio: dict[int, float] = {}
    for own in alike(graph, calls):
        share = _fixed_share(graph, found, own[0], bus_bytes(graph, own[0]) or 0.0, sign * setting.bias)
        ratio |= dict.fromkeys(own, share + (1 - share) * change.factor)
    return Rewritten(
        rescaled(graph, found, ratio),
        found.basis(graph, calls) + "; without the cost of casting or compressing",
        found.provenance(graph, calls),
        found.lacking(graph, calls),
    )


def measured_transfers(graph: Graph, change: MeasuredTransfers, setting: Setting) -> Rewritten:
    """Transfers of the given sizes times the factor that was measured for them."""
    found = costs(graph, setting)
    factors = {nbytes: (best, worst) for nbytes, best, worst in change.factors}
    ratio: dict[int, float] = {}
    for call, own in enumerate(graph.calls):
        if own.op == change.op and own.group_size == change.group_size and own.bytes in factors:
            best, worst = factors[own.bytes]
            ratio[call] = {-1: best, 0: (best + worst) / 2, 1: worst}[setting.bias]
    if not ratio:
        raise UnreplayableError(f"the replayed steps hold no {change.op} of these sizes over {change.group_size} ranks")
    if change.published:
        return Rewritten(rescaled(graph, found, ratio), f"transfer times as published: {change.published}", "assumed")
    return Rewritten(rescaled(graph, found, ratio), "transfer times as measured for another choice")


def more_ranks(graph: Graph, change: MoreRanks, setting: Setting) -> Rewritten:
    """Collectives of the groups that carry gradients around a larger ring: bytes by nccl-tests' factor, fixed cost by
    steps; also over other links at what those cost, if that is more.

    Where it turns out well, the fixed cost stays (trees grow with the logarithm only); where not, the bytes too take
    longer than the links measured for fewer ranks say. More ranks wait for a slower slowest one: not in it.
    """
    if change.factor < 1:
        raise UnreplayableError("more ranks need a factor of at least 1")
    reductions, found = gradients(graph), costs(graph, setting)
    groups = {(graph.calls[call].rank, graph.calls[call].group) for call in reductions}
    own = [place for place, call in enumerate(graph.calls) if (call.rank, call.group) in groups and call.bytes]
    links = {link.op: link for link in change.links}
    worse = 1 + (OTHER_GROUP_ERROR if setting.bias > 0 else 0.0)
    ratio: dict[int, float] = {}
    for calls in alike(graph, own):
        one = graph.calls[calls[0]]
        size = bus_bytes(graph, calls[0])
        if not one.group_size or not size:
            raise UnreplayableError("the collectives' groups are not recorded")
        many = one.group_size * change.factor
        then = bus_bytes(graph, calls[0], members=many) or size
        hops = {-1: 1.0, 0: 1 + np.log2(change.factor), 1: more_steps(one.group_size, many)}[setting.bias]
        share = _fixed_share(graph, found, calls[0], size, setting.bias)
        same = share * float(hops) + (1 - share) * worse * then / size
        link = links.get(one.op)
        taken = link.latency_ns + then / link.gbps[setting.bias + 1] if link else 0.0  # a GB/s is a byte per ns
        ratio |= {call: max(same, taken / max(int(found.transfer[call]), 1)) for call in calls}
    newer = "at what the new links cost, or the recorded ones if that is more"
    where = newer if links else "links as fast between more ranks"
    return Rewritten(
        rescaled(graph, found, ratio),
        f"{found.basis(graph, own)}; {where}, no rank slower than those recorded",
        "assumed" if links else found.provenance(graph, own),
        "" if links else found.lacking(graph, own),
    )


# Collectives by another of NCCL's algorithms or protocols, or over more channels.


def algorithm(graph: Graph, change: Algorithm, setting: Setting) -> Rewritten:
    """Each transfer times what NCCL's cost model says of the other choice, held to the costs fitted to the run.

    Refused as a whole where it is unknown for one of the calls: half a change can't be set.
    """
    found = costs(graph, setting)
    models = _models(graph, found, setting)
    ratio: dict[int, float] = {}
    basis: set[str] = set()
    for call, own in enumerate(graph.calls):
        size = bus_bytes(graph, call)
        if (change.op is not None and own.op != change.op) or not size or not own.bytes or (own.group_size or 0) < 2:
            continue
        if change.unasked and not has_algorithms(own.op):
            continue
        if setting.nccl is None:
            raise UnreplayableError("NCCL's choices are not recorded: record with NCCL_DEBUG=INFO")
        place = setting.nccl.place(own.group_size or 0)
        if isinstance(place, Refused):
            raise UnreplayableError(place.why)
        now = setting.nccl.choice(own.op, own.bytes, own.group_size or 0)
        model = models[call]
        predicted = _predicted(own.op, own.bytes, place, now, change, model)
        if isinstance(predicted, Refused):
            raise UnreplayableError(predicted.why)
        ratio[call] = {-1: predicted.low, 0: predicted.ns, 1: predicted.high}[setting.bias] / max(
            model.expected(size), 1
        )
        basis.add(predicted.basis)
    if not ratio:
        raise UnreplayableError(f"the replayed steps hold no {change.op or 'collective'} of known size")
    return Rewritten(rescaled(graph, found, ratio), "; ".join(sorted(basis)))


def _predicted(
    op: str, nbytes: int, place: Place, now: Choice | None, change: Algorithm, model: CostModel
) -> Estimate | Refused:
    """What an operation takes after the change."""
    if now is None or not change.unasked:
        return predict(op, nbytes, place, now, None if now is None else changed(now, change), model)
    return predict(op, nbytes, place, now, chosen_unasked(op, nbytes, place, now, model), model, forced=False)


def _models(graph: Graph, found: Costs, setting: Setting) -> dict[int, CostModel]:
    """The cost model of each call: fitted to the calls of its operation and group with the same choice of NCCL."""
    by_choice: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for call, own in enumerate(graph.calls):
        now = setting.nccl.choice(own.op, own.bytes or 0, own.group_size or 0) if setting.nccl is not None else None
        by_choice[own.op, own.group, f"{now.algorithm}/{now.protocol}" if now else ""].append(call)
    models: dict[int, CostModel] = {}
    for (op, group, _), calls in by_choice.items():
        model = found.models[op, group]
        if sum(key[:2] == (op, group) for key in by_choice) > 1:
            sizes = np.array([bus_bytes(graph, call) or 0.0 for call in calls])
            model = fit(sizes, found.transfer[np.array(calls)]) or replace(model, error=None, provenance="assumed")
        models |= dict.fromkeys(calls, model)
    return models


# Experts with other numbers of tokens.


def expert_loads(graph: Graph, change: ExpertLoads, setting: Setting) -> Rewritten:
    """What each rank computes between dispatch and combine, and both transfers, scaled as the change says."""
    del setting
    nodes = graph.nodes
    dur = nodes["dur"].astype(np.float64)
    computes = graph.of(Node.DEVICE) & (nodes["work"] == Kind.COMPUTE)
    if not computes.any():  # training threads are the devices
        computes = graph.of(Node.HOST)
    windows = defaultdict(list)
    for rank, begin, until, factor in change.windows:
        windows[rank].append((begin, until, factor))
    scaled = 0
    for rank, own in windows.items():
        mine = np.flatnonzero(computes & (nodes["rank"] == rank))
        start, end = nodes["start"][mine], nodes["end"][mine]
        for begin, until, factor in own:
            inside = np.clip(np.minimum(end, until) - np.maximum(start, begin), 0, None)
            part = inside / np.maximum(end - start, 1)
            dur[mine] *= 1 - part * (1 - factor)
            scaled += int((inside > 0).sum())
    if not scaled:
        raise UnreplayableError("the passes through experts are in no replayed step")
    factors = {tuple(call): factor for *call, factor in change.transfers}
    for place in np.flatnonzero(graph.of(Node.TRANSFER) & (nodes["call"] >= 0)).tolist():
        call = graph.calls[int(nodes["call"][place])]
        dur[place] *= factors.get((call.rank, call.start, call.end), 1.0)
    return Rewritten(graph.with_nodes(dur=np.rint(dur).astype(np.int64)), change.what)


# A collective issued earlier than it was: by what the host had launched by then, and behind what the device had to do
# for it.

_WHOLE_DEVICE = "DeviceSynchronize"


def waited_for(graph: Graph) -> Graph:
    """With collectives where they are issued now: calls that wait for the whole device wait for those before them."""
    nodes, (src, dst, lag, why) = graph.nodes, (graph.edges[name] for name in ("src", "dst", "lag", "why"))
    whole = np.array([label.endswith(_WHOLE_DEVICE) for label in graph.labels] + [False], np.bool_)
    waits = np.flatnonzero(graph.of(Node.WAIT) & whole[nodes["label"]])
    if not len(waits):
        return graph
    returns = dict(zip(dst[why == Edge.SYNC].tolist(), lag[why == Edge.SYNC].tolist(), strict=True))
    transfer = nodes_by_call(graph, Node.TRANSFER)
    edges: list[EdgeRow] = []
    for rank in graph.ranks:
        own = waits[nodes["rank"][waits] == rank]
        issues = np.flatnonzero((why == Edge.LAUNCH) & graph.of(Node.ARRIVAL)[dst] & (nodes["rank"][dst] == rank))
        at = np.searchsorted(nodes["start"][own], nodes["end"][src[issues]])
        for issue, place in zip(issues[at < len(own)].tolist(), own[at[at < len(own)]].tolist(), strict=True):
            if (call := int(nodes["call"][dst[issue]])) >= 0:
                edges.append((int(transfer[call]), place, returns.get(place, 0), Edge.SYNC))
    return graph.add([], edges)


class EarlyIssue:
    """Where in a rank's host and streams an issue some ns earlier would stand.

    A host runs ahead of its device, so that a time on the host says nothing about the device's progress: an issue
    moved by an interval of the host comes behind the last operation that the host had launched then.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._into: defaultdict[int, list[int]] = defaultdict(list)
        issues = np.flatnonzero(graph.of(Node.ARRIVAL)[graph.edges["dst"]])
        for place, dst in zip(issues.tolist(), graph.edges["dst"][issues].tolist(), strict=True):
            self._into[dst].append(place)
        self._host = {rank: self._by_end(graph, rank) for rank in graph.ranks}
        launched = np.flatnonzero((graph.edges["why"] == Edge.LAUNCH) & graph.of(Node.DEVICE)[graph.edges["dst"]])
        node, at = graph.edges["dst"][launched], graph.nodes["end"][graph.edges["src"][launched]]
        rank, lane = graph.nodes["rank"][node], graph.nodes["lane"][node]
        order = np.lexsort((node, at, lane, rank))
        rows = np.stack((rank, lane, at, node), axis=1)[order]
        bounds = np.flatnonzero((np.diff(rows[:, :2], axis=0) != 0).any(axis=1)) + 1
        parts = np.split(rows, bounds) if len(rows) else []
        self._launched = {(int(own[0, 0]), int(own[0, 1])): own[:, 2:] for own in parts}
        """By rank and stream: when an operation was launched, and its node."""
        self._devices = {rank for rank, _ in self._launched}

    @staticmethod
    def _by_end(graph: Graph, rank: int) -> Times:
        own = np.flatnonzero(graph.of(Node.HOST, Node.WAIT) & (graph.nodes["rank"] == rank))
        return own[np.argsort(graph.nodes["end"][own], kind="stable")]

    def edges(self, old: int, new: int, earlier: int) -> Iterable[tuple[int, int, int, int]]:
        """What node `new` waits for if it is issued so many ns before node `old` was."""
        edges = self._graph.edges
        for place in self._into[old]:
            src, lag, why = (int(edges[name][place]) for name in ("src", "lag", "why"))
            if why not in (Edge.LAUNCH, Edge.EVENT):
                continue
            if earlier <= 0:
                yield src, new, lag, why
            elif why == Edge.LAUNCH:
                yield self._issued(src, lag, earlier, new)
            elif (operation := self._behind(old, src, earlier)) is not None:
                yield operation, new, lag, why

    def _at(self, old: int, earlier: int) -> int | None:
        """When the new issue is, on the host."""
        for place in self._into[old]:
            if self._graph.edges["why"][place] == Edge.LAUNCH:
                return int(self._graph.nodes["end"][self._graph.edges["src"][place]]) - earlier
        return None

    def _issued(self, host: int, lag: int, earlier: int, new: int) -> tuple[int, int, int, int]:
        ends, rank = self._graph.nodes["end"], int(self._graph.nodes["rank"][host])
        at = int(ends[host]) - earlier
        own = self._host[rank]
        place = int(np.searchsorted(ends[own], at, "right")) - 1
        if place < 0 or rank not in self._devices:  # a training thread that computes is between two issues for long
            return host, new, lag - earlier, Edge.LAUNCH
        return int(own[place]), new, lag + at - int(ends[own[place]]), Edge.LAUNCH

    def _behind(self, old: int, source: int, earlier: int) -> int | None:
        """The last operation that the stream of `source` had been given by then."""
        nodes, at = self._graph.nodes, self._at(old, earlier)
        launched = self._launched.get((int(nodes["rank"][source]), int(nodes["lane"][source])))
        if launched is None or at is None:
            return None
        place = int(np.searchsorted(launched[:, 0], at, "right")) - 1
        return int(launched[place, 1]) if place >= 0 else None


# Messages of a pipeline received beside compute: each receive posted before the kernels launched before it.


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
