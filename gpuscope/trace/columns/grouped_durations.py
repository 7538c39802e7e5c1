"""Count, sum, least, median and largest of durations, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from gpuscope import native
from gpuscope.trace.columns.table import Times


class Grouped(NamedTuple):
    """Per group, shape (groups,), ns; zeros for a group without members."""

    number: Times
    total: Times
    least: Times
    median: Times
    """Of an even number the mean of the two in the middle, whole ns."""
    largest: Times


def grouped(durations: Times, group: Times, groups: int) -> Grouped:
    """Statistics of `durations` (not negative) by their `group`, 0 to `groups` − 1; both of shape (n,)."""
    return Grouped(*native.group(durations, group, groups))


def grouped_parts(parts: Callable[[], Iterable[tuple[Times, Times]]], groups: int) -> Grouped:
    """As `grouped`, of durations and groups part by part, asked for twice: for many rows that would not all fit."""
    from gpuscope.native.plain import group_parts

    return Grouped(*group_parts(parts, groups))
