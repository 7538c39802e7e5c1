"""Count, sum, least, median and largest of durations, group by group: by the native core, or in one sort."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gpuscope.native import core
from gpuscope.trace.columns.table import Times

_BITS = 62


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
    if core is not None:
        found = np.empty((len(Grouped._fields), groups), np.int64)
        core.group(np.ascontiguousarray(durations, np.int64), np.ascontiguousarray(group, np.int64), found)
        return Grouped(*found)
    return grouped_parts(lambda: [(durations, group)], groups)


def grouped_parts(parts: Callable[[], Iterable[tuple[Times, Times]]], groups: int) -> Grouped:
    """As `grouped`, of durations and groups part by part, asked for twice: for many rows that would not all fit."""
    counts, total, longest = np.zeros(groups, np.int64), np.zeros(groups, np.int64), 0
    for durations, group in parts():
        counts += np.bincount(group, minlength=groups)
        np.add.at(total, group, durations)
        longest = max(longest, int(durations.max(initial=0)))
    if not counts.any():
        return Grouped(counts, total, total, total, total)
    bits = longest.bit_length()
    if bits + groups.bit_length() > _BITS:
        ordered, mask = _ordered(parts()), -1
    else:
        # Sorting one number per row is several times as fast as sorting by two keys.
        dtype: type = np.uint32 if bits + groups.bit_length() <= 32 else np.int64
        ordered, mask, filled = np.empty(int(counts.sum()), dtype), (1 << bits) - 1, 0
        for durations, group in parts():
            into = ordered[filled : filled + len(group)]
            into[:] = group
            into <<= bits
            into |= durations.astype(dtype)
            filled += len(group)
        ordered.sort()
    first = np.cumsum(counts) - counts
    some = counts > 0

    def at(place: Times) -> Times:
        found = (ordered[np.minimum(place, len(ordered) - 1)] & mask).astype(np.int64)
        return np.where(some, found, 0)

    median = (at(first + (counts - 1) // 2) + at(first + counts // 2)) // 2
    return Grouped(counts, total, at(first), median, at(first + counts - 1))


def _ordered(parts: Iterable[tuple[Times, Times]]) -> Times:
    """The durations by group, ascending in each."""
    durations, group = (np.concatenate(column) for column in zip(*parts, strict=True))
    return np.asarray(durations[np.lexsort((durations, group))])
