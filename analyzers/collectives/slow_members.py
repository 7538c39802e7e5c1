"""Who is slow in a running job, since when, and whether in what it does itself or in its link.

A rank is late by what it needs itself in a step (definitions: «Waiting and transferring»), and a group's transfers are
slow by the shortest time that any of its ranks spends in them: whoever comes last waits for nobody. Ranks are compared
with each other, and so are groups that transfer the same. The rates at which healthy jobs are accused, and slow ranks
and links found, are simulated in tests/analyzers/collectives/test_slow_members.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp

import numpy as np

from gpuscope.analyzers.collectives.recurrence import recurrence
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.when_used import dataclass

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
