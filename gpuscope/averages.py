"""`fmean` and `median` of the standard library's names: its `statistics` takes 10 ms to import."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum


def fmean(values: Iterable[float]) -> float:
    """The mean. Raises `ZeroDivisionError` where there are no values."""
    values = list(values)
    return fsum(values) / len(values)


def median(values: Iterable[float]) -> float:
    """The middle one, or the mean of the two in the middle. Raises `IndexError` where there are no values."""
    ordered = sorted(values)
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2
