"""Which ranks are late again and again, from how late each was in each step: steadily, or with a period.

The rates at which healthy ranks are accused and late ones found are in docs/definitions.md, and
tests/analyzers/collectives/test_recurrence.py simulates them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, exp, lgamma, log, sqrt

import numpy as np

from gpuscope.averages import middle
from gpuscope.student import student
from gpuscope.trace.columns.table import Array, Mask, Times
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
