"""The idle gaps of a lane: what ends each, which thread that is owed to, and since when it had been launched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from gpuscope.analyzers.base.analyzer import longest
from gpuscope.analyzers.base.evidence import identity
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.launching_threads import most_launching
from gpuscope.catalogue.suggestion import COVERING
from gpuscope.schema.document import Evidence
from gpuscope.schema.nccl_sections import GapEntry
from gpuscope.trace import kinds
from gpuscope.trace.intervals import EMPTY, Spans, complement, intersect, measure_within, union
from gpuscope.trace.kernel_categories import ENGINE, operator_category
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    among,
    blocks,
    compact,
    distinct_values,
    places,
    rows_of_rank,
    rows_where,
)
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import short_kernel

# What a host thread did during a gap: the event that covers it, else what it did before and after.

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
    name = names[int(host["name"][row])]
    if name.startswith(BUILT_IN) and (caller := _caller(trace, view, int(row))):
        name = f"{name} in {caller}"
    return Activity(name, int(cover[place]), sampled=sampled, row=int(row))


BUILT_IN = "<built-in"
"""How torch's profiler begins the names of functions in C, which have no line of their own."""
LIBRARIES = ("torch/", "gpuscope/")
"""Folders, as frames name them, whose functions are not the script's."""


def _caller(trace: Trace, view: LaneView, row: int) -> str:
    """The innermost function of the script around a call into C, with file and line; empty where none is recorded."""
    host, names = trace["host_events"], trace.names
    low, _ = rows_of_rank(host, view.lane.rank)
    around = low + np.flatnonzero(host["end"][low:row] >= host["end"][row])
    around = around[(host["thread"][around] == host["thread"][row]) & (host["category"][around] == Category.PYTHON)]
    for place in around[::-1].tolist():
        name = names[int(host["name"][place])]
        if ".py(" in name and not name.startswith((BUILT_IN, *LIBRARIES)):
            return name
    return ""


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
    for begin, until in _host_activity_around(view, start):
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


def _host_activity_around(view: LaneView, at: int) -> list[tuple[int, int]]:
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


# The idle gaps that show a cause best, and what the host did in each: named by what covers most of it.

AWAITS = "nothing recorded: it may wait for work from another process"


class EndedGaps(Protocol):
    """Gaps with what ends each and the thread that launches it."""

    @property
    def thread(self) -> Array: ...
    def event(self, gaps: Array | slice) -> Times: ...
    def of(self, spans: Spans) -> Times: ...


def evidence(
    trace: Trace, view: LaneView, spans: Spans, gaps: EndedGaps, blocking: Times | None = None, awaiting: Spans = EMPTY
) -> list[Evidence]:
    """The longest judged spans of a cause, with what the host did there and what ended the gap.

    Where the cause is blocking, the call that returned last before is named: `blocking` are these calls, by end. In the
    spans `awaiting` the thread may wait for another process.
    """
    device, names = trace["device_events"], trace.names
    judged = intersect(spans, view.judged_spans)
    spans = judged if len(judged.start) else spans
    picked = longest(spans)
    shown = Spans(spans.start[picked], spans.end[picked])
    own = gaps.of(shown)
    found: list[Evidence] = []
    for gap, event, start, end in zip(*(column.tolist() for column in (own, gaps.event(own), *shown)), strict=True):
        ended_by = names[int(device["name"][event])] if event != NA else "the end of the trace"
        one: Evidence = {
            "rank": view.lane.rank,
            "start_ns": start,
            "dur_ns": end - start,
            "name": ended_by,
            "note": "",
        }
        if event != NA:
            one["event"] = identity(trace, "device_events", event)
        what = _host_side(trace, view, int(gaps.thread[gap]), one, blocking)
        if int(measure_within(awaiting, np.array([start]), np.array([end]))[0]) >= MOST * (end - start):
            one["awaits"] = True
            what = AWAITS
        one["note"] = f"{what}; device idle until {short_kernel(ended_by)}"
        found.append(one)
    return found


