"""Why a device was idle: judged instant by instant on the thread that launches what ends the gap.

Each instant goes to the first of these that holds (docs/definitions.md: «Stalls: class and cause»):

1. The next operation had already been launched. Its first 10 µs are the latency of the launch, the rest has no cause.
2. The launching thread was in an event that has a cause by its name: a data loader, garbage collection, an allocator
   call, a file or network call.
3. The launching thread ran its own code for unusually long without launching: other host work.
4. Otherwise the lane is replayed with its blocking calls returning at once (`idle_replay.py`). The idle time that this
   removes is `sync`, what remains is `launch`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.base.analyzer import Attributed, FileAnalyzer, Result, attribute, only_present
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.base.sections import GAPS
from gpuscope.analyzers.device_time.idleness.gap_evidence import evidence, unexplained
from gpuscope.analyzers.device_time.idleness.idle_replay import Work, replay
from gpuscope.analyzers.device_time.idleness.launching_threads import (
    Turns,
    blocking_calls,
    launching_threads,
    most_launching,
)
from gpuscope.analyzers.device_time.idleness.longest_gaps import ending, longest_gaps
from gpuscope.catalogue.cause import UNATTRIBUTED
from gpuscope.catalogue.cause_table import COVERING, SHOWN_BY_NAME
from gpuscope.schema.profile_sections import GapEntry
from gpuscope.trace.columns.distinct import among, distinct, distinct_values
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Mask, Table, Times, blocks, compact, rows_of_rank, rows_where
from gpuscope.trace.intervals import EMPTY, Spans, clip, complement, intersect, join, subtract, union
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace

EXPLAINING = (Category.OP, Category.RUNTIME, Category.PYTHON, Category.OS)
"""Host events dense enough that time without any of them is Python between calls."""

NO_CAUSE = -1
"""Of a host event that stands for no cause by its name."""
LAUNCH_LATENCY = 10_000
"""ns that the driver and device usually take to start a launched operation. Idle time up to this is launch overhead; an
operation that starts later waited for something that the trace does not show."""
LONG_STRETCH = 1_000_000
"""ns from which host work without a launch can be a stretch of its own, not the way to the next launch."""
LONG_STRETCHES_OF_INTERVALS = 50
"""Usual launch intervals that such a stretch must last."""
SLOW_LAUNCH = 1_000_000
"""ns from which a launch call did something else than launch (lazy loading, first use)."""


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of a lane: what ends each, when that was issued and by which thread."""

    start: Times
    end: Times
    launched: Mask
    """Whether the launch of the device event that ends it is recorded."""
    thread: Array
    """Thread that launches it; where that is not recorded, the one that launches most."""
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


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """Attribute the idle time of every lane."""
    result = Result(ANALYZER.name)
    gaps: list[GapEntry] = []
    for view in lanes:
        result.causes[view.key], longest = _attribute(trace, view)
        gaps += longest
    if gaps:
        result.sections[GAPS] = gaps
    return result


def _attribute(trace: Trace, view: LaneView) -> tuple[dict[str, Attributed], list[GapEntry]]:
    """The idle time of a lane by cause, and its longest gaps."""
    host, idle = trace["host_events"], view.parts.idle
    low, high = rows_of_rank(host, view.lane.rank)
    explaining = among(host["category"][low:high], EXPLAINING)
    if not explaining.any():
        causes = only_present({UNATTRIBUTED: attribute(idle, view, unexplained(view, idle))})
        return causes, longest_gaps(trace, view, {UNATTRIBUTED: idle})
    gaps, queued = find_gaps(trace, view)
    queued = queued if view.lane.device != NA else EMPTY
    latency = Spans(queued.start, np.minimum(queued.end, queued.start + LAUNCH_LATENCY))
    left = subtract(idle, queued)
    found = {"launch": latency, UNATTRIBUTED: subtract(queued, latency), **_covering(trace, view, gaps, left)}
    left = subtract(left, join(*(found[cause] for cause, _ in COVERING)))
    # What a recorded launch ends is explained to its end, also behind the last call of the host.
    last = int(host["end"][low:high].max(initial=NA, where=explaining))
    last = max(last, int(gaps.end.max(initial=NA, where=gaps.launched)))
    inside = clip(left, int(host["start"][low + int(np.argmax(explaining))]), last)
    found[UNATTRIBUTED] = join(found[UNATTRIBUTED], subtract(left, inside))
    blocking = blocking_calls(trace, view)
    for cause, spans in _own_work(trace, view, gaps, blocking, inside).items():
        found[cause] = join(found.get(cause, EMPTY), spans)
    causes = {
        cause: attribute(spans, view, evidence(trace, view, spans, gaps, blocking if cause == "sync" else None))
        for cause, spans in found.items()
    }
    return only_present(causes), longest_gaps(trace, view, found, gaps)


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
    gaps = Gaps(idle.start, idle.end, launched, compact(thread), begins, view.rows)
    queued_from = np.maximum(issue, idle.start, out=issue)
    keep = idle.end > queued_from
    return gaps, Spans(queued_from, idle.end) if keep.all() else Spans(queued_from[keep], idle.end[keep])


