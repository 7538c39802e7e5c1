"""Count, sum, least, median and largest of durations, group by group: by the native core, or in one sort."""

from __future__ import annotations

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
    counts = np.bincount(group, minlength=groups).astype(np.int64)
    total = np.zeros(groups, np.int64)
    np.add.at(total, group, durations)
    if not len(durations):
        return Grouped(counts, total, total, total, total)
    ordered = _ordered(durations, group, groups)
    first = np.cumsum(counts) - counts
    some = counts > 0

    def at(place: Times) -> Times:
        return np.where(some, ordered[np.minimum(place, len(ordered) - 1)], 0)

    median = (at(first + (counts - 1) // 2) + at(first + counts // 2)) // 2
    return Grouped(counts, total, at(first), median, at(first + counts - 1))


def _ordered(durations: Times, group: Times, groups: int) -> Times:
    """The durations by group, ascending in each."""
    bits = int(durations.max()).bit_length()
    if bits + groups.bit_length() > _BITS:
        return np.asarray(durations[np.lexsort((durations, group))])
    # Sorting one number per row is several times as fast as sorting by two keys.
    both = np.sort((group.astype(np.int64) << bits) | durations)
    return np.asarray(both & ((1 << bits) - 1))
