"""Which ranks are late again and again, from how late each was in each step: steadily, or with a period.

The rates at which healthy ranks are accused and late ones found are in docs/definitions.md, and
tests/analyzers/collectives/test_recurrence.py simulates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, comb, exp, lgamma, log, sqrt

import numpy as np

from gpuscope.analyzers.collectives.activity import Lead, lead
from gpuscope.analyzers.facts.clocks import Clocks, Waits
from gpuscope.analyzers.facts.matching import Matched
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Table, Times, distinct
from gpuscope.trace.trace import Trace
from gpuscope.welch import middle, student
from gpuscope.when_used import dataclass

MIN_STEPS = 2
MIN_RANKS = 2
MIN_LATE = 0.01
"""Share of the step by which a late rank is late at least."""
MAX_CHANCE = 0.01
"""Probability of accusing any rank of a job whose ranks differ by chance."""
NORMAL_MAD = 1.4826
"""Standard deviation of a normal distribution by its median absolute deviation."""
EXPECTED_SPREAD, EXPECTED_WEIGHT = 0.02, 2
"""Before any step is measured: how much ranks differ from step to step, as a share of it, and for how many degrees of
freedom that counts."""
CLEAR = 1 / 3
"""A step is clearly late with this share of the rank's usual lateness…"""
MOST_STEPS = 0.75
"""… and a late rank is that in so many of its steps."""
MANY_RANKS = 8
"""From so many ranks on, how far they lie apart shows whether one stands out. Of noise that is lognormal the largest of
many is far out, too, in few steps more than in many: so many spreads, and these by the number of steps…"""
SPREADS, SPREADS_BY_STEPS = 4.0, 22.0
MAX_REPEATED = 0.003
"""… unless so many ranks are late in most steps as would be by chance with this probability."""
MOST = 0.5
"""Ranks take turns if others are late in so many of the steps in which one is not."""
MATERIAL = 0.1
"""By ranks alone a rank is told late again and again if it is late by this share of the step: what is too little for
`MAX_CHANCE` in steps is made up for by size…"""
RANKS_CHANCE = 0.05
"""… with this probability of accusing any rank of a job, whatever the distribution of what ranks differ by."""
MIN_PERIODS = 3
"""Lateness is periodic if it has returned so often."""


@dataclass(frozen=True)
class Recurrence:
    """Of ranks that are compared with each other."""

    late: Mask
    """Who is late again and again, shape (ranks,)."""
    usual: Array
    """By how much beyond the median of them all, in the steps in which it is, ns; shape (ranks,)."""
    period: Times
    """In every how-manieth step; 1 for all."""


def recurrence(numbers: Times, delay: Array, step_ns: float, tested: int) -> Recurrence:
    """`delay` is by how much each rank is later than the median rank, ns, shape (steps, ranks); `numbers` are the
    steps', `step_ns` is how long one takes. `tested` is how many ranks of the job are tested in all."""
    steps, ranks = delay.shape
    none = Recurrence(np.zeros(ranks, np.bool_), np.zeros(ranks), np.ones(ranks, np.int64))
    if steps < MIN_STEPS or ranks < MIN_RANKS:
        return none
    usual = _usual(delay)
    steady = _steady(delay, usual, step_ns, tested)
    period = none.period
    for one, rank, every in _periodic(numbers, delay, ~steady, step_ns, tested):
        usual[rank], period[rank] = one, every
    return Recurrence(steady | (period > 1), usual, period)


def _steady(delay: Array, usual: Array, step_ns: float, tested: int) -> Mask:
    """Who is late in most of the steps."""
    steps, ranks = delay.shape
    late = (usual > max(MIN_LATE * step_ns, _by_chance([delay], steps, MAX_CHANCE / tested, step_ns))) & _mostly(
        delay, usual
    )
    if ranks < MANY_RANKS or not late.any():
        return np.asarray(late)
    apart = NORMAL_MAD * np.median(np.abs(usual - np.median(usual)))
    far = usual > (SPREADS + SPREADS_BY_STEPS / steps) * apart
    if not far[late].all() and _repeated(delay, CLEAR * usual[late].min()) < MAX_REPEATED:
        return np.asarray(late)
    return np.asarray(late & far)


