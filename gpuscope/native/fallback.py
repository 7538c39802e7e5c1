"""In Python what the core does compiled: every function with the arguments and results of its twin in `compiled.py`.

Columns are arrays of whole numbers; times are ns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from numpy import typing as npt

Integers = npt.NDArray[Any]
Wanted = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int32]
HostColumns = tuple[Integers, Integers, Integers, Integers]
"""Start, end, code of the name and category of each host event."""
LaunchedColumns = tuple[Integers, Integers, Integers, Integers]
"""When each device event was launched (ascending), its start and end, each of shape (n,); sums before each and of all,
shape (4, n + 1): ns of compute, communication and memory, and how many."""
Columns = tuple[Integers, Integers, Integers]

NONE = int(np.iinfo(np.int64).min)
"""No row: `NA` of gpuscope/trace/schema.py."""
_BITS = 62
_PIECE = 1 << 16
"""Events at a time: what is made of millions of them would not fit caches."""


def union(start: Integers, end: Integers) -> tuple[Integers, Integers]:
    """Spans in any order, overlapping or empty, merged: sorted, disjoint, none empty."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    if not bool((start[1:] >= start[:-1]).all()):
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate(([True], start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], [True]))
    return np.ascontiguousarray(start[first], np.int64), np.ascontiguousarray(reach[last], np.int64)


def intersect(start: Integers, end: Integers, other_start: Integers, other_end: Integers) -> tuple[Integers, Integers]:
    """What two sets of sorted, disjoint spans have in common."""
    # For each span of the one, the run of spans of the other that touch it; then a span per pair.
    first = np.searchsorted(other_end, start, "right")
    last = np.searchsorted(other_start, end, "left")
    counts = np.maximum(last - first, 0)
    own = np.repeat(np.arange(len(start)), counts)
    other = np.repeat(first - np.cumsum(counts) + counts, counts) + np.arange(len(own))
    return np.maximum(start[own], other_start[other]), np.minimum(end[own], other_end[other])


def places(values: Integers, wanted: Integers, side: Literal["left", "right"] = "left") -> Integers:
    """`numpy.searchsorted` of whole numbers; both of one dimension."""
    return np.asarray(np.searchsorted(values, wanted, side), np.int64)


def group(values: Integers, group_of: Integers, groups: int) -> Integers:
    """Number, sum, least, median (of an even number the mean of the middle two, rounded down) and largest of values
    (not negative) by group, 0 to `groups` − 1; shape (5, groups), zeros for a group without members."""
    return group_parts(lambda: [(values, group_of)], groups)


