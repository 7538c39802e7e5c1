"""On a GPU kernels are slower beside a collective (it takes SMs and memory bandwidth), collectives beside kernels, and
collectives beside others on their link.

By how much, the recording tells: the same kernel ran alone and beside a collective, a collective of one size alone and
beside kernels or others. What took d ns with a share x of them disturbed, and goes `slow` times slower there, would
have taken d · (1 - x + x / slow) alone: 1/d falls linearly with x.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.replay import graph_builder
from gpuscope.analyzers.replay.engine import Replayed, replay
from gpuscope.analyzers.replay.graph import Graph, Node
from gpuscope.analyzers.replay.rewrite import Crowds, Reaches, can_crowd, nodes_by_call, slowest, together
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.schema import Kind
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Which ranks of a large run are replayed, and which of them stands in for each of the others.
#
# Ranks that exchange most with each other (tensor parallelism, a pipeline) stay together: they are chosen by such
# units,
# so that only collectives over many units lose members. Of units whose ranks do the same the typical one is kept, those
# that others wait for most, and those that compute most and least. A collective still has its true size and cost, and
# an
# absent rank arrives at it as much behind its stand-in as it did in the recording.

REPRESENTATIVES_MOST, ENOUGH = 64, 8
"""Ranks replayed at most where others are left out, and so many that further steps say more than further ranks."""
UNEVEN = 1.25
"""By which the largest step may exceed a rank's mean one."""
FEWEST_UNITS = 4
"""Units there is to be room for: a typical one, a late one, the two extremes."""


@dataclass(frozen=True)
class _Unit:
    """Ranks that are replayed together or not at all, with what tells them from others that do the same, ns."""

    ranks: tuple[int, ...]
    role: Hashable
    computed: float
    """By all its ranks, in what was judged."""
    waited_for: float
    """By other ranks, in all that was recorded."""

    def distance(self, other: _Unit) -> float:
        """How unlike they are."""
        return abs(self.computed - other.computed) + abs(self.waited_for - other.waited_for)