def _host_side(trace: Trace, view: LaneView, thread: int, shown: Evidence, blocking: Times | None) -> str:
    """Name in `shown` the host event behind it, where there is one; what that did."""
    host, names = trace["host_events"], trace.names
    start, end = shown["start_ns"], shown["start_ns"] + shown["dur_ns"]
    if blocking is not None and len(own := blocking[host["start"][blocking] < end]):
        call = int(own[-1])
        around = _gap_evidence_around(trace, view.lane.rank, thread, call)
        shown["name"], shown["event"] = names[int(host["name"][call])], identity(trace, "host_events", call)
        return "the queue was empty when it returned" + (
            f" in {names[int(host['name'][around])]}" if around != NA else ""
        )
    found = host_activity(trace, view, thread, start, end)
    shown["name"] = found.name or shown["name"]
    if found.between:
        shown["between"] = True
        shown.pop("event", None)
    if found.sampled:
        shown["sampled"] = True
    if not found.covered:
        return "nothing recorded on the launching thread (Python between operators)"
    shown["event"] = identity(trace, "host_events", found.row)
    shown["covered_frac"] = found.covered / (end - start)
    if holds_step(trace, view, found.row):
        shown["holds_step"] = True
    share = units.share(shown["covered_frac"])
    return f"samples find the thread in it for {share} of the gap" if found.sampled else f"covers {share} of the gap"


def _gap_evidence_around(trace: Trace, rank: int, thread: int, call: int) -> int:
    """The innermost operator or range around a call; NA if none."""
    host = trace["host_events"]
    low, _ = rows_of_rank(host, rank)
    begin, end = int(host["start"][call]), int(host["end"][call])

    def around(part: slice) -> Mask:
        kept = among(host["category"][part], (Category.OP, Category.ANNOTATION)) & (host["thread"][part] == thread)
        return np.asarray(kept & (host["start"][part] <= begin) & (host["end"][part] >= end))

    rows = rows_where(low, call + 1, around)
    return int(rows[np.argmin(host["end"][rows] - host["start"][rows])]) if len(rows) else NA


def unexplained(view: LaneView, idle: Spans) -> list[Evidence]:
    """The longest gaps of a rank whose host was not recorded."""
    return [
        {
            "rank": view.lane.rank,
            "start_ns": int(idle.start[i]),
            "dur_ns": int(idle.end[i] - idle.start[i]),
            "name": "idle",
            "note": "no host events recorded for this rank",
        }
        for i in longest(idle).tolist()
    ]


# The longest times in which a device had nothing to do: their cause, what lies around them, what the host did.

KEPT = 10
"""Gaps per lane."""


def longest_gaps(
    trace: Trace, view: LaneView, causes: Mapping[str, Spans], gaps: EndedGaps | None = None
) -> list[GapEntry]:
    """The longest idle gaps of a lane's window, the longest first. `causes` divide its idle time; without `gaps`
    (no host events) nothing is known of the thread that ends each."""
    idle = view.parts.idle
    picked = longest(idle, KEPT)
    start, end = idle.start[picked], idle.end[picked]
    shares = {cause: measure_within(spans, start, end) for cause, spans in causes.items()}
    before, after = _around(trace, view, start, end)
    entries: list[GapEntry] = []
    for place, gap in enumerate(picked.tolist()):
        low, high = int(start[place]), int(end[place])
        entry: GapEntry = {
            "rank": view.lane.rank,
            "device": None if view.lane.device == NA else view.lane.device,
            "start_ns": low,
            "dur_ns": high - low,
            "step": next((step.step for step in view.steps if step.start <= low < step.end and step.step != NA), None),
            "cause": max(shares, key=lambda cause: int(shares[cause][place])) if shares else None,
            "before": _name(trace, "device_events", int(before[place])),
            "after": _name(trace, "device_events", int(after[place])),
            "host": None,
        }
        if gaps is not None:
            found = host_activity(trace, view, int(gaps.thread[gap]), low, high)
            entry["host"], entry["host_ns"] = found.name or None, found.covered
        entries.append(entry)
    return entries


def _around(trace: Trace, view: LaneView, start: Times, end: Times) -> tuple[Times, Times]:
    """The device events that end last before each gap, and that end it; NA where there is none."""
    device, rows = trace["device_events"], view.rows
    starts, ends = device.at("start", rows), device.at("end", rows)
    begun = np.searchsorted(starts, start, "right")  # and all of these have ended, since the device is idle
    reach = np.maximum.accumulate(ends)
    before = np.full(len(start), NA, np.int64)
    for place, count in enumerate(begun.tolist()):
        if count:
            latest = int(reach[count - 1])
            first = int(np.searchsorted(reach, latest, "left"))
            before[place] = rows[first + int(np.flatnonzero(ends[first:count] == latest)[-1])]
    return before, ending(starts, rows, end)


def ending(begins: Times, rows: Times, end: Times) -> Times:
    """Rows of the device events that begin first from each instant on, or NA; `begins` are the starts of `rows`."""
    position = places(begins, end)
    return np.where(position < len(rows), rows[np.minimum(position, len(rows) - 1)], NA)