def _covering(trace: Trace, view: LaneView, gaps: Gaps, left: Spans) -> dict[str, Spans]:
    """Where host events with a cause of their own cover idle time on the launching thread; innermost first."""
    host = trace["host_events"]
    causes = list(dict.fromkeys(cause for cause, _ in COVERING))
    cause_of = _cause_of_event(trace, view, causes)
    events = np.flatnonzero(cause_of >= 0)
    pieces = intersect(left, _on_launching_thread(host, events, gaps))
    bounds = np.unique(np.concatenate([host["start"][events], host["end"][events]]))
    pieces = intersect(pieces, Spans(bounds[:-1], bounds[1:]))
    middle = (pieces.start + pieces.end) // 2
    inner = innermost(host, cause_of >= 0, gaps.thread[gaps.of(pieces)], middle)
    which = cause_of[inner]
    return {cause: join(Spans(pieces.start[which == place], pieces.end[which == place]))
            for place, cause in enumerate(causes)}  # fmt: skip


def _cause_of_event(trace: Trace, view: LaneView, causes: Sequence[str]) -> Array:
    """Per host event the place of the cause that it stands for by its name, or NO_CAUSE; shape (host events,)."""
    host = trace["host_events"]
    found = np.full(len(host), NO_CAUSE, np.int8)
    for cause, (categories, predicate) in reversed(COVERING):
        picked = _named(trace, view, categories, predicate)
        if Category.OS in categories:
            # A lock inside a runtime call is that call waiting, not the program.
            calls = host["category"] == Category.RUNTIME
            picked = picked[innermost(host, calls, host["thread"][picked], host["start"][picked]) == NA]
        found[picked] = causes.index(cause)
    return found


def _named(trace: Trace, view: LaneView, categories: Sequence[Category], predicate: object) -> Times:
    """The host events of a lane's rank that are of these categories and have a name for which the predicate holds."""
    host, wanted = trace["host_events"], trace.names.matching(predicate)
    if not wanted.any():  # most causes do not occur in a trace
        return np.empty(0, np.int64)
    return rows_where(
        *rows_of_rank(host, view.lane.rank),
        lambda block: wanted[host["name"][block]] & among(host["category"][block], categories),
    )


def _on_launching_thread(host: Table, picked: Times, gaps: Gaps) -> Spans:
    """Where the picked host events cover a gap on that gap's launching thread."""
    parts: list[Spans] = []
    for thread in distinct_values(gaps.thread).tolist():
        own = gaps.thread == thread
        events = picked[host["thread"][picked] == thread]
        if len(events):
            covering = union(host["start"][events], host["end"][events])
            parts.append(intersect(Spans(gaps.start[own], gaps.end[own]), covering))
    return join(*parts) if parts else EMPTY


