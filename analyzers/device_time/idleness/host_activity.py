"""What a host thread did during a gap: the event that covers it, else what it did before and after."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.catalogue.cause_table import COVERING
from gpuscope.trace.columns.distinct import among
from gpuscope.trace.columns.table import Mask, Table, Times, blocks, rows_of_rank, rows_where
from gpuscope.trace.intervals import complement, union
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.kernel_categories import ENGINE, operator_category
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

LONG_STRETCH = 1_000_000
"""ns from which host work without a launch can be a stretch of its own, not the way to the next one (definitions)."""
MOST = 0.5
"""Share of a gap that a host event must cover to be what the gap is about."""
EVERYTHING = 0.9
"""A range that covers this share of the rest of its step too, or of a neighbour, is no place within it."""


@dataclass(frozen=True)
class Activity:
    """What a thread did during a gap: its name, and how much of the gap it covers, ns; of what lies between two events
    nothing is recorded, so 0. The name is empty where there is nothing at all."""

    name: str = ""
    covered: int = 0
    between: bool = False
    sampled: bool = False
    """Whether samples of the CPU show it."""
    row: int = NA
    """Of `host_events`, where it is one event."""


def host_activity(trace: Trace, view: LaneView, thread: int, start: int, end: int) -> Activity:
    """The innermost host event that covers most of [start, end) on a thread and not all around it too; where none does
    and a long stretch of it has no event, the events before and after; else the one that covers most there is."""
    host, names = trace["host_events"], trace.names
    rows = _overlapping(trace, view, thread, start, end)
    cover = _overlap(host, rows, start, end)
    best = np.flatnonzero(cover >= MOST * (end - start))
    if len(best):
        lasts = host["end"][rows[best]] - host["start"][rows[best]]
        place = int(best[np.flatnonzero(lasts == lasts.min())[-1]])  # of equals the one begun within the other
    elif (found := _between(trace, view, thread, rows, start, end)) is not None:
        return Activity(found, between=True)
    elif len(rows):
        place = int(np.argmax(cover))
    else:
        return Activity()
    row = rows[place]
    sampled = int(host["category"][row]) == Category.SAMPLE
    return Activity(names[int(host["name"][row])], int(cover[place]), sampled=sampled, row=int(row))


def holds_step(trace: Trace, view: LaneView, row: int) -> bool:
    """Whether a host event holds parts of a step: a backward pass, an optimizer's or a forward's range, or operators
    that multiply matrices. Such a range is the training itself, whatever it is called."""
    host, names = trace["host_events"], trace.names
    low, high = rows_of_rank(host, view.lane.rank)
    begin, end = int(host["start"][row]), int(host["end"][row])
    part = slice(*(low + np.searchsorted(host["start"][low:high], [begin, end])).tolist())
    parts = names.matching(_is_of_step)[host["name"][part]] & (host["end"][part] <= end)
    parts &= among(host["category"][part], (Category.OP, Category.ANNOTATION))
    parts[row - part.start] = False
    return bool(parts.any())


def _is_of_step(name: str) -> bool:
    if kinds.phase(name) in ("forward", "backward", "optimizer"):
        return True
    return name.startswith(("aten::", ENGINE)) and operator_category(name.removeprefix(ENGINE)) in _MULTIPLYING


_MULTIPLYING = ("gemm", "convolution", "attention")


def _overlapping(trace: Trace, view: LaneView, thread: int, start: int, end: int) -> Times:
    """Rows of the thread's events in [start, end), without those that go on all around it and show no cause, and
    without messages under way."""
    host = trace["host_events"]
    steps = trace.names.matching(kinds.is_step_range) | trace.names.matching(kinds.is_message_range)
    threads, ends = host["thread"], host["end"]
    rows = rows_where(*_begun(host, view, end), lambda block: (threads[block] == thread) & (ends[block] > start))
    rows = rows[~steps[host["name"][rows]]]
    everywhere = np.zeros(len(rows), np.bool_)
    for begin, until in _around(view, start):
        within = max(0, min(until, end) - max(begin, start))
        rest = until - begin - within
        if rest > 0:
            outside = _overlap(host, rows, begin, until) - _overlap(host, rows, max(begin, start), min(until, end))
            everywhere |= outside >= EVERYTHING * rest
    # What shows a cause by its name is one, however long it goes on: a loader may hold whole steps up.
    return rows[~everywhere | trace.names.matching(_shows_cause)[host["name"][rows]]]


def _begun(host: Table, view: LaneView, before: int) -> tuple[int, int]:
    """The rank's first event, and the one after its last that begins before an instant."""
    low, high = rows_of_rank(host, view.lane.rank)
    return low, low + int(np.searchsorted(host["start"][low:high], before, "left"))


def _shows_cause(name: str) -> bool:
    return any(shows(name) for _, (_, shows) in COVERING)


def _around(view: LaneView, at: int) -> list[tuple[int, int]]:
    """The step that an instant lies in and its neighbours; the window where there are no steps."""
    place = next((k for k, step in enumerate(view.steps) if step.start <= at < step.end), None)
    if place is None:
        return [view.window]
    return [(step.start, step.end) for step in view.steps[max(place - 1, 0) : place + 2]]


def _overlap(host: Table, rows: Times, start: int, end: int) -> Times:
    """ns of each event in [start, end)."""
    inside = np.minimum(host["end"][rows], end) - np.maximum(host["start"][rows], start)
    return np.asarray(np.maximum(inside, 0))


def _between(trace: Trace, view: LaneView, thread: int, rows: Times, start: int, end: int) -> str | None:
    """Where most of the gap is one long stretch without an event, the names of what ends before and begins after it."""
    host, names = trace["host_events"], trace.names
    bare = complement(union(host["start"][rows], host["end"][rows]), start, end)
    length = bare.end - bare.start
    if not len(length) or length.max() < max(MOST * (end - start), LONG_STRETCH):
        return None
    place = int(np.argmax(length))
    begin, until = int(bare.start[place]), int(bare.end[place])
    threads, starts, ends = host["thread"], host["start"], host["end"]
    message = names.matching(kinds.is_message_range)
    before = _begun(host, view, begin + 1)
    after = _begun(host, view, until)[1], rows_of_rank(host, view.lane.rank)[1]

    def own(rows: slice) -> Mask:
        return np.asarray((threads[rows] == thread) & ~message[host["name"][rows]])

    ended = _outermost(host, before, lambda rows: own(rows) & (ends[rows] <= begin), lambda rows: ends[rows])
    begun = _outermost(host, after, own, lambda rows: -starts[rows])
    said = [names[int(host["name"][row])] for row in (ended, begun) if row != NA]
    if len(said) == 2:
        return f"between {said[0]} and {said[1]}"
    if said:
        return f"{'after' if ended != NA else 'before'} {said[0]}"
    return None


def _outermost(
    host: Table, bounds: tuple[int, int], wanted: Callable[[slice], Mask], nearest: Callable[[Times], Times]
) -> int:
    """Of the wanted events within bounds with the greatest `nearest` the longest, or NA."""
    own = np.empty(0, np.int64)
    for block in blocks(*bounds):
        own = np.concatenate((own, np.flatnonzero(wanted(block)) + block.start))
        if len(own):
            own = own[(near := nearest(own)) == near.max()]
    return int(own[np.argmax(host["end"][own] - host["start"][own])]) if len(own) else NA