def _name(trace: Trace, table: str, row: int) -> str | None:
    return None if row == NA else trace.names[int(trace[table]["name"][row])]


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of a lane: what ends each, when that was issued and by which thread."""

    start: Times
    end: Times
    launched: Mask
    """Whether the launch of the device event that ends it is recorded."""
    explained: Mask
    """Whether its launch is recorded, or a launching thread that worked meanwhile."""
    thread: Array
    """Thread that launches it; where none did (a migration, the driver's own memset), the launching thread that host
    events cover most of the gap on."""
    begins: Times
    """Start of each of the lane's device events."""
    rows: Times
    """Rows of these."""

    def __len__(self) -> int:
        return len(self.start)

    def of(self, spans: Spans) -> Times:
        """The gap that each span lies in, shape (n,)."""
        return places(self.start, spans.start, "right") - 1

    def event(self, gaps: Array | slice) -> Times:
        """Rows of the device events that end these gaps, or NA at the window's end; shape (n,)."""
        return ending(self.begins, self.rows, self.end[gaps])

    def where(self, picked: Mask) -> Spans:
        """These gaps as a set."""
        return Spans(self.start[picked], self.end[picked])


def find_gaps(trace: Trace, view: LaneView) -> tuple[Gaps, Spans]:
    """The idle gaps of a lane's window, each with what ends it; and the part of each in which that had been launched
    already."""
    device, host = trace["device_events"], trace["host_events"]
    idle, begins = view.parts.idle, device.at("start", view.rows)
    main = most_launching(trace, view)
    launched, thread = np.zeros(len(idle.end), np.bool_), np.full(len(idle.end), main, host["thread"].dtype)
    issue = np.array(idle.end)  # the end of the launch call, or the gap's own end if that is earlier
    for block in blocks(0, len(idle.end)):
        event = ending(begins, view.rows, idle.end[block])
        launch = np.where(event == NA, NA, device.at("launch", np.maximum(event, 0)))
        known = np.flatnonzero(launch != NA)
        launch = launch[known]
        launched[known + block.start] = True
        thread[block][known] = host["thread"][launch]
        issue[block][known] = np.minimum(host["end"][launch], idle.end[block][known])
    explained = np.array(launched)
    if view.lane.device == NA:  # a training thread is its own device
        explained[:] = True
    elif not launched.all():
        own = ~launched
        thread[own], explained[own] = _working_meanwhile(trace, view, Spans(idle.start[own], idle.end[own]), main)
    gaps = Gaps(idle.start, idle.end, launched, explained, compact(thread), begins, view.rows)
    queued_from = np.maximum(issue, idle.start, out=issue)
    keep = idle.end > queued_from
    return gaps, Spans(queued_from, idle.end) if keep.all() else Spans(queued_from[keep], idle.end[keep])


def _working_meanwhile(trace: Trace, view: LaneView, spans: Spans, main: int) -> tuple[Times, Mask]:
    """For each span the launching thread with most of it covered by host events (of equals the main one), and whether
    there is any."""
    host = trace["host_events"]
    linked = trace["device_events"].at("launch", view.rows)
    launching = distinct_values(host["thread"][linked[linked != NA]]).tolist()
    steps = trace.names.matching(kinds.is_step_range)
    thread, most = np.full(len(spans.start), main), np.zeros(len(spans.start), np.int64)
    low, high = rows_of_rank(host, view.lane.rank)
    for number in (main, *(other for other in launching if other != main)):
        rows = rows_where(low, high, partial(_done_by, host, steps, number))
        covered = measure_within(union(host["start"][rows], host["end"][rows]), *spans)
        more = covered > most
        thread[more], most[more] = number, covered[more]
    return thread, most > 0


def _done_by(host: Table, steps: Mask, thread: int, block: slice) -> Mask:
    """Which of these rows are events of a thread, ranges around whole steps left out."""
    return np.asarray((host["thread"][block] == thread) & ~steps[host["name"][block]])


def named_events(trace: Trace, view: LaneView, categories: Sequence[Category], predicate: object) -> Times:
    """The host events of a lane's rank that are of these categories and have a name for which the predicate holds."""
    host, wanted = trace["host_events"], trace.names.matching(predicate)
    if not wanted.any():  # most causes do not occur in a trace
        return np.empty(0, np.int64)
    return rows_where(
        *rows_of_rank(host, view.lane.rank),
        lambda block: wanted[host["name"][block]] & among(host["category"][block], categories),
    )
