"""Changes to what transfers cost: the link, the bytes on it, the ranks around it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import numpy as np

from gpuscope.analyzers.changes import LineRate, LinkSpeed, MeasuredTransfers, MoreRanks, WireBytes
from gpuscope.analyzers.replay.collective_costs import Costs, bus_bytes, costs
from gpuscope.analyzers.replay.graph import NONE, Graph, Node, UnreplayableError
from gpuscope.analyzers.replay.rewrite import Rewritten, Setting, nodes_by_call
from gpuscope.collective_costs.message_cost import OTHER_GROUP_ERROR
from gpuscope.collective_costs.nccl_model import more_steps
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
            "and the collectives' sizes"
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
