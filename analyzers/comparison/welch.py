"""How sure a difference of medians is: Welch's interval, for values that follow each other in time.

The median of n normal values varies as their mean does, by √(π/2) more (the median's asymptotic efficiency is 2/π):
the interval is Welch's, that much wider, around the difference of the medians.

B. L. Welch, «The generalization of Student's problem when several different population variances are
involved», Biometrika 34 (1947). For the steps' autocorrelation the sample counts as the independent values it
is worth: n (1 − r) / (1 + r), with r the correlation of neighbours (F. W. Zwiers and H. von Storch, «Taking
serial correlation into account in tests of the mean», Journal of Climate 8 (1995), for an AR(1) process).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, variance

MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of normal values by that of their mean."""
_QUANTILES = (
    (1, 12.706), (2, 4.303), (3, 3.182), (4, 2.776), (5, 2.571), (6, 2.447), (7, 2.365), (8, 2.306), (9, 2.262),
    (10, 2.228), (11, 2.201), (12, 2.179), (13, 2.160), (14, 2.145), (15, 2.131), (16, 2.120), (17, 2.110),
    (18, 2.101), (19, 2.093), (20, 2.086), (21, 2.080), (22, 2.074), (23, 2.069), (24, 2.064), (25, 2.060),
    (26, 2.056), (27, 2.052), (28, 2.048), (29, 2.045), (30, 2.042), (40, 2.021), (60, 2.000), (120, 1.980),
)  # fmt: skip
"""Student's t for a two-sided 95 % interval by degrees of freedom (NIST/SEMATECH e-Handbook of Statistical
Methods, 1.3.6.7.2). Degrees between two rows take the lower one: the interval is then never too narrow."""
_CORRELATED_FROM = 10
"""Fewer values can't distinguish a correlation from chance: its standard error, 1/√n, would exceed 0.3."""


@dataclass(frozen=True)
class Sample:
    """Values in their order of time, summed up."""

    median: float
    variance: float
    worth: float
    """Independent values they are worth."""

    @property
    def error(self) -> float:
        """Variance of the median."""
        return MEDIAN_VARIANCE * self.variance / self.worth


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float


def sample(values: Sequence[float]) -> Sample | None:
    """Median, variance and worth; None below two values, which show no spread."""
    if len(values) < 2:
        return None
    return Sample(median(values), variance(values), _worth(values))


def median_interval(own: Sample) -> Interval:
    """The interval of a median."""
    return _interval(own.median, own.error, own.worth - 1)


def difference(before: Sample, after: Sample) -> Interval:
    """The interval of after − before."""
    errors = before.error + after.error
    parts = before.error**2 / (before.worth - 1) + after.error**2 / (after.worth - 1)
    return _interval(after.median - before.median, errors, errors**2 / parts if parts else 1.0)


def steps_needed(before: Sample, after: Sample, margin: float) -> int:
    """Steps of each run with which an interval of this spread would be `margin` wide to each side, if the steps
    are independent."""
    spread = MEDIAN_VARIANCE * (before.variance + after.variance)
    for freedom, quantile in _QUANTILES:
        if quantile**2 * spread / (freedom + 1) <= margin**2:
            return freedom + 1
    return math.ceil(_QUANTILES[-1][1] ** 2 * spread / margin**2)


def _worth(values: Sequence[float]) -> float:
    count = len(values)
    if count < _CORRELATED_FROM:
        return float(count)
    middle = fmean(values)
    apart = [value - middle for value in values]
    power = sum(one * one for one in apart)
    neighbours = sum(one * other for one, other in pairwise(apart))
    correlation = neighbours / power if power else 0.0
    # A negative one would make the interval narrower, on little evidence; and two values are the least there is.
    return max(count * (1 - correlation) / (1 + correlation), 2.0) if correlation > 0 else float(count)


def _interval(middle: float, error: float, freedom: float) -> Interval:
    row = bisect_right(_QUANTILES, freedom, key=lambda one: one[0]) - 1
    half = _QUANTILES[max(row, 0)][1] * math.sqrt(error)
    return Interval(middle - half, middle + half)
