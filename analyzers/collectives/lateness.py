"""By how much each rank was late in each judged step, beside those that do the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from gpuscope.analyzers.base.evidence import Role
from gpuscope.analyzers.collectives.recurrence import (
    MIN_RANKS,
    MIN_STEPS,
    TracedWaits,
    last_again_and_again,
    recurrence,
)
from gpuscope.analyzers.facts.clocks import rows_by_lane
from gpuscope.analyzers.facts.run_facts import CoreTimes, RunFacts
from gpuscope.trace.intervals import measure_within
from gpuscope.trace.kernel_categories import ELEMENTWISE, NORMALISATION, OPTIMIZER, SOFTMAX, kernel_category
from gpuscope.trace.name_pool import NO_NAME, NamePool
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Table, Times, distinct, distinct_values
from gpuscope.welch import median
from gpuscope.when_used import dataclass

# What each rank computes per step, beside the median of the others: by operation and shape, all ranks at once.

SAME_WORK = 0.05
"""Counts and shapes that differ by less in all are the same work."""
ON_BATCHES = (NORMALISATION, SOFTMAX, ELEMENTWISE)
"""Kernels that the device's memory limits, as it does those of an optimizer, and that take longer on a longer batch."""
MOST = 0.5
"""Share of its lateness that a reason must explain, and of a difference in work that shapes or counts must."""


def medians_of_others(values: Array) -> Array:
    """For each of at least two values the median of all the others, shape (n,): one sort instead of one per value."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    place = np.empty(len(values), np.int64)
    place[order] = np.arange(len(values))
    # Without the value at a place, those behind it move up by one.
    low, high = (len(values) - 2) // 2, (len(values) - 1) // 2
    return np.asarray((ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2)


@dataclass(frozen=True)
class Longer:
    """Per rank, ns per step that it computes longer than its median peer."""

    slower: Array
    """On the same shapes."""
    more: Array
    """For more or larger work."""
    known: Array
    """Of both, in absolute terms: where shapes or counts are known well enough to tell one from the other."""
    differs: Array
    """By how much its operations take longer or shorter than its median peer's, added up."""
    worst: Times
    """Code of the operation of which the rank has most beyond its median peer."""
    count: Array
    """How often it does that, per step."""
    usual: Array
    """How often its median peer does."""
    alone: Mask
    """Whether no other rank does it at all."""

    def told_apart(self, place: int) -> bool:
        """Whether shapes or counts are known well enough, for a rank, to tell slower work from more of it."""
        return bool(self.known[place] >= MOST * max(self.differs[place], 1.0))


@dataclass(frozen=True)
class _Shapes:
    """One operation: the ranks that do it on each shape, by place, and what they do per step."""

    operation: int
    place: Times
    count: Array
    spent: Array
    bounds: list[int]
    """Where each shape begins in the columns, and their end."""
    sized: bool
    """Whether the shapes are all recorded."""


