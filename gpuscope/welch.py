"""How sure a difference of medians is: Yuen's and Welch's interval, for values that follow each other in time.

The median of many normal values varies as their mean does, by √(π/2) more (its asymptotic efficiency is 2/π), of few by
less: the interval is that much wider than one of means, around the difference of the medians. From `TRIMMED_FROM`
values on its width is that of trimmed means, so that the few longest and shortest values don't decide it.

B. L. Welch, «The generalization of Student's problem when several different population variances are
involved», Biometrika 34 (1947). K. K. Yuen, «The two-sample trimmed t for unequal population variances», Biometrika 61
(1974). For the steps' autocorrelation the sample counts as the independent values it is worth: n (1 − r) / (1 + r),
with r the correlation of neighbours (F. W. Zwiers and H. von Storch, «Taking serial correlation into account in tests
of the mean», Journal of Climate 8 (1995), for an AR(1) process).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import cos, expm1, fsum, isnan, nan, pi, sin, sqrt
from typing import TYPE_CHECKING, TypeVar

from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from gpuscope.trace.table import Array


# Student's t: how far a mean of a few values may lie off.


def student(chance: float, freedom: int) -> float:
    """What Student's t exceeds with this probability (Hill, «Algorithm 396: Student's t-quantiles», Communications of
    the ACM 13, 1970)."""
    both = 2 * chance
    if freedom == 1:
        return cos(both * pi / 2) / sin(both * pi / 2)
    if freedom == 2:
        return sqrt(2 / (both * (2 - both)) - 2)
    a = 1 / (freedom - 0.5)
    b = 48 / a**2
    c = ((20_700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * sqrt(a * pi / 2) * freedom
    y = (d * both) ** (2 / freedom)
    if y > 0.05 + a:
        x = _normal_quantile(chance)
        y = x * x
        if freedom < 5:
            c += 0.3 * (freedom - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = expm1(a * y * y)
    else:
        first = 1 / (((freedom + 6) / (freedom * y) - 0.089 * d - 0.822) * (freedom + 2) * 3)
        y = ((first + 0.5 / (freedom + 4)) * y - 1) * (freedom + 1) / (freedom + 2) + 1 / y
    return sqrt(freedom * y)


def _normal_quantile(chance: float) -> float:
    """`NormalDist().inv_cdf`, where it is compiled without the rest of `statistics`, which takes 10 ms to import."""
    try:
        from _statistics import _normal_dist_inv_cdf as quantile  # type: ignore[import-not-found]
    except ImportError:
        from statistics import NormalDist

        return NormalDist().inv_cdf(chance)
    return float(quantile(chance, 0.0, 1.0))


# `fmean` and `median` of the standard library's names: its `statistics` takes 10 ms to import; `quantile` and
# `middle` of numpy's, which imports its masked arrays for them, 7 ms.

Number = TypeVar("Number", int, float)


def fmean(values: Iterable[float]) -> float:
    """The mean. Raises `ZeroDivisionError` where there are no values."""
    values = list(values)
    return fsum(values) / len(values)


def whole_mean(values: Iterable[float | None]) -> int | None:
    """Of the values that are known the mean, rounded; None where none is."""
    known = [value for value in values if value is not None]
    return round(fmean(known)) if known else None


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle. Raises `IndexError` where there are no values."""
    ordered = sorted(values)
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


def lower_median(values: Iterable[Number]) -> Number:
    """The middle one; of an even number the lower of the two in the middle. Raises `IndexError` where there are no
    values."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2]


def quantile(values: Iterable[float], part: float) -> float:
    """What this part of the values lies below, on the line between the two nearest ones; as `numpy.quantile`. Raises
    `IndexError` where there are no values."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    below = int(place)
    low, high = ordered[below], ordered[min(below + 1, len(ordered) - 1)]
    over = place - below
    return low + (high - low) * over if over < 0.5 else high - (high - low) * (1 - over)


def middle(values: Array) -> float:
    """`numpy.median` of all values; NaN where one is, or where there are none."""
    ordered = values.flatten()
    ordered.sort()
    half = len(ordered) // 2
    return float((ordered[half] + ordered[-half - 1]) / 2) if len(ordered) and not isnan(ordered[-1]) else nan


