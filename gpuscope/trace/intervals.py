"""Interval algebra on integer nanoseconds: the one place where spans are merged, cut and measured.

A *set* is a pair of int64 arrays (starts, ends), sorted, disjoint and without empty spans; every
function that returns a set returns it so. Spans are half-open, [start, end). All functions are
vectorised and cost O(n log n) at most.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuscope import native
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Times, blocks, overlapping


class Spans(NamedTuple):
    """A set of disjoint, sorted, non-empty spans; each array has shape (n,), in ns."""

    start: Times
    end: Times

    @property
    def total(self) -> int:
        """The measure |S|, in ns."""
        return int((self.end - self.start).sum())


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Array, end: Array) -> Spans:
    """Merge any spans, in any order, overlapping or empty, into a set."""
    if _apart(start, end):  # each is a span of its own: no need of a second copy
        return Spans(start, end)
    return Spans(*native.union(start, end)) if len(start) else EMPTY


def union_at(start: Array, end: Array, rows: Times) -> Spans:
    """The union of the spans in some rows, block by block: of many that overlap there are never copies of all."""
    return join(*(union(start[rows[block]], end[rows[block]]) for block in blocks(0, len(rows))))


def _apart(start: Array, end: Array) -> bool:
    """Whether spans are a set already."""
    if not len(start) or not start.dtype == end.dtype == np.int64:
        return False
    return all(
        bool((start[part] < end[part]).all() and (end[part][:-1] < start[part][1:]).all())
        for part in overlapping(len(start))
    )


def join(*sets: Spans) -> Spans:
    """A ∪ B ∪ …"""
    some = [one for one in sets if len(one.start)]
    if len(some) == 1:
        return union(*some[0])
    return union(np.concatenate([s.start for s in some]), np.concatenate([s.end for s in some])) if some else EMPTY


def complement(spans: Spans, start: int, end: int) -> Spans:
    """[start, end) \\ A."""
    inside = clip(spans, start, end)
    if len(inside.start) and inside.start[0] <= start and inside.end[-1] >= end:  # only what lies between them
        gap_start, gap_end = inside.end[:-1], inside.start[1:]
        keep = gap_end > gap_start
        return Spans(gap_start, gap_end) if keep.all() else Spans(gap_start[keep], gap_end[keep])
    gap_start = np.concatenate((np.array([start], np.int64), inside.end))
    gap_end = np.concatenate((inside.start, np.array([end], np.int64)))
    keep = gap_end > gap_start
    return Spans(gap_start, gap_end) if keep.all() else Spans(gap_start[keep], gap_end[keep])


def clip(spans: Spans, start: int, end: int) -> Spans:
    """A ∩ [start, end)."""
    low = int(np.searchsorted(spans.end, start, "right"))
    high = int(np.searchsorted(spans.start, end, "left"))
    if low >= high or start >= end:
        return EMPTY
    first, last = spans.start[low:high], spans.end[low:high]
    if first[0] < start:  # only the outermost can reach beyond
        first = np.maximum(first, start)
    return Spans(first, np.minimum(last, end) if last[-1] > end else last)


def subtract(a: Spans, b: Spans) -> Spans:
    """A \\ B."""
    if not len(a.start) or not len(b.start):
        return a
    low = int(min(a.start[0], b.start[0]))
    high = int(max(a.end[-1], b.end[-1]))
    return intersect(a, complement(b, low, high))


def intersect(a: Spans, b: Spans) -> Spans:
    """A ∩ B."""
    if not len(a.start) or not len(b.start):
        return EMPTY
    return Spans(*native.intersect(*a, *b))


def measure_within(spans: Spans, start: Array, end: Array) -> Times:
    """|A ∩ [start_i, end_i)| for each i, shape (n,): a prefix sum, so windows may overlap."""
    both = measure_before(spans, np.concatenate((np.asarray(end, np.int64), np.asarray(start, np.int64))))
    return both[: len(end)] - both[len(end) :]


def measure_before(spans: Spans, at: Array) -> Times:
    """|A ∩ (−∞, t)| for each instant t, shape (n,)."""
    at = np.asarray(at, np.int64)
    if not len(spans.start):
        return np.zeros(at.shape, np.int64)
    length = spans.end - spans.start
    done = np.cumsum(length, out=length)
    index = places(spans.start, at, "right")
    inside = np.where(index > 0, np.minimum(at, spans.end[index - 1]) - spans.start[index - 1], 0)
    return np.asarray(np.where(index > 1, done[np.maximum(index - 2, 0)], 0) + inside, np.int64)