def stand_ins(facts: RunFacts) -> dict[int, int]:
    """The stand-in of each rank that is not replayed; the others are, as many as the replay has room for. Empty where
    all are, or not even two could be."""
    largest = max((lane.events / max(len(lane.steps), 1) for lane in facts.lanes), default=0.0)
    steps = graph_builder.RUN_KEPT / max(1.0, UNEVEN * largest)
    room = int(min(REPRESENTATIVES_MOST, max(steps / graph_builder.STEPS_WANTED, min(ENOUGH, steps))))
    if room < 2 or len(facts.trace.ranks) <= room:
        return {}
    units = _units(facts, max(1, room // FEWEST_UNITS))
    chosen: list[_Unit] = []
    for unit in _by_worth(units):
        if unit not in chosen and sum(len(one.ranks) for one in chosen) + len(unit.ranks) <= room:
            chosen.append(unit)
    found: dict[int, int] = {}
    for unit in (unit for unit in units if unit not in chosen):
        alike = [one for one in chosen if one.role == unit.role] or chosen
        nearest = min(alike, key=unit.distance)
        found |= {rank: nearest.ranks[place % len(nearest.ranks)] for place, rank in enumerate(unit.ranks)}
    return found


def _by_worth(units: Sequence[_Unit]) -> Iterator[_Unit]:
    """The typical unit of each role, the largest role first; then in turn what is waited for most and what computes
    most or least of its role."""
    roles: dict[Hashable, list[_Unit]] = defaultdict(list)
    for unit in units:
        roles[unit.role].append(unit)
    ordered = [sorted(own, key=lambda unit: unit.computed) for own in sorted(roles.values(), key=len, reverse=True)]
    yield from (own[len(own) // 2] for own in ordered)
    late = sorted(units, key=lambda unit: -unit.waited_for)
    extremes = [unit for own in ordered for unit in (own[-1], own[0])]
    for pair in zip_longest(late, extremes):
        yield from (unit for unit in pair if unit is not None)


def _units(facts: RunFacts, largest: int) -> list[_Unit]:
    """All ranks by unit of at most `largest`, joined by the groups in which each rank calls most."""
    ranks, groups = facts.trace.ranks, facts.matched.groups
    rows = np.bincount(groups.of_row, minlength=len(groups.ranks))
    members = [[] if own is None else [rank for rank in own.tolist() if rank in set(ranks)] for own in groups.ranks]
    unit_of: dict[int, list[int]] = {rank: [rank] for rank in ranks}
    for group in sorted(range(len(members)), key=lambda group: -rows[group] / max(len(members[group]), 1)):
        joined = {id(unit_of[rank]): unit_of[rank] for rank in members[group]}
        if len(joined) > 1 and sum(map(len, joined.values())) <= largest:
            whole = sorted(rank for own in joined.values() for rank in own)
            unit_of |= dict.fromkeys(whole, whole)
    role, computed, waited_for = _roles(facts), _computed(facts), _waited_for(facts)
    return [
        _Unit(
            tuple(own),
            tuple(role[rank] for rank in own),
            sum(computed.get(rank, 0.0) for rank in own),
            sum(waited_for.get(rank, 0.0) for rank in own),
        )
        for own in {id(own): own for own in unit_of.values()}.values()
    ]


def _roles(facts: RunFacts) -> dict[int, Hashable]:
    """Of each rank its stage, and how often it calls what in groups of which size."""
    table = facts.trace["collectives"]
    stages = facts.stages.places if facts.stages is not None else {}
    columns = np.stack([table[name].astype(np.int64) for name in ("rank", "op", "group_size")], axis=1)
    kinds, counts = np.unique(columns, axis=0, return_counts=True)
    calls: dict[int, list[tuple[int, ...]]] = defaultdict(list)
    for (rank, op, size), count in zip(kinds.tolist(), counts.tolist(), strict=True):
        calls[rank].append((op, size, count))
    return {rank: (stages.get(rank, (0, 0))[1], tuple(calls[rank])) for rank in facts.trace.ranks}


def _computed(facts: RunFacts) -> Mapping[int, float]:
    return {lane.rank: float(lane.breakdown.compute) for lane in facts.lanes}


def _waited_for(facts: RunFacts) -> Mapping[int, float]:
    """By rank, what the others waited where it came last."""
    instances, waits, rank_of = facts.matched.instances, facts.waits, facts.trace["collectives"]["rank"]
    lost: Times = instances.reduce(np.add, waits.wait[instances.rows])
    found: dict[int, float] = defaultdict(float)
    for rank, ns in zip(rank_of[waits.last].tolist(), lost.tolist(), strict=True):
        found[rank] += ns
    return found


ROUNDS = 12
"""Replays of a change at most: what takes longer moves what it runs beside. They go half-way each, as whole ways swing
about where they lead, until one moves little."""
SPREAD = 0.5
"""By which the disturbed shares of a kernel's runs must differ for a line through them."""
LITTLE = 0.05
"""Shares that differ by less than this are taken to be the same."""
SCATTER = 0.03
"""Relative scatter about the line up to which runs of a name are taken to be of one shape."""
FEWEST = 6
"""Runs that a line needs."""
LEAST, MOST = 1.02, 3.0
"""Slowdowns below are noise; above, something else than sharing goes on."""


Factors = tuple[float, float, float]
"""Slowdown where things turn out well, as expected, and badly."""
NONE: Factors = (1.0, 1.0, 1.0)
UNKNOWN: Factors = (1.0, 1.1, 1.4)
"""Where nothing ran both alone and disturbed: kernels beside communication were 19 % slower on average over GPUs and
models, up to 40 % (Lee et al., «Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep
Learning», arXiv 2507.03114). Half of that average is expected, as an assumption; so are transfers like kernels."""
SHARED: Factors = (1.0, 2.0, 2.5)
"""A transfer beside another one on its link, where nothing ran both alone and so: a fair share of the bandwidth is
expected. At best the link carries both at full speed (each alone did not fill it), at worst sharing costs a fifth."""
BOTH_WAYS: Factors = (1.0, 2.0, 2.0)
"""A message beside one the other way, where nothing ran both alone and so: links carry both at full speed at best, but
the careful half of it is expected."""
MOVED = 0.001
"""Share of a step by which overlap has to move before slowdowns matter."""


@dataclass(frozen=True)
class Disturbance:
    """How many times slower kernels are beside a collective of their rank, transfers beside kernels, transfers beside
    one other on their link, and messages beside one the other way."""

    kernels: Factors
    transfers: Factors
    links: Factors = NONE
    ways: Factors = NONE

    def texts(self, moved: Sequence[bool]) -> list[str]:
        """What a prediction rests on where these effects moved."""
        found: list[str] = []
        if any(moved[:2]):
            if UNKNOWN in (self.kernels, self.transfers):
                found.append(
                    "how much kernels and collectives slow each other is not in the trace: taken as 10 % (0 to 40 %)"
                )
            else:
                found.append(
                    f"kernels {units.whole_share(self.kernels[1] - 1)} slower beside collectives and these "
                    f"{units.whole_share(self.transfers[1] - 1)} slower beside kernels, as alone and "
                    "together in the recording"
                )
        if moved[2]:
            if self.links == SHARED:
                found.append("two collectives at once on one link are taken to get half of it each (none to all lost)")
            else:
                found.append(
                    f"collectives {units.whole_share(self.links[1] - 1)} slower beside another on their link, as alone "
                    "and together in the recording"
                )
        if moved[3]:
            how = "not in the trace: taken as half each (none to all lost)"
            if self.ways != BOTH_WAYS:
                how = f"{units.whole_share(self.ways[1] - 1)}, as alone and together in the recording"
            found.append(f"how much a message and one the other way slow each other is {how}")
        return found


def _disturbance(graph: Graph, beside: Sequence[_Beside]) -> Disturbance:
    by_kernel, by_transfer, by_link, by_way = beside
    kernels = np.flatnonzero(by_kernel.kind & (graph.nodes["kernel"] >= 0))
    transfers = np.flatnonzero(by_transfer.kind & (graph.nodes["call"] >= 0))
    calls = [graph.calls[call] for call in graph.nodes["call"][transfers].tolist()]
    sizes = [(call.op, call.group, call.bytes) for call in calls]
    dur = graph.nodes["dur"]

    def alike(*names: str) -> Factors | None:
        keys = list(zip(*(graph.nodes[name][kernels].tolist() for name in names), strict=True))
        return _slower(keys, dur[kernels], [by_kernel.share[kernels]])[0]

    # Where batches change from step to step, runs are of one shape within a step.
    own = alike("rank", "kernel") or alike("rank", "kernel", "step") or UNKNOWN
    # Of three at once nobody knows which slows which: the line is for two.
    two = np.maximum(by_link.others, by_way.others)[transfers] < 1 + LITTLE
    few, kept = transfers[two], [size for size, own in zip(sizes, two.tolist(), strict=True) if own]
    transfer, link, way = _slower(kept, dur[few], [by_transfer.share[few], by_link.share[few], by_way.share[few]])
    crowded = bool(by_link.kind.any())
    return Disturbance(
        own,
        transfer or UNKNOWN,
        (link or SHARED) if crowded else NONE,
        (way or BOTH_WAYS) if crowded else NONE,
    )


def _slower(keys: Sequence[Hashable], dur: Times, shares: Sequence[Array]) -> list[Factors | None]:
    """By kind of disturbance (`shares`: of each run the share so disturbed) the mean slowdown over groups of one key,
    by their time, give or take its scatter; None where no group shows it."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        if dur[place] > 0:
            groups[key].append(place)
    found: list[list[tuple[float, float]]] = [[] for _ in shares]
    for places in groups.values():
        for kind, slow in _of_group(dur[places], [share[places] for share in shares]).items():
            found[kind].append((slow, float(dur[places].sum())))
    return [_mean(own) for own in found]


def _of_group(dur: Times, shares: Sequence[Array]) -> dict[int, float]:
    """Slowdowns by kind of disturbance, from runs of one shape that differ enough in it."""
    differing = [kind for kind, share in enumerate(shares) if np.ptp(share) >= LITTLE]
    wanted = [kind for kind in differing if np.ptp(shares[kind]) >= SPREAD]
    if not wanted or len(dur) < FEWEST + len(differing) - 1:
        return {}
    design = np.column_stack([np.ones(len(dur)), *(shares[kind] for kind in differing)])
    y = 1.0 / dur
    line, _, rank, _ = np.linalg.lstsq(design, y, rcond=1e-3)
    if rank < design.shape[1] or line[0] <= 0 or np.std(y - design @ line) / np.mean(y) > SCATTER:
        return {}
    full = dict(zip(differing, (line[0] + line[1:]).tolist(), strict=True))
    return {kind: float(line[0] / full[kind]) for kind in wanted if full[kind] > 0}


def _mean(found: Sequence[tuple[float, float]]) -> Factors | None:
    if not found:
        return None
    slow, weight = np.array(found).T
    mean = float(np.average(slow, weights=weight))
    if not LEAST <= mean <= MOST:
        return NONE
    error = float(np.sqrt(np.average((slow - mean) ** 2, weights=weight)))
    return max(1.0, mean - error), mean, mean + error


@dataclass(frozen=True)
class _Beside:
    """Of the nodes of a kind the share of their time in which they are disturbed, and by how many at once."""

    kind: Mask
    share: Array
    others: Array

    def work(self, factor: float) -> Array:
        """Of each node's time, the share that it would take undisturbed."""
        slow = 1 + (factor - 1) * self.others
        return np.asarray(np.where(self.kind, 1 - self.share + self.share / slow, 1.0))


class _Effects:
    """What disturbs what in one graph, whatever its nodes' durations are."""

    def __init__(self, graph: Graph, reach: Reaches) -> None:
        self._kinds = _kinds(graph)
        self._rank = np.searchsorted(graph.ranks, graph.nodes["rank"])
        arrived, through = (nodes_by_call(graph, kind) for kind in (Node.ARRIVAL, Node.TRANSFER))
        both = (arrived >= 0) & (through >= 0)
        self._in_flight = arrived[both], through[both]
        crowd = can_crowd(graph)
        self._crowds = [Crowds(graph, reach, opposite=ways) if crowd else None for ways in (False, True)]
        self._nodes = np.flatnonzero(graph.of(Node.TRANSFER))
        self._together = together(graph, self._nodes)

    def beside(self, done: Replayed) -> tuple[_Beside, _Beside, _Beside, _Beside]:
        """Kernels beside collectives of their rank, transfers beside kernels, transfers beside others of their way, and
        beside those of the other."""
        kernels, transfers = self._kinds
        start, end = self._rank_by_rank(done)
        one = np.ones(len(start))
        by_kernel, by_transfer = self._shares(start, end)
        by_transfer = slowest(by_transfer, self._nodes, self._together)
        nothing = np.zeros(len(start), np.bool_)
        links, ways = (
            _Beside(nothing, np.zeros(len(start)), one) if own is None else _Beside(transfers, *own.beside(start, end))
            for own in self._crowds
        )
        return _Beside(kernels, by_kernel, one), _Beside(transfers, by_transfer, one), links, ways

    def _shares(self, start: Times, end: Times) -> tuple[Array, Array]:
        """Per node, the share of a kernel's time beside a collective of its rank, from the rank's arrival on, and of a
        transfer's time beside kernels of its rank. Times are those of `_rank_by_rank`."""
        by_kernel, by_transfer = np.zeros(len(start)), np.zeros(len(start))
        kernels, transfers = (np.flatnonzero(kind) for kind in self._kinds)
        arrived, through = self._in_flight
        in_flight = union(start[arrived], end[through])
        computing = union(start[kernels], end[kernels])
        by_kernel[kernels] = _within(in_flight, start[kernels], end[kernels])
        by_transfer[transfers] = _within(computing, start[transfers], end[transfers])
        return by_kernel, by_transfer

    def _rank_by_rank(self, done: Replayed) -> tuple[Times, Times]:
        """Start and end of every node with each rank behind the one before it, so that no two ranks overlap."""
        if not len(done.start):
            return done.start, done.end
        origin = int(done.start.min())
        behind = self._rank * (int(done.end.max()) - origin + 1) - origin
        return done.start + behind, done.end + behind


@dataclass(frozen=True)
class AsFast:
    """A changed graph replayed with durations as they were, and what runs beside what then and did before."""

    graph: Graph
    done: Replayed
    effects: _Effects
    now: tuple[_Beside, _Beside, _Beside, _Beside]
    before: list[_Beside]
    moved: list[bool]


class Disturbed:
    """Replays changes of a graph with kernels and collectives as much slower as they then run beside each other."""

    def __init__(self, graph: Graph, done: Replayed, reach: Reaches | None = None) -> None:
        self._reach = reach or {}
        self._graph = graph
        self._before = _Effects(graph, self._reach).beside(done)
        self.found = _disturbance(graph, self._before)
        self._least = MOVED * _length(graph, done)

    @cached_property
    def alone(self) -> Array:
        """Of the time of each node as it was, the share that it would have taken undisturbed, as expected."""
        shares = [own.work(factors[1]) for own, factors in zip(self._before, self._factors, strict=True)]
        return np.asarray(np.prod(shares, axis=0))

    def as_fast(self, graph: Graph) -> AsFast:
        """A graph made from the one given. New collectives are taken to be as disturbed as the old ones were that their
        times follow from: a step's last one like the last, the others like the others."""
        done, effects = replay(graph), _Effects(graph, self._reach)
        now, before = effects.beside(done), [self._grown(graph, done, own) for own in self._before]
        dur = graph.nodes["dur"]
        moved = [
            max(factors) > 1
            and float((np.abs(new.share * new.others - old.share * old.others) * dur)[new.kind].sum()) > self._least
            for new, old, factors in zip(now, before, self._factors, strict=True)
        ]
        return AsFast(graph, done, effects, now, before, moved)

    def replay(self, first: AsFast, bias: int = 0) -> tuple[Graph, Replayed, list[str]]:
        """The same with each as fast as it then is, and what that rests on where what overlaps has moved; nothing where
        not."""
        graph, changed, done = first.graph, first.graph, first.done
        if not any(first.moved):
            return graph, done, []
        factors = [own[1 + bias] for own in self._factors]
        alone = graph.nodes["dur"].astype(np.float64)
        for old, factor in zip(first.before, factors, strict=True):
            alone = alone * old.work(factor)
        last = None
        for _ in range(ROUNDS - 1):
            slowed = alone
            now = first.now if last is None else first.effects.beside(done)
            for own, factor in zip(now, factors, strict=True):
                slowed = slowed / own.work(factor)
            last = slowed if last is None else (last + slowed) / 2
            changed, length = graph.with_nodes(dur=np.rint(last).astype(np.int64)), _length(graph, done)
            done = replay(changed)
            # Where nothing is slowed, it is as fast whatever runs beside it.
            if max(factors) <= 1 or abs(_length(graph, done) - length) < self._least / 4:
                break
        return changed, done, self.found.texts(first.moved)

    @property
    def _factors(self) -> tuple[Factors, Factors, Factors, Factors]:
        return self.found.kernels, self.found.transfers, self.found.links, self.found.ways

    def _grown(self, graph: Graph, done: Replayed, own: _Beside) -> _Beside:
        """The same for a graph that may have more nodes."""
        known, more = len(own.share), len(graph) - len(own.share)
        if not more:
            return own
        kind = np.concatenate((own.kind, np.zeros(more, np.bool_)))
        share, others = np.concatenate((own.share, np.zeros(more))), np.concatenate((own.others, np.ones(more)))
        transfers = graph.of(Node.TRANSFER) & (graph.nodes["call"] >= 0)
        old, new = np.flatnonzero(own.kind & transfers[:known]), np.flatnonzero(transfers[known:]) + known
        if len(old) and len(new):
            groups = [*_alike(self._graph, old, self._graph.nodes["start"]), *_alike(graph, new, done.start)]
            _, of = np.unique(groups, return_inverse=True)
            weight = np.maximum(self._graph.nodes["dur"][old], 1)
            total = np.bincount(of[: len(old)], weight, len(of))
            for column in (share, others):
                mean = np.bincount(of[: len(old)], weight * column[old], len(of)) / np.maximum(total, 1)
                column[new] = np.where(total[of[len(old) :]] > 0, mean[of[len(old) :]], column[new])
            kind[new] = True
        return _Beside(kind, share, others)


def _alike(graph: Graph, transfers: Times, start: Times) -> list[str]:
    """Of each transfer what it is a run of: operation and group, and whether it is a step's last one of these."""
    calls = [graph.calls[call] for call in graph.nodes["call"][transfers].tolist()]
    names = [f"{call.op} {call.group} {call.backward}" for call in calls]
    steps = [
        (name, *(int(graph.nodes[key][node]) for key in ("rank", "step")))
        for name, node in zip(names, transfers.tolist(), strict=True)
    ]
    last = {steps[place]: place for place in np.argsort(start[transfers], kind="stable").tolist()}
    return [f"{name} {last[step] == place}" for place, (name, step) in enumerate(zip(names, steps, strict=True))]


def _length(graph: Graph, done: Replayed) -> float:
    """Mean ns of what is replayed of a rank."""
    return float(np.mean([np.ptp(done.start[marks]) for marks in graph.marks.values()]))


def _kinds(graph: Graph) -> tuple[Mask, Mask]:
    kernels = graph.of(Node.DEVICE) & (graph.nodes["work"] == Kind.COMPUTE)
    return kernels, graph.of(Node.TRANSFER)


def _within(spans: Spans, start: Times, end: Times) -> Array:
    return np.asarray(measure_within(spans, start, end) / np.maximum(end - start, 1))
