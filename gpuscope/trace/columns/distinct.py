"""Distinct values of long columns of few, near-by values, without sorting them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from gpuscope.trace.columns.table import Array, Mask, Times, ascends, blocks, constant, is_constant, looked_up

_TABLE = 1 << 22
"""Values that lie no further apart than this are counted in a table rather than sorted."""
_SPREAD = 32
"""Most room in such a table per value: beyond, a few values are sorted sooner."""


def distinct_values(values: Array) -> Array:
    """The distinct values, ascending, as `numpy.unique`, which hashes them and takes several times as long. Values that
    ascend are returned as they are: treat them as read-only."""
    if len(values) < 2 or is_constant(values):
        return values[:1].copy()
    if ascends(values):
        return values
    low, high = int(values.min()), int(values.max())
    if high - low < min(_TABLE, _SPREAD * len(values)):
        present = np.zeros(high - low + 1, np.bool_)
        for block in blocks(0, len(values)):
            present[np.subtract(values[block], low, dtype=np.int64)] = True
        return np.asarray(np.flatnonzero(present) + low, values.dtype)
    ordered = values if bool((values[1:] >= values[:-1]).all()) else np.sort(values, kind="stable")  # of runs
    return np.asarray(ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))])


def distinct(values: Array) -> tuple[Times, Times]:
    """The distinct values, ascending, and for each value its place among them; as `numpy.unique`."""
    if not len(values):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if is_constant(values):
        return np.array(values[:1], np.int64), constant(0, len(values), np.int64)
    low = int(values.min())
    span = int(values.max()) - low + 1
    if span > _TABLE:
        found, inverse = np.unique(values, return_inverse=True)
        return np.asarray(found, np.int64), np.asarray(inverse, np.int64)
    if span == 1:
        return np.array([low], np.int64), constant(0, len(values), np.int64)
    place = np.subtract(values, low, dtype=np.int64)
    present = np.zeros(span, np.bool_)
    present[place] = True
    found = np.flatnonzero(present)
    place_of = np.empty(span, np.int32)  # only what is looked up is written
    place_of[found] = np.arange(len(found))
    for block in blocks(0, len(place)):
        place[block] = place_of[place[block]]
    return found + low, place


def mapped(values: Array, known: Array, to: Array) -> Array:
    """For each value what it is mapped `to`, shape (n,), of `to`'s type; `known` are the distinct values, ascending."""
    if is_constant(values):
        return constant(to[0], len(values), to.dtype.type)
    if not len(values):
        return to[:0]
    low, span = int(known[0]), int(known[-1]) - int(known[0]) + 1
    if span > _TABLE:
        found = np.empty(len(values), to.dtype)
        for block in blocks(0, len(values)):
            found[block] = to[np.searchsorted(known, values[block])]
        return found
    if 0 <= low < span:  # then the values themselves are places
        low, span = 0, span + low
    table = np.zeros(span, to.dtype)
    table[known - low] = to
    return looked_up(table, values if low == 0 else np.subtract(values, low, dtype=np.int64))


def among(values: Array, wanted: Iterable[int]) -> Mask:
    """Which values are one of a few: a comparison for each takes a tenth of `numpy.isin`."""
    found = np.zeros(len(values), np.bool_)
    for one in wanted:
        found |= values == one
    return found


def counted(values: Array) -> tuple[Times, Times]:
    """The distinct values, ascending, and how often each occurs."""
    found, place = distinct(values)
    return found, np.bincount(place, minlength=len(found))


def distinct_rows(*columns: Array) -> tuple[Times, Times]:
    """Places of the first of each of the distinct rows of some columns, and for each row the place of its like among
    these."""
    which = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        found, place = distinct(column)
        if len(found) > 1:
            which = which * len(found)
            which += place
            del place
            _, which = distinct(which)
    first = np.empty(int(which.max(initial=-1)) + 1, np.int64)
    first[which[::-1]] = np.arange(len(which))[::-1]
    return first, which


def distinct_pairs(first: Array, second: Array) -> tuple[list[tuple[int, int]], Times]:
    """The distinct pairs of two columns, ascending, and for each row the place of its pair among them."""
    firsts, which = distinct(first)
    seconds, other = distinct(second)
    width = max(len(seconds), 1)
    which = which * width
    which += other
    del other
    found, inverse = distinct(which)
    return [(int(firsts[code // width]), int(seconds[code % width])) for code in found.tolist()], inverse