MEDIAN_VARIANCE = math.pi / 2
"""Variance of the median of normal values by that of their mean."""
_OF_FEW = {2: 1.0, 3: 0.743, 4: 0.838, 5: 0.697, 6: 0.776, 7: 0.679}
"""The other way round of so few: the median's efficiency (W. J. Dixon and F. J. Massey, Introduction to Statistical
Analysis, 1969, table A-8b4). Of two values it is their mean."""
_MISSED = 0.025
"""Probability on either side of a 95 % interval."""
_CORRELATED_FROM = 10
"""Fewer values can't distinguish a correlation from chance: its standard error, 1/√n, would exceed 0.3."""
_LEAST_WORTH = 0.2
"""A correlation above two thirds is a drift or a jump rather than noise: no sample is worth less of its values."""
TRIMMED_FROM, TRIMMED = 8, 5
"""From so many values on one in five at either end is drawn in to the next one."""
_FAR = 100.0
"""More than so many times the values there are is no advice."""


@dataclass(frozen=True)
class Sample:
    """Values in their order of time, summed up."""

    median: float
    error: float
    """Variance of the median."""
    freedom: float
    """Degrees of freedom with which that is known."""

    def with_more(self, times: float) -> Sample:
        """As it would be with so many times the values."""
        return replace(self, error=self.error / times, freedom=(self.freedom + 1) * times - 1)


@dataclass(frozen=True)
class Interval:
    """A 95 % confidence interval."""

    low: float
    high: float

    @property
    def half(self) -> float:
        """Half its width."""
        return (self.high - self.low) / 2

    def scaled(self, times: float) -> Interval:
        """So many times as wide around the same middle."""
        more = (times - 1) * self.half
        return Interval(self.low - more, self.high + more)


def sample(values: Sequence[float]) -> Sample | None:
    """Median, its variance and how well that is known; None below two values, which show no spread."""
    from statistics import variance

    count = len(values)
    if count < 2:
        return None
    cut = count // TRIMMED if count >= TRIMMED_FROM else 0
    kept, worth = count - 2 * cut, _worth(values) / count
    drawn_in = (count - 1) * variance(_winsorised(values, cut)) / (kept * (kept - 1))
    wider = 1 / _OF_FEW[count] if count in _OF_FEW else MEDIAN_VARIANCE
    return Sample(median(values), wider * drawn_in / worth, max(kept * worth - 1, 1.0))


def median_interval(own: Sample) -> Interval:
    """The interval of a median."""
    return _interval(own.median, own.error, own.freedom)


def difference(before: Sample, after: Sample) -> Interval:
    """The interval of after − before."""
    errors = before.error + after.error
    parts = before.error**2 / before.freedom + after.error**2 / after.freedom
    return _interval(after.median - before.median, errors, errors**2 / parts if parts else 1.0)


def times_needed(before: Sample, after: Sample, margin: float) -> float | None:
    """How many times the values of each an interval takes that is `margin` wide to either side; None of far too many,
    or where there is no spread."""
    times = 1.0
    while difference(before.with_more(times), after.with_more(times)).half > margin:
        times *= 1.05
        if times > _FAR:
            return None
    return times


def _winsorised(values: Sequence[float], cut: int) -> list[float]:
    """The values with the `cut` least and largest at the place of the next."""
    ordered = sorted(values)
    low, high = ordered[cut], ordered[len(ordered) - 1 - cut]
    return [min(max(value, low), high) for value in values]


def _worth(values: Sequence[float]) -> float:
    count = len(values)
    if count < _CORRELATED_FROM:
        return float(count)
    middle = fmean(values)
    apart = [value - middle for value in values]
    power = sum(one * one for one in apart)
    neighbours = sum(one * other for one, other in pairwise(apart))
    correlation = neighbours / power if power else 0.0
    # A negative one would make the interval narrower, on little evidence.
    return count * max((1 - correlation) / (1 + correlation), _LEAST_WORTH) if correlation > 0 else float(count)


def _interval(middle: float, error: float, freedom: float) -> Interval:
    half = student(_MISSED, max(int(freedom), 1)) * math.sqrt(error)
    return Interval(middle - half, middle + half)