def _own_work(trace: Trace, view: LaneView, gaps: Gaps, blocking: Times, left: Spans) -> dict[str, Spans]:
    """What the host itself made the device wait for: long stretches, blocking calls, launches one by one."""
    if view.lane.device == NA:  # a training thread has no launch queue
        return {"host_other": left}
    turns = launching_threads(trace, view, blocking)
    if not turns:
        return {"launch": left}
    threads = _threads(trace, view, gaps, turns)
    stretches = [
        _long_stretches(trace, view, own, join(*(one.covered for one in threads if one.launches_in == place)))
        for place, own in enumerate(turns)
    ]
    long = join(EMPTY, *(
        intersect(intersect(left, _where(gaps, gaps.thread == one.number)), stretches[one.launches_in])
        for one in threads
        if one.launches_in is not None and len(stretches[one.launches_in].start)
    ))  # fmt: skip
    rest = subtract(left, long)
    blocked = [own.blocked(trace["host_events"]) for own in turns]
    if not any(len(spans.start) for spans in blocked):
        return {"host_other": long, "launch": rest}
    sync = _price_of_blocking(trace, view, gaps, rest, blocked, stretches, threads)
    return {"host_other": long, "sync": sync, "launch": subtract(rest, sync)}


@dataclass(frozen=True)
class _Thread:
    """A host thread of a lane: one that launches for it, or launches what ends one of its gaps."""

    number: int
    launches_in: int | None
    """Place of the turns that it takes, in order of how much they launch; None where it takes none."""
    covered: Spans
    """Where it was in a loader, collector, allocator or file call."""

    @property
    def turns(self) -> int:
        """Place of the turns that its launches are counted with: the busiest where it takes none."""
        return self.launches_in or 0

    def explained(self, stretches: Sequence[Spans]) -> Spans:
        """Where it was in something that has a cause; `stretches` are the long ones of each turns."""
        return self.covered if self.launches_in is None else join(self.covered, stretches[self.launches_in])


def _threads(trace: Trace, view: LaneView, gaps: Gaps, turns: Sequence[Turns]) -> list[_Thread]:
    host = trace["host_events"]
    named = np.concatenate([_named(trace, view, categories, predicate) for _, (categories, predicate) in COVERING])
    place_of = {number: place for place, own in enumerate(turns) for number in own.threads.tolist()}
    found = []
    for number in sorted({*distinct_values(gaps.thread).tolist(), *place_of}):
        own = named[host["thread"][named] == number]
        found.append(_Thread(number, place_of.get(number), union(host["start"][own], host["end"][own])))
    return found


def _where(gaps: Gaps, picked: Mask) -> Spans:
    return Spans(gaps.start[picked], gaps.end[picked])


def _long_stretches(trace: Trace, view: LaneView, own: Turns, covered: Spans) -> Spans:
    """The host's own code between two launches, blocking calls or covering causes, where it takes unusually long;
    and launch calls that did more than launch."""
    host = trace["host_events"]
    launches = own.launches
    start, end = host["start"][launches], host["end"][launches]
    judged = view.judged
    usual = np.diff(start[slice(*np.searchsorted(start, judged).tolist())])
    usual = usual if len(usual) else np.diff(start)
    limit = max(
        LONG_STRETCH, LONG_STRETCHES_OF_INTERVALS * int(np.median(usual, overwrite_input=True)) if len(usual) else 0
    )
    del usual
    bounded = join(union(start, end), covered, own.blocked(host))
    code = complement(bounded, int(start.min()), int(end.max()))
    long = code.end - code.start >= limit
    slow = end - start >= SLOW_LAUNCH
    slow_calls = subtract(union(start[slow], end[slow]), own.blocked(host))
    return join(Spans(code.start[long], code.end[long]), slow_calls)


