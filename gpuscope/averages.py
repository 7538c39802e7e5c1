"""`fmean` and `median` of the standard library's names: its `statistics` takes 10 ms to import; `quantile` and
`middle` of numpy's, which imports its masked arrays for them, 7 ms."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isnan, nan
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from gpuscope.trace.columns.table import Array

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