class WorkOfRanks:
    """The table `work` of a run, by operation; of at most one row per rank, operation and shape."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.ranks: Times = distinct_values(self._table["rank"])
        """Those whose work is recorded, ascending; the place of a rank is that among these."""
        self._largest: dict[int, tuple[Times, Times]] = {}

    def place(self, rank: int) -> int | None:
        """The place of a rank; None where its work is not recorded."""
        found = int(np.searchsorted(self.ranks, rank))
        return found if found < len(self.ranks) and self.ranks[found] == rank else None

    def _operations(self) -> Iterator[_Shapes]:
        table = self._table
        place = np.searchsorted(self.ranks, table["rank"])
        operation, dims = table["operation"], table["dims"]
        order = np.lexsort((place, dims, operation))
        place, operation, dims = place[order], operation[order], dims[order]
        count, spent = (table[name][order] / table["steps"][order] for name in ("count", "dur"))
        new = np.flatnonzero(np.diff(operation, prepend=operation[:1] - 1))
        shape = np.flatnonzero((np.diff(operation, prepend=NO_NAME) != 0) | (np.diff(dims, prepend=NO_NAME - 1) != 0))
        for low, high in zip(new.tolist(), [*new[1:].tolist(), len(order)], strict=True):
            own = shape[np.searchsorted(shape, low) : np.searchsorted(shape, high)] - low
            yield _Shapes(
                int(operation[low]),
                place[low:high],
                count[low:high],
                spent[low:high],
                [*own.tolist(), high - low],
                bool((dims[low:high] != NO_NAME).all()),
            )

    @cached_property
    def longer(self) -> Longer:
        """Of each rank beside the others; of at least two ranks."""
        size = len(self.ranks)
        slower, more, known, differs, count_of_worst, usual_of_worst = (np.zeros(size) for _ in range(6))
        most, worst = np.full(size, -np.inf), np.full(size, NO_NAME, np.int64)
        alone = np.zeros(size, np.bool_)
        for one in self._operations():
            count, spent = (np.bincount(one.place, weights=of, minlength=size) for of in (one.count, one.spent))
            usual = medians_of_others(count)
            excess = spent - medians_of_others(spent)
            same = _on_same_shapes(one, size)
            slower += same
            more += excess - same
            differs += np.abs(excess)
            if one.sized:
                known += np.abs(excess)
            else:  # counts tell what more calls take; calls that take longer may be of larger shapes
                counted = np.abs(count - usual) > SAME_WORK * np.maximum(count, usual)
                known += np.where(counted, np.abs(excess - same), 0.0)
            does = np.zeros(size, np.bool_)
            does[one.place] = True
            larger = does & (excess > most)
            most[larger], worst[larger] = excess[larger], one.operation
            count_of_worst[larger], usual_of_worst[larger] = count[larger], usual[larger]
            alone[larger] = does.sum() == 1
        return Longer(slower, more, known, differs, worst, count_of_worst, usual_of_worst, alone)

    def beside_optimizer(self, names: NamePool, place: int) -> tuple[float, float] | None:
        """By what share the kernels on its batches and those of its optimizer take a rank longer than its median peer;
        None where there are none of either."""
        table = self._table
        own = np.searchsorted(self.ranks, table["rank"])
        kinds, kind = np.unique(table["operation"], return_inverse=True)
        category = np.array([kernel_category(names[code]) for code in kinds.tolist()])[kind]
        longer = []
        for wanted in (ON_BATCHES, (OPTIMIZER,)):
            spent = np.where(np.isin(category, wanted), table["dur"] / table["steps"], 0.0)
            of_rank = np.bincount(own, spent, len(self.ranks))
            usual = float(medians_of_others(of_rank)[place])
            if usual <= 0:
                return None
            longer.append(float(of_rank[place]) / usual - 1)
        return longer[0], longer[1]

    def elements(self, operation: int, rank: int) -> tuple[int, int]:
        """Elements of the largest inputs of an operation on a rank, and the median of those of the others; 0 where
        they are not recorded."""
        if operation not in self._largest:
            table = self._table
            rows = np.flatnonzero((table["operation"] == operation) & (table["dims"] != NO_NAME))
            largest = np.full(len(self.ranks), NA, np.int64)
            np.maximum.at(largest, np.searchsorted(self.ranks, table["rank"][rows]), table["elements"][rows])
            self._largest[operation] = np.flatnonzero(largest != NA), largest[largest != NA]
        places, largest = self._largest[operation]
        others = self.ranks[places] != rank
        mine = largest[~others]
        return (
            int(mine[0]) if len(mine) else 0,
            int(np.median(largest[others])) if bool(others.any()) else 0,
        )


def _on_same_shapes(one: _Shapes, size: int) -> Array:
    """ns per step that each rank spends longer on what it does than the median of the others that do the same."""
    same = np.zeros(size)
    for low, high in zip(one.bounds[:-1], one.bounds[1:], strict=True):
        if high - low > 1:
            count, spent = one.count[low:high], one.spent[low:high]
            np.add.at(same, one.place[low:high], spent - count * medians_of_others(spent / count))
    return same


@dataclass(frozen=True)
class Lateness:
    """Per step and rank, shape (steps, ranks)."""

    numbers: Times
    """The steps': the judged ones, outliers and those of the warm-up."""
    delay: Array
    """By how much longer than the median of those that do the same it took itself to come to the step's collectives,
    ns, less the time beyond its peers' rate for which its training thread had no core: that is none of its own."""
    roles: Sequence[Sequence[int]]
    """The ranks present, by what they do: those of a pipeline's stage, or all."""
    step_ns: int | None
    looks: Sequence[Mask]
    """Which steps are tested, one mask after the other: first the judged ones. In the others only lateness with a
    period is looked for, since steps that are long for that alone are outliers, or end the warm-up late."""

    @property
    def testable(self) -> bool:
        """Whether there is enough to test for a rank that is late again and again."""
        judged = self.looks[0].sum() if self.looks else 0
        return bool(judged >= MIN_STEPS) and any(len(role) >= MIN_RANKS for role in self.roles)

    def recurrent(self) -> dict[int, Late]:
        """The ranks that are late again and again, each compared with those that do the same."""
        tested = sum(len(role) for role in self.roles if len(role) >= MIN_RANKS)
        found: dict[int, Late] = {}
        for role in self.roles:
            for look, which in enumerate(self.looks):
                delay = self.delay[which][:, list(role)]
                compared = recurrence(self.numbers[which], delay, float(self.step_ns or 0), tested)
                for place in np.flatnonzero(compared.late & ((look == 0) | (compared.period > 1))).tolist():
                    late = Late(round(float(compared.usual[place])), int(compared.period[place]))
                    found.setdefault(role[place], late)
            if self.looks and len(role) >= MIN_RANKS:
                judged, every = self.looks[0], self._beside(role)
                usual = every[judged]
                for place in np.flatnonzero(
                    last_again_and_again(every, judged, float(self.step_ns or 0), tested)
                ).tolist():
                    found.setdefault(role[place], Late(round(float(median(usual[:, place].tolist()))), 1))
        return found

    def _beside(self, role: Sequence[int]) -> Array:
        """The delays of some ranks beside their median: time without a core is taken off each for itself."""
        own = self.delay[:, list(role)]
        ordered, count = np.sort(own, axis=1), own.shape[1]
        middle = (ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2  # np.median imports a tenth of numpy
        return np.asarray(own - middle[:, None])

    def last_in(self, rank: int) -> tuple[int, int]:
        """In how many of the whole steps a rank came last of those that do the same, and how many there are."""
        for role in self.roles:
            if rank in role and len(role) >= MIN_RANKS:
                own = self._beside(role)
                last = (own.argmax(axis=1) == list(role).index(rank)) & (own.max(axis=1) > 0)
                return int(last.sum()), len(own)
        return 0, 0


@dataclass(frozen=True)
class Late:
    """How a rank is late again and again."""

    usual: int
    """By how much in the steps in which it is, ns."""
    period: int
    """In every how-manieth step; 1 for all."""


def lateness(facts: RunFacts, steps: Times) -> Lateness:
    """The lateness of a run; `steps` is the step of each row of `collectives`."""
    table = facts.trace["collectives"]
    ranks = int(table["rank"].max(initial=0)) + 1
    steady = facts.steady
    roles_of_steps = {step: steady.role(step) for step in distinct_values(steps[steps != NA]).tolist()}
    whole = [
        step for step, role in roles_of_steps.items() if steady.judged(step) or role in (Role.OUTLIER, Role.WARMUP)
    ]
    numbers = np.array(whole, np.int64)
    place = np.searchsorted(numbers, steps)
    roles = [[rank for rank in role if rank < ranks] for role in roles_of(facts).values()]
    rows, group = _compared(facts, roles)
    inside = np.isin(steps[rows], numbers)
    key = place[rows[inside]] * ranks + table["rank"][rows[inside]]
    by_step = (
        np.bincount(key, _beyond_median(table["rank"], taken, rows, group)[inside], len(numbers) * ranks)
        for taken in _taken(facts, steps)
    )
    delay = np.minimum(*by_step).reshape(len(numbers), ranks)
    judged = np.array([steady.judged(step) for step in whole], np.bool_)
    outlier = np.array([roles_of_steps[step] == Role.OUTLIER for step in whole], np.bool_)
    looks = (judged, judged | outlier, judged | True)
    # By how much ranks differ by chance goes with how long their own steps last, not with the run's.
    return Lateness(numbers, delay - _without_core(facts, numbers, ranks), roles, steady.largest_ns, looks)


def _compared(facts: RunFacts, roles: Sequence[Sequence[int]]) -> tuple[Times, Times]:
    """(rows of `collectives` in order, the group of each): members of one collective that do the same. What a rank does
    before a message, or before a collective without others of its role, counts for its next one."""
    table, found = facts.trace["collectives"], facts.matched.instances
    role_of = np.zeros(int(table["rank"].max(initial=0)) + 1, np.int64)
    for number, role in enumerate(roles):
        role_of[list(role)] = number
    chosen = ~found.staged[found.owner]
    rows = found.rows[chosen]
    _, group = distinct(found.owner[chosen] * max(len(roles), 1) + role_of[table["rank"][rows]])
    several = np.bincount(group, minlength=1)[group] >= MIN_RANKS
    order = np.argsort(rows[several])
    return rows[several][order], distinct(group[several])[1][order]


def _beyond_median(rank: Times, taken: Times, rows: Times, group: Times) -> Array:
    """By how much longer than the median of its group each of `rows` took, ns: all that is `taken` since the one of
    `rows` before it, per row of `collectives`."""
    in_all = np.concatenate(([0], np.cumsum(taken)))
    before = np.concatenate((rows[:1] * 0, rows[:-1] + 1))
    own = in_all[rows + 1] - in_all[np.maximum(before, np.searchsorted(rank, rank[rows]))]
    return np.asarray(own - _medians(own, group))


def _taken(facts: RunFacts, steps: Times) -> tuple[Times, Times]:
    """Per row of `collectives`, ns that its rank took before it, by two measures: since it left all before, and since
    the one before began but for exposed communication. Both from the step's beginning on where the step before has
    none.

    The first is nothing for one that waits beside the computation, whoever is late; the second is no more than that for
    a rank which computes longer beside a transfer that all wait for anyway. A late rank has both.
    """
    table = facts.trace["collectives"]
    left_all, unexposed = (np.zeros(len(table), np.int64) for _ in range(2))
    for lane, own in rows_by_lane(facts.trace, facts.lanes):
        start, end, number = table["start"][own], table["end"][own], steps[own]
        begins = {step.step: step.start for step in lane.steps}
        begin = np.array([begins.get(one, NA) for one in number.tolist()], np.int64)
        none = start[:1] * 0 + NA
        earlier = np.concatenate((none, number[:-1]))
        fresh = (begin != NA) & ((earlier == NA) | (number - earlier > 1))
        for into, before in ((left_all, np.maximum.accumulate(end)), (unexposed, start)):
            since = np.concatenate((none, before[:-1]))
            since = np.where(fresh, np.maximum(since, begin), since)
            into[own] = np.where(since == NA, 0, np.maximum(start - since, 0))
        since = start - unexposed[own]
        unexposed[own] -= measure_within(lane.exposed_communication, since, start)
    return left_all, unexposed


def _medians(values: Times, group: Times) -> Array:
    """For each value the median of its group; of an even number the mean of the middle two."""
    order = np.lexsort((values, group))
    bounds = np.searchsorted(group[order], np.arange(int(group.max(initial=-1)) + 2))
    size = np.diff(bounds)
    ordered = values[order]
    middle = (ordered[bounds[:-1] + (size - 1) // 2] + ordered[bounds[:-1] + size // 2]) / 2
    return np.asarray(middle[group])


def roles_of(facts: RunFacts) -> dict[int, list[int]]:
    """The ranks present that do the same work and can be compared, by their stage of a pipeline; else all of them."""
    places = facts.stages.places if facts.stages is not None else {}
    found: dict[int, list[int]] = {}
    for rank in facts.trace.ranks:
        found.setdefault(places[rank][1] if rank in places else NA, []).append(rank)
    return found


def late_instances(facts: RunFacts, traced: TracedWaits, judged: Mask) -> Array:
    """Per instance, the others' exposed waiting for the rank that came last, ns; 0 where that is not certain."""
    found, measured = facts.matched.instances, facts.waits
    suffered = found.reduce(np.add, np.where(judged, measured.exposed, 0)[found.rows])
    counted = ~found.staged & (traced.direct[measured.last] > 0) if len(found) else found.staged
    return np.where(counted, suffered, 0).astype(np.float64)


def _without_core(facts: RunFacts, numbers: Times, ranks: int) -> Array:
    """By how much longer than at its median peer's rate each training thread had no core, ns, shape (steps, ranks); 0
    where that is not counted on all ranks."""
    found = np.zeros((len(numbers), ranks))
    if set(facts.core_times) != set(facts.trace.ranks) or len(facts.trace.ranks) < MIN_RANKS:
        return found
    for place, step in enumerate(numbers.tolist()):
        for rank, ns in beyond_peers(
            {rank: own[step] for rank, own in facts.core_times.items() if step in own}
        ).items():
            found[place, rank] = ns
    return found


def beyond_peers(times: Mapping[int, CoreTimes]) -> dict[int, float]:
    """By how much longer each rank had no core than at the rate of its median peer, ns: a rank with more to run
    also waits more often, which is its work's doing and not the machine's."""
    if len(times) < 2:
        return dict.fromkeys(times, 0.0)
    waited, ran = (np.array([getattr(one, name) for one in times.values()], np.float64) for name in ("waited", "ran"))
    usual = medians_of_others(waited)
    known = np.flatnonzero(ran > 0)
    if len(known) > 1:
        usual[known] = medians_of_others(waited[known] / ran[known]) * ran[known]
    return dict(zip(times, np.maximum(waited - usual, 0.0).tolist(), strict=True))


def more_to_run(times: Mapping[int, CoreTimes]) -> dict[int, float]:
    """By how much later each rank comes for what its training thread runs beyond its median peer's, ns, with the waits
    for a core that so much running brings at the peers' rate; 0 where the time on a core was not counted."""
    ran = np.array([one.ran or 0 for one in times.values()], np.float64)
    if len(ran) < 2 or not ran.all():
        return dict.fromkeys(times, 0.0)
    rate = np.array([one.waited for one in times.values()], np.float64) / ran
    longer = np.maximum(ran - medians_of_others(ran), 0.0) * (1 + medians_of_others(rate))
    return dict(zip(times, longer.tolist(), strict=True))