def _price_of_blocking(
    trace: Trace, view: LaneView, gaps: Gaps, rest: Spans, blocked: Sequence[Spans], stretches: Sequence[Spans],
    threads: Sequence[_Thread],
) -> Spans:  # fmt: skip
    """The part of the remaining idle time that would not be there if blocking calls returned at once."""
    work, rows = _work(trace, view, threads)
    room = np.bincount(gaps.of(rest), weights=rest.end - rest.start, minlength=len(gaps)).astype(np.int64)
    # A gap belongs to the step in which it lies, though what ends it may be the next one's first operation.
    starts = np.array([own.start for own in view.steps], np.int64)
    step = places(starts, work.start - 1, "right")
    explained = [one.explained(stretches) for one in threads]
    outcome = replay(work, blocked, explained, [one.turns for one in threads], _segments(view)[step])
    lost = np.maximum(outcome.recorded - outcome.unblocked, 0)
    count = len(view.steps) + 1
    idle, idle_unblocked = (
        np.bincount(step, weights=values, minlength=count).astype(np.int64)
        for values in (outcome.recorded, outcome.unblocked)
    )
    price = idle - np.minimum(idle, idle_unblocked)
    event = gaps.event(slice(None))
    at = places(rows, event)
    ends = (event != NA) & (at < len(rows))
    own_lost = np.where(ends, lost[np.where(ends, at, 0)], 0)
    return _first_of_each(rest, gaps, _shared(price, places(starts, gaps.end - 1, "right"), own_lost, room))


def _segments(view: LaneView) -> Times:
    """For each step, and for what lies before the first: the run of steps of one role it is in, shape (steps + 1,)."""
    roles = ["", *view.roles]
    change = [0] + [int(a != b) for a, b in pairwise(roles)]
    return np.cumsum(np.array(change, np.int64))


def _shared(price: Times, step: Times, lost: Times, room: Times) -> Times:
    """Each step's price over its gaps, in proportion to what each lost and never more than its room; what the gaps
    that lost can't hold (an operation that lost time may end no gap) goes to the others by their room."""
    first = np.minimum(_in_proportion(price, step, lost), room)
    left = price - np.bincount(step, weights=first, minlength=len(price)).astype(np.int64)
    return first + np.minimum(_in_proportion(left, step, room - first), room - first)


def _in_proportion(amount: Times, step: Times, weight: Times) -> Times:
    """Each step's amount over its gaps in proportion to their weights; whole ns, their sum exact."""
    total = np.bincount(step, weights=weight, minlength=len(amount))
    exact = weight * (amount[step] / np.maximum(total[step], 1))
    share = np.floor(exact).astype(np.int64)
    missing = amount - np.bincount(step, weights=share, minlength=len(amount)).astype(np.int64)
    order = np.lexsort((share - exact, step))
    place = np.arange(len(step)) - places(step[order], step[order])
    more = np.zeros(len(step), np.int64)
    more[order] = (place < missing[step[order]]) & (weight[order] > 0)
    return share + more


def _first_of_each(spans: Spans, gaps: Gaps, wanted: Times) -> Spans:
    """The first `wanted[g]` ns of the spans that lie in gap g."""
    gap = gaps.of(spans)
    length = spans.end - spans.start
    before = np.cumsum(length) - length
    first = places(gap, gap)
    taken = np.clip(wanted[gap] - (before - before[first]), 0, length)
    keep = taken > 0
    return Spans(spans.start[keep], (spans.start + taken)[keep])


def _work(trace: Trace, view: LaneView, threads: Sequence[_Thread]) -> tuple[Work, Times]:
    """A lane's operations as the replay takes them, and their rows (ascending, like their starts)."""
    device, host = trace["device_events"], trace["host_events"]
    rows = np.sort(view.rows, kind="stable")
    start, end, launch = device["start"][rows], device["end"][rows], device.at("launch", rows)
    known = launch != NA
    row = np.where(known, launch, 0)
    issue = np.where(known, np.minimum(host["end"][row], start), start)
    _, stream = distinct(device.at("stream", rows))
    place = np.where(known, np.searchsorted([one.number for one in threads], host["thread"][row]), 0)
    place = np.minimum(place, len(threads) - 1)
    sequence: Array = np.array([one.turns for one in threads], np.int64)[place]
    return Work(start, end, stream, issue, sequence, place), rows


ANALYZER = FileAnalyzer(
    "idle",
    run,
    (DEVICE_EVENTS,),
    (GAPS,),
    causes=(*(cause.code for cause in SHOWN_BY_NAME), "sync", "launch", UNATTRIBUTED),
    cost=4,
    large=True,
)