def last_again_and_again(every: Array, judged: Mask, step_ns: float, tested: int) -> Mask:
    """Who comes last in so many of all steps that ranks which differ by chance hardly ever would, however unlike the
    steps are: what holds the interpreter's lock, a disk or a network makes a rank 10 ms late in one step and 500 in the
    next, and the spread of such numbers proves nothing.

    `every` is the delay in all whole steps, `judged` tells which of these are judged: there it has to be late too. In a
    step of healthy ranks each is among the last q by a chance of q / ranks: a binomial test, for one rank and for a
    quarter of all that are late alike.
    """
    steps, ranks = every.shape
    none = np.zeros(ranks, np.bool_)
    if steps < MIN_STEPS or ranks < MIN_RANKS or judged.sum() < MIN_STEPS:
        return none
    late = _usual(every[judged]) * ranks / (ranks - 1) >= MATERIAL * step_ns  # of two ranks the median lies between
    if not late.any():
        return none
    place = np.argsort(np.argsort(-every, axis=1, kind="stable"), axis=1, kind="stable")
    looks = sorted({1, max(ranks // 4, 1)})
    found = none
    for last in looks:
        hits = (place < last) & (every > 0)
        chances = [_at_least(count, steps, last / ranks) * tested * len(looks) for count in hits.sum(axis=0).tolist()]
        found = found | ((np.array(chances) <= RANKS_CHANCE) & (hits[judged].mean(axis=0) >= MOST_STEPS))
    return np.asarray(found & late)


def _at_least(hits: int, trials: int, chance: float) -> float:
    """Probability of at least so many hits by chance (binomial)."""
    return sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(hits, trials + 1))


def _usual(delay: Array) -> Array:
    """By how much each rank is late in the middle half of its steps; of few steps the lower median, which one long
    pause does not move."""
    steps = len(delay)
    ordered = np.sort(delay, axis=0)
    if steps < 8:
        return np.array(ordered[(steps - 1) // 2], np.float64)
    return np.asarray(ordered[steps // 4 : steps - steps // 4].mean(axis=0))


def _mostly(delay: Array, usual: Array) -> Mask:
    return np.asarray((delay >= CLEAR * usual).mean(axis=0) >= MOST_STEPS)


def _by_chance(alike: Sequence[Array], steps: int, chance: float, step_ns: float) -> float:
    """What the mean over so many steps exceeds with this probability, ns, by Student's distribution. The spread is that
    from one step to the next of those that are `alike`, which lateness that stays leaves alone; a median of deviations
    is worth about half of their number (its efficiency is 37 %: Rousseeuw, Croux, «Alternatives to the median absolute
    deviation», 1993). Of so few numbers that they say next to nothing, what is usual counts beside them (Smyth, «Linear
    models and empirical Bayes methods», 2004)."""
    changes = np.concatenate([np.diff(delay, axis=0) for delay in alike])
    spread = NORMAL_MAD * middle(np.abs(changes)) / sqrt(2)
    freedom = max(1, ceil((changes.shape[1] - 1) * len(changes) / 2))
    expected = EXPECTED_SPREAD * step_ns
    moderated = sqrt((freedom * spread**2 + EXPECTED_WEIGHT * expected**2) / (freedom + EXPECTED_WEIGHT))
    by_both = student(chance, freedom + EXPECTED_WEIGHT) * moderated
    return min(student(chance, freedom) * spread, by_both) / sqrt(steps)


def _repeated(delay: Array, clear: float) -> float:
    """Probability that so many ranks are late by `clear` in most steps where in each step others were: Poisson, with
    the mean that follows from how many ranks are late in each."""
    late = delay >= clear
    needed = ceil(MOST_STEPS * len(late))
    seen = int((late.sum(axis=0) >= needed).sum())
    hits = np.ones(1)
    for share in late.mean(axis=1).tolist():
        hits = np.convolve(hits, (1 - share, share))
    expected = delay.shape[1] * float(hits[needed:].sum())
    if not expected:
        return float(not seen)
    return 1.0 - sum(exp(count * log(expected) - expected - lgamma(count + 1)) for count in range(seen))


def _periodic(
    numbers: Times, delay: Array, ranks: Mask, step_ns: float, tested: int
) -> Iterator[tuple[float, int, int]]:
    """(by how much, rank, period) of those among `ranks` that are late in every so-manieth step and in no others."""
    steps, span = len(numbers), int(numbers[-1] - numbers[0]) + 1
    tries = sum(range(2, span // MIN_PERIODS + 1))
    chance = MAX_CHANCE / tested / max(tries, 1)
    latest = np.argsort(-delay, axis=0, kind="stable")
    ordered = np.take_along_axis(delay, latest, axis=0)
    for count in range(MIN_PERIODS, steps // 2 + 2 if tries else 0):
        usual = _usual(ordered[:count])
        line = CLEAR * usual
        clear = (
            ranks
            & (usual > MIN_LATE * step_ns)
            & (ordered[count - 1] >= line)
            & (ordered[min(count, steps - 1)] < line)
        )
        for rank in np.flatnonzero(clear).tolist():
            own = np.sort(latest[:count, rank])
            period = int(np.gcd.reduce(np.diff(numbers[own])))
            turn = (numbers - numbers[own[0]]) % period == 0
            if period < 2 or turn.sum() != count:
                continue
            late = delay[:, ranks] >= line[rank]
            if late[~turn].any(axis=1).mean() >= MOST:
                continue  # ranks take turns
            so_often = (late.sum() - count + 1) / (late.size - count + 1)
            if so_often**count < chance and usual[rank] > _by_chance(
                [delay[turn], delay[~turn]], count, chance, step_ns
            ):
                yield float(usual[rank]), rank, period


# Who is slow in a running job, since when, and whether in what it does itself or in its link.
#
# A rank is late by what it needs itself in a step (definitions: «Waiting and transferring»), and a group's transfers
# are
# slow by the shortest time that any of its ranks spends in them: whoever comes last waits for nobody. Ranks are
# compared
# with each other, and so are groups that transfer the same. The rates at which healthy jobs are accused, and slow ranks
# and links found, are simulated in tests/analyzers/collectives/test_slow_members.py.

WINDOW = 20
"""Steps that are judged at once."""
NOTABLE = 0.05
"""Share of the step by which a rank or link must be late to be named."""
SLOWER = 1.25
"""A group's transfers are slow from so many times those of its peers on."""
CHANGE = 0.001
"""Probability by chance below which a series has changed (Pettitt)."""


@dataclass(frozen=True)
class Slow:
    """A member (a rank, or a group of ranks) that is slow in all the last steps."""

    member: int
    """Column of what was compared."""
    by_ns: int
    """Per step, beyond the median of all."""
    since: int | None
    """The step from which on it has been so; None where it has been in all that is known."""
    period: int


def slow(numbers: Times, spent: Array, step_ns: float) -> list[Slow]:
    """The members that are slow now, the slowest first. `spent` is what each needs in each step, ns, shape (steps,
    members); `numbers` are the steps'.

    A running job is judged again with every look, so who is named has to be late in two windows that share no step.
    """
    steps, members = spent.shape
    if steps < WINDOW or members < 2:
        return []
    delay = spent - np.median(spent, axis=1, keepdims=True)

    def twice(half: int) -> tuple[Mask, Array, Times]:
        windows = (slice(steps - 2 * half, steps - half), slice(steps - half, steps))
        one, other = (recurrence(numbers[own], delay[own], step_ns, members) for own in windows)
        usual = np.minimum(one.usual, other.usual)
        return one.late & other.late & (one.period == other.period) & (usual >= NOTABLE * step_ns), usual, one.period

    late, usual, period = twice(WINDOW // 2)
    late &= period == 1
    if steps >= 2 * WINDOW:
        periodic, by, every = twice(WINDOW)
        periodic &= every > 1
        late, usual, period = late | periodic, np.where(periodic, by, usual), np.where(periodic, every, period)
    named = [
        Slow(int(one), round(float(usual[one])), since(numbers, delay[:, one]), int(period[one]))
        for one in np.flatnonzero(late)
    ]
    return sorted(named, key=lambda one: -one.by_ns)


def since(numbers: Times, values: Array) -> int | None:
    """The step at which a series became larger for good, if it did so beyond chance (Pettitt, «A non-parametric
    approach to the change-point problem», Applied Statistics 28, 1979); None where it was so from the beginning."""
    count = len(values)
    _, place_of, alike = np.unique(values, return_inverse=True, return_counts=True)
    twice_rank = 2 * np.cumsum(alike) - alike + 1  # equal values share a rank
    statistic = np.arange(1, count + 1) * (count + 1) - np.cumsum(twice_rank[place_of])
    place = int(np.argmax(statistic[:-1])) if count > 1 else 0
    if count < 2 or 2 * exp(-6 * float(statistic[place]) ** 2 / (count**3 + count**2)) > CHANGE:
        return None
    return int(numbers[place + 1])


@dataclass(frozen=True)
class SlowLink:
    """Transfers that take longer than those of other groups. `ranks` is the one that is in all the slow groups and in
    none of the others, else the members of the slow ones."""

    ranks: tuple[int, ...]
    groups: tuple[str, ...]
    times: float
    """So many times as long as its peers'."""
    since: int | None


def slow_links(
    numbers: Times,
    transfers: Mapping[str, Array],
    members: Mapping[str, Sequence[int]],
    alike: Mapping[str, object],
    step_ns: float,
) -> list[SlowLink]:
    """Groups whose transfers are slow now. `transfers` is by group the time of each step, ns; those of equal `alike`
    move the same and are compared."""
    slow_ones: dict[str, tuple[float, int | None]] = {}
    compared: list[str] = []
    for kind in dict.fromkeys(alike.values()):
        own = [group for group in transfers if alike[group] == kind]
        if len(own) < 2:
            continue
        compared += own
        spent = np.stack([transfers[group] for group in own], axis=1)
        usual = float(np.median(spent[-WINDOW:]))
        for one in slow(numbers, spent, step_ns):
            if usual and one.by_ns >= (SLOWER - 1) * usual:
                slow_ones[own[one.member]] = (1 + one.by_ns / usual, one.since)
    if not slow_ones:
        return []
    fine = {rank for group in compared if group not in slow_ones for rank in members[group]}
    shared = set.intersection(*(set(members[group]) for group in slow_ones))
    alone = shared - fine if len(slow_ones) > 1 or len(shared - fine) == 1 else set()
    ranks = alone if len(alone) == 1 else set().union(*(members[group] for group in slow_ones))
    starts = [begin for _, begin in slow_ones.values() if begin is not None]
    return [
        SlowLink(
            tuple(sorted(ranks)),
            tuple(sorted(slow_ones)),
            max(times for times, _ in slow_ones.values()),
            min(starts, default=None),
        )
    ]


# Whose lateness a wait goes back to, and what that rank was doing when it fell behind.
#
# A rank that comes last is compared with a peer, the median arrival of those that waited. Its lateness is what it took
# longer than the peer since its own last communication, plus what it was behind already when that ended. The first
# part is its own; the second is traced on, to the rank that came last there, compared with the one in the same place
# of the peer's own collective (ranks of one program do the same in the same order). Where both had just left one
# collective nothing was behind, whatever happened before: it has evened everyone out. Where the programs differ, as
# those
# of the stages of a pipeline that drains, the trail ends, and the rest is traced to no rank.

ROOT_CAUSE_MOST = 0.5
"""A phase or an operation is named where it holds at least this share of a rank's lateness."""
_HOPS = 10_000
"""A trail longer than this is given up: it would take more time than the answer is worth."""


@dataclass(frozen=True)
class TracedWaits:
    """Per row of `collectives`, ns of waiting of others, overlapped or not."""

    direct: Times
    """Waiting for this row, where it came last."""
    own: Array
    """Waiting traced back to what its rank did before it."""
    peer: Times
    """Row of a peer that did the same in less time, for rows with `own`; else NA."""


@dataclass(frozen=True)
class _Rows:
    """Per row of `collectives`, on the common clock."""

    rank: Times
    op: Times
    start: Times
    end: Times
    lead: Lead
    since: Times
    instance: Times
    arrival: Times
    """Row that came last in the row's instance; the row itself where unmatched."""


@dataclass(frozen=True)
class _Trails:
    """Rows on the trail of waits: `late` against `peer`, and the waiting (ns) that goes back to there."""

    late: Times
    peer: Times
    wait: Array

    def take(self, which: Mask) -> _Trails:
        return _Trails(self.late[which], self.peer[which], self.wait[which])


def trace_waits(trace: Trace, matched: Matched, measured: Waits, clock: Clocks, counted: Mask) -> TracedWaits:
    """Trace the waits of the instances that are `counted` (a mask) to the rows behind them."""
    table, found = trace["collectives"], matched.instances
    direct, peer = np.zeros(len(table), np.int64), np.full(len(table), NA, np.int64)
    own = np.zeros(len(table))
    suffered = found.reduce(np.add, measured.wait[found.rows])
    last = measured.last[counted]
    direct[last] = suffered[counted]
    rows = _rows(table, matched, measured, clock)
    trails = _Trails(last, _median_peer(rows, matched)[counted], suffered[counted].astype(np.float64))
    for _ in range(_HOPS):
        if not len(trails.late):
            break
        trails = _follow(rows, matched, trails, clock.error or 0, own, peer)
    return TracedWaits(direct, own, peer)


def _rows(table: Table, matched: Matched, measured: Waits, clock: Clocks) -> _Rows:
    itself = np.arange(len(table))
    of_row, last = matched.of_row, measured.last
    arrival = np.where(of_row == NA, itself, last[np.maximum(of_row, 0)]) if len(last) else itself
    start, end = (clock.common(table["rank"], table[name]) for name in ("start", "end"))
    before = lead(table)
    since = clock.common(table["rank"], np.where(before.since == NA, table["start"], before.since))
    return _Rows(table["rank"], table["op"], start, end, before, since, of_row, arrival)


def _median_peer(rows: _Rows, matched: Matched) -> Times:
    """Per instance, the row of the median arrival among those before the last."""
    found = matched.instances
    order = np.lexsort((rows.start[found.rows], found.owner))
    return np.asarray(found.rows[order][found.bounds[:-1] + np.maximum(found.sizes - 2, 0) // 2])


def _follow(rows: _Rows, matched: Matched, trails: _Trails, error: int, own: Array, peer: Times) -> _Trails:
    """Charge each late row with its own part, and return the trails that lead on."""
    late, other = trails.late, trails.peer
    source, ended = rows.lead.row[late], rows.lead.ended[late]
    counterpart = other - (late - source)  # as far back in the peer's program
    begun = (source == NA) & (rows.lead.row[other] == NA)
    comparable = (source != NA) & (counterpart >= 0)
    at, against = np.where(comparable, source, late), np.where(comparable, counterpart, other)
    comparable &= (rows.rank[against] == rows.rank[other]) & (rows.op[at] == rows.op[against])
    behind = rows.since[late] - rows.since[other]
    both = ended & rows.lead.ended[other] & (rows.lead.row[other] == against)
    one = (rows.instance[at] != NA) & (rows.instance[at] == rows.instance[against])
    behind = np.where((comparable & both & one) | begun | (behind <= error), 0, behind)
    share = np.clip(behind / np.maximum(rows.start[late] - rows.start[other], 1), 0, 1)
    mine = (comparable | begun) & (share < 1)
    np.add.at(own, late[mine], (trails.wait * (1 - share))[mine])
    peer[late[mine]] = other[mine]
    goes_on = comparable & (share > 0)
    # The transfer that took longer than the peer's is no rank's lateness.
    slower = np.where(both, _transfer(rows, at) - _transfer(rows, against), 0)
    kept = np.clip(1 - slower / np.maximum(behind, 1), 0, 1)
    jumped = np.where(ended, rows.arrival[at], at)
    mirrored = np.where(ended & ~one, _same_place(matched, rows, at, against, jumped), against)
    mirrored = np.where(one & (mirrored == jumped), at, mirrored)
    goes_on &= (mirrored != NA) & (kept > 0) & (rows.start[jumped] < rows.start[late])
    return _Trails(jumped, mirrored, trails.wait * share * kept).take(goes_on)


def _transfer(rows: _Rows, at: Times) -> Times:
    return rows.end[at] - rows.start[rows.arrival[at]]


def _same_place(matched: Matched, rows: _Rows, at: Times, against: Times, jumped: Times) -> Times:
    """The row that stands in the instance of `against` where `jumped` stands in that of `at`; NA if there is none."""
    found = matched.instances
    first, second = rows.instance[at], rows.instance[against]
    alone = (first == NA) & (second == NA)
    if not len(found):
        return np.where(alone, against, NA)
    sizes = found.sizes
    same_size = (first != NA) & (second != NA) & (sizes[np.maximum(first, 0)] == sizes[np.maximum(second, 0)])
    place = np.zeros(len(rows.rank), np.int64)
    place[found.rows] = np.arange(len(found.rows)) - found.bounds[:-1][found.owner]
    position = found.bounds[np.maximum(second, 0)] + np.where(same_size, place[jumped], 0)
    return np.where(alone, against, np.where(same_size, found.rows[position], NA))


@dataclass(frozen=True)
class Doing:
    """What made a rank late: ns by phase and by operation."""

    phases: dict[str, float]
    operations: dict[str, float]

    def phase(self) -> str | None:
        """The phase that holds most of its lateness, or None."""
        return _most(self.phases)

    def operation(self) -> str | None:
        """The operation that holds most of its lateness, or None."""
        return _most(self.operations)


def _most(spent: dict[str, float]) -> str | None:
    best = max(spent, key=lambda name: spent[name], default="")
    return best if best and spent[best] >= ROOT_CAUSE_MOST * sum(spent.values()) else None


def doing(trace: Trace, traced: TracedWaits) -> dict[int, Doing]:
    """Per rank, what it spent longer on than its peers before the collectives it was late for.

    Each row's `own` is divided by the excess of the row's phases and operations over its peer's.
    """
    late = np.flatnonzero((traced.own > 0) & (traced.peer != NA))
    found: dict[int, Doing] = {}
    for column in ("phase", "operation"):
        rank, code, spent = _excess(trace, traced, late, column)
        for of_rank, of_code, ns in zip(rank.tolist(), code.tolist(), spent.tolist(), strict=True):
            into = found.setdefault(of_rank, Doing({}, {}))
            (into.phases if column == "phase" else into.operations)[trace.names[of_code]] = ns
    return found


def _excess(trace: Trace, traced: TracedWaits, late: Times, column: str) -> tuple[Times, Times, Array]:
    """(rank, code of the phase or operation, ns of its share of the lateness)."""
    table, width = trace["activity"], len(trace.names) + 1
    mine, theirs = (_activity_of(table["collective"], rows) for rows in (late, traced.peer[late]))
    which, activity = np.concatenate((mine[0], theirs[0])), np.concatenate((mine[1], theirs[1]))
    sign = np.repeat([1.0, -1.0], [len(mine[0]), len(theirs[0])])
    keys, place = distinct(which * width + table[column][activity] + 1)
    of_late, code = keys // width, keys % width - 1
    longer = np.maximum(np.bincount(place, weights=table["dur"][activity] * sign, minlength=len(keys)), 0.0)
    total = np.bincount(of_late, weights=longer, minlength=len(late))
    share = longer * (traced.own[late] / np.where(total > 0, total, 1))[of_late]
    pairs, pair = distinct(trace["collectives"]["rank"][late[of_late]] * width + code + 1)
    summed = np.bincount(pair, weights=share, minlength=len(pairs))
    return pairs // width, pairs % width - 1, summed


def _activity_of(collective: Times, wanted: Times) -> tuple[Times, Times]:
    """All rows of `activity` of each row of `collectives` wanted: (place in `wanted`, row of `activity`) pairs."""
    order = np.argsort(collective, kind="stable")
    low, high = (np.searchsorted(collective[order], wanted, side) for side in ("left", "right"))
    count = high - low
    which = np.repeat(np.arange(len(wanted)), count)
    inside = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    return which, order[np.repeat(low, count) + inside]
