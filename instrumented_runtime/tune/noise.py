"""How much runs with the same settings differ, and what two groups of runs say of each other.

A run is one value: the steps within it show less than what two runs differ by (clocks, placement, neighbours). The
variance between runs is pooled over the groups of the session, each of the same settings, whose step is about as long,
so that few runs of each do; never below what the steps within the runs show. The interval of the difference is
Student's, by `gpuscope.welch`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from gpuscope.instrumented_runtime.tune.measured import Run, levels
from gpuscope.student import student
from gpuscope.welch import Interval, Sample, median_interval


@dataclass(frozen=True)
class Noise:
    """Variance of a run's step time, as a logarithm, and with how many degrees of freedom it is known."""

    variance: float
    freedom: int

    @property
    def fraction(self) -> float:
        """The standard deviation: for small ones the share of the step."""
        return math.sqrt(self.variance)

    def interval(self, middle: float, before: float, after: float) -> Interval:
        """The 95 % interval of the difference of two groups of so many runs."""
        return median_interval(Sample(middle, self.variance * (1 / before + 1 / after), self.freedom))

    def apart(self, before: float, after: float) -> float:
        """How far two groups of so many runs with the same step lie apart at most, nine times in ten."""
        return student(0.05, self.freedom) * math.sqrt(self.variance * (1 / before + 1 / after))


PRIOR = Noise(0.072**2, 4)
"""What is assumed until runs have shown it: a standard deviation of 7.2 %, as measured between the runs of the session
in docs/tuning.md, on two cores that other jobs kept busy. On quiet machines runs differ by a tenth of that."""
ENOUGH = 3
"""Degrees of freedom from which a session's own runs tell it."""


def assumed(known: Noise | None) -> Noise:
    """What runs have shown, where these are enough; else with what is assumed."""
    return known if known is not None and known.freedom >= ENOUGH else with_prior(known)


def with_prior(known: Noise | None) -> Noise:
    """What runs have shown and what is assumed, each by its degrees of freedom; no less than what was shown."""
    if known is None:
        return PRIOR
    freedom = PRIOR.freedom + known.freedom
    pooled = (PRIOR.freedom * PRIOR.variance + known.freedom * known.variance) / freedom
    return Noise(max(pooled, known.variance), freedom)


NEAR = 1.5
"""Steps that differ by no more than this factor are taken to be as noisy as each other."""


def near(groups: Sequence[Sequence[Run]], best: Sequence[Run]) -> list[Sequence[Run]]:
    """The groups whose step is about as long as the best's."""
    middle = fmean(levels(best))
    return [one for one in groups if (own := levels(one)) and abs(fmean(own) - middle) <= math.log(NEAR)]


def noise(groups: Sequence[Sequence[Run]]) -> Noise | None:
    """Pooled over groups of runs, each of the same settings; None where no group has two."""
    measured = [own for group in groups if (own := levels(group))]
    freedom = sum(len(own) - 1 for own in measured)
    if not freedom:
        return None
    squares = sum((one - fmean(own)) ** 2 for own in measured for one in own)
    # The median: a hiccup in a block makes one run's own spread huge.
    within = median(run.step.error for group in groups for run in group if run.step is not None)
    return Noise(max(squares / freedom, within), freedom)


def change(before: Sequence[Run], after: Sequence[Run], known: Noise) -> Interval:
    """The 95 % interval of the logarithm of after / before."""
    one, other = levels(before), levels(after)
    return known.interval(fmean(other) - fmean(one), len(one), len(other))