def group_parts(parts: Callable[[], Iterable[tuple[Integers, Integers]]], groups: int) -> Integers:
    """As `group`, of values and groups part by part, asked for twice: for many rows that would not all fit."""
    counts, total, longest = np.zeros(groups, np.int64), np.zeros(groups, np.int64), 0
    for values, group_of in parts():
        counts += np.bincount(group_of, minlength=groups)
        np.add.at(total, group_of, values)
        longest = max(longest, int(values.max(initial=0)))
    if not counts.any():
        return np.zeros((5, groups), np.int64)
    bits = longest.bit_length()
    if bits + groups.bit_length() > _BITS:
        ordered, mask = _ordered(parts()), -1
    else:
        # Sorting one number per row is several times as fast as sorting by two keys.
        dtype: type = np.uint32 if bits + groups.bit_length() <= 32 else np.int64
        ordered, mask, filled = np.empty(int(counts.sum()), dtype), (1 << bits) - 1, 0
        for values, group_of in parts():
            into = ordered[filled : filled + len(group_of)]
            into[:] = group_of
            into <<= bits
            into |= values.astype(dtype)
            filled += len(group_of)
        ordered.sort()
    first = np.cumsum(counts) - counts
    some = counts > 0

    def at(place: Integers) -> Integers:
        found = (ordered[np.minimum(place, len(ordered) - 1)] & mask).astype(np.int64)
        return np.where(some, found, 0)

    median = (at(first + (counts - 1) // 2) + at(first + counts // 2)) // 2
    return np.stack((counts, total, at(first), median, at(first + counts - 1)))


def _ordered(parts: Iterable[tuple[Integers, Integers]]) -> Integers:
    """The values by group, ascending in each."""
    values, group_of = (np.concatenate(column) for column in zip(*parts, strict=True))
    return np.asarray(values[np.lexsort((values, group_of))])


def parents(start: Integers, end: Integers, thread: Integers, candidates: Wanted) -> Integers:
    """For each of the spans that are candidates, the row of the innermost other of its thread that encloses it; else
    `NONE`. Candidates have a length."""
    found = np.full(len(start), NONE, np.int64)
    for which in np.unique(thread[candidates]).tolist():
        nested = _Nested(start, end, np.flatnonzero(candidates & (thread == which)))
        found[nested.rows] = nested.at(nested.depth - 1, nested.start, nested.end)
    return found


def innermost(
    start: Integers, end: Integers, thread: Integers, candidates: Wanted, at_thread: Integers, at: Integers
) -> Integers:
    """For each instant the row of the innermost candidate of that thread which covers it, or `NONE`."""
    found = np.full(len(at), NONE, np.int64)
    for which in np.unique(at_thread).tolist():
        nested = _Nested(start, end, np.flatnonzero(candidates & (thread == which)))
        asked = np.flatnonzero(at_thread == which)
        found[asked] = nested.at(nested.depth_at(at[asked]), at[asked], at[asked])
    return found


class _Nested:
    """Spans of one thread, which nest as calls do, in order of start, the longer one first.

    The depth at an instant (spans opened less spans closed) says which of the disjoint spans of that depth covers it:
    one search per depth, no walk over events.
    """

    def __init__(self, start: Integers, end: Integers, rows: Integers) -> None:
        self.rows = rows[np.lexsort((-end[rows], start[rows]))]
        self.start, self.end = start[self.rows], end[self.rows]
        self._closed = np.sort(self.end)
        self.depth = np.arange(1, len(rows) + 1) - np.searchsorted(self._closed, self.start, "right")
        self._by_depth = np.argsort(self.depth, kind="stable")

    def depth_at(self, at: Integers) -> Integers:
        """How many spans are open at each instant."""
        return np.searchsorted(self.start, at, "right") - np.searchsorted(self._closed, at, "right")

    def at(self, depth: Integers, since: Integers, until: Integers) -> Integers:
        """The row of the span of a depth that is open from `since` to `until`, or `NONE`; all of shape (n,)."""
        found = np.full(len(depth), NONE, np.int64)
        asked_by_depth = np.argsort(depth, kind="stable")
        levels = np.arange(1, int(depth.max(initial=0)) + 2)
        own = np.searchsorted(self.depth[self._by_depth], levels)
        asked_of = np.searchsorted(depth[asked_by_depth], levels)
        for level in range(len(levels) - 1):
            there = self._by_depth[own[level] : own[level + 1]]
            asked = asked_by_depth[asked_of[level] : asked_of[level + 1]]
            if not len(there) or not len(asked):
                continue
            place = np.searchsorted(self.start[there], since[asked], "right") - 1
            span = there[np.maximum(place, 0)]
            inside = (place >= 0) & (self.end[span] >= until[asked])
            found[asked[inside]] = self.rows[span[inside]]
        return found


def in_order(
    stream: Integers,
    issue: Integers,
    waits: Integers,
    lasts: Integers,
    recorded_end: Integers,
    free: Integers,
    low: int,
    least: int,
) -> tuple[Integers, Integers]:
    """Start and end of operations number `low` and on: each starts at the latest of its issue, the end of its stream's
    predecessor (at first `free`, by stream) and of the operation that it waits for, and keeps its duration. The first
    does not start before `least`. Earlier operations ended as recorded."""
    start, end, until = [0] * len(stream), [0] * len(stream), free.tolist()
    rows = zip(stream.tolist(), issue.tolist(), waits.tolist(), lasts.tolist(), strict=True)
    for place, (own, at, wait, duration) in enumerate(rows):
        at = max(at, until[own], least) if place == 0 else max(at, until[own])
        if wait >= low:
            at = max(at, end[wait - low])
        elif wait != NONE:
            at = max(at, int(recorded_end[wait]))
        start[place] = at
        end[place] = until[own] = at + duration
    return np.array(start, np.int64), np.array(end, np.int64)


def longest_path(
    src: Integers, dst: Integers, lag: Integers, dur: Integers, earliest: Integers
) -> tuple[Integers, Integers, int]:
    """Start and end of each node: none starts before `earliest`, nor before `lag` after the end of any `src` of which
    it is the `dst`. And how many nodes got them: fewer than all where some wait for each other in a circle.

    By Kahn's algorithm with plain integers, since chains are long and levels too narrow for numpy.
    """
    count = len(dur)
    order = np.argsort(src, kind="stable")
    first = np.searchsorted(src[order], np.arange(count + 1)).tolist()
    target, lags = dst[order].tolist(), lag[order].tolist()
    left = np.bincount(dst, minlength=count).tolist()
    start, lasts, end = earliest.tolist(), dur.tolist(), [0] * count
    ready = [node for node in range(count) if not left[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        at = end[node] = start[node] + lasts[node]
        for place in range(first[node], first[node + 1]):
            behind = target[place]
            since = at + lags[place]
            if since > start[behind]:
                start[behind] = since
            left[behind] -= 1
            if not left[behind]:
                ready.append(behind)
    return np.array(start, np.int64), np.array(end, np.int64), done


def add_launched(
    host: HostColumns,
    rows: Integers,
    parent: Integers,
    operator: int,
    annotation: int,
    by: LaunchedColumns,
    of_ranges: LaunchedColumns,
    into: Columns,
) -> None:
    """Add what host events took and launched to the sums of their keys: twice the code of the name, one more of an
    `operator`. `rows` are of one thread, `parent` is each host event's row of the one around it or `NONE`. What an
    `annotation` launched is in `of_ranges`, what others did in `by`.

    `into`: how many events and their longest duration, shape (keys,); and figures, shape (8, keys): duration, less that
    of events inside, device time less that of events inside, then of what was launched the four sums and the time from
    its first start to its last end.
    """
    start, end, name, category = host
    counts, longest, figures = into
    duration, own_duration, own_device, launched = figures[0], figures[1], figures[2], figures[3:]

    def keys(events: Integers) -> Integers:
        return np.asarray(name[events] * 2 + (category[events] == operator), np.int64)

    for first in range(0, len(rows), _PIECE):
        piece = rows[first : first + _PIECE]
        own, around = keys(piece), parent[piece]
        nested = around != NONE
        above = keys(around[nested])
        spent = end[piece] - start[piece]
        counts += np.bincount(own, minlength=len(counts))
        np.maximum.at(longest, own, spent)
        np.add.at(duration, own, spent)
        low, high = places(by[0], start[piece]), places(by[0], end[piece])
        busy = (by[3][:3, high] - by[3][:3, low]).sum(axis=0)
        for figure, values in ((own_duration, spent), (own_device, busy)):
            np.add.at(figure, own, values)
            np.add.at(figure, above, -values[nested])
        ranges = category[piece] == annotation
        for which, found in ((ranges, of_ranges), (~ranges, by)):
            low, high = places(found[0], start[piece[which]]), places(found[0], end[piece[which]])
            for figure, values in zip(
                launched, (*(found[3][:, high] - found[3][:, low]), _reach(found, low, high)), strict=True
            ):
                np.add.at(figure, own[which], values)


def _reach(launched: LaunchedColumns, low: Integers, high: Integers) -> Integers:
    """From the first start to the last end of what lies between each two places, ns; 0 where nothing does."""
    found = np.zeros(len(low), np.int64)
    some = np.flatnonzero(high > low)
    if len(some):
        edges = np.stack((low[some], high[some]), axis=1).ravel()
        # One element more, so that the last edge is a place; it is never part of a span.
        first = np.minimum.reduceat(np.append(launched[1], np.iinfo(np.int64).max), edges)[::2]
        last = np.maximum.reduceat(np.append(launched[2], np.iinfo(np.int64).min), edges)[::2]
        found[some] = last - first
    return found


def table_pages(*_: int | Numbers) -> int:
    """Pages with the rows of a table of an SQLite file, and how many rows each has; how many pages. −1 where they can't
    be told, which is always: Python's `sqlite3` then reads them."""
    return -1


def table_columns(*_: int | Numbers | Places | Integers) -> bool:
    """Write columns of the rows of pages, one after another, each to a row of an array; whether that could be done."""
    return False


def release_memory() -> None:
    """Give freed memory back to the system, where the C library would keep it: reading a large trace leaves more of it
    behind, in small pieces, than the trace takes. Python can't."""


def note_end(entry: Any, failed: Callable[[Any, BaseException], object], future: Any) -> None:
    """Once a future is there, `completed_ns` of an entry that has none yet is set; `failed` gets entry and error of a
    future that failed. On a thread of gloo's a frame of Python costs more than all else: it maps and unmaps a stack.
    The future is held until then, which spares that thread another object."""

    def ended(_: Any) -> None:
        now = time.time_ns()
        if entry.completed_ns is None:
            try:
                future.value()
            except Exception as error:
                failed(entry, error)
            entry.completed_ns = now

    future.add_done_callback(ended)


def note_issue(*_: Any) -> None:
    """The entry of a collective's call, logged, or None where it is not one of the usual: `CollectiveLog.issue` does
    the same in Python."""
