"""Which ranks of a large run are replayed, and which of them stands in for each of the others.

Ranks that exchange most with each other (tensor parallelism, a pipeline) stay together: they are chosen by such units,
so that only collectives over many units lose members. Of units whose ranks do the same the typical one is kept, those
that others wait for most, and those that compute most and least. A collective still has its true size and cost, and an
absent rank arrives at it as much behind its stand-in as it did in the recording.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import zip_longest

import numpy as np

from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.replay.from_trace import recorded_steps
from gpuscope.trace.columns.table import Times
from gpuscope.when_used import dataclass

MOST, ENOUGH = 64, 8
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
    steps = recorded_steps.RUN_KEPT / max(1.0, UNEVEN * largest)
    room = int(min(MOST, max(steps / recorded_steps.STEPS_WANTED, min(ENOUGH, steps))))
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
