"""What the host itself made the device wait for: blocking calls, long stretches without a launch, one launch at a time.

The lane is replayed with its blocking calls returning at once (`idle_replay.py`). Of each step's idle time, I as
recorded and I′ without blocking, S and S′ of them in long stretches (definitions: «Stalls»):

- `sync` is I − min(I, I′), over the gaps in proportion to what each lost;
- `host_other` is min(S, S′, I, I′), over the gaps' long stretches in proportion to what is left of them;
- `launch` is the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from gpuscope import native
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.gaps import LONG_STRETCH, Gaps, named_events
from gpuscope.analyzers.device_time.launching_threads import Turns, launching_threads, trains, waits_for_work
from gpuscope.catalogue.suggestion import COVERING
from gpuscope.trace.intervals import (
    EMPTY,
    Spans,
    clip,
    complement,
    intersect,
    join,
    measure_before,
    measure_within,
    subtract,
    union,
)
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times, distinct, distinct_values, places
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# One rank replayed alone, as recorded and with its blocking calls returning at once: what of its idle time is
# the price of blocking, and what is kernel launch overhead (definitions: «Stalls», sync against launch).
#
# A queue that a blocking call drained is paid for over many launches after it, so no gap shows its cause by itself.


@dataclass(frozen=True)
class Work:
    """A lane's operations in order of recorded start; every array has shape (n,)."""

    start: Times
    end: Times
    stream: Array
    """Place of the stream among the lane's, 0, 1, 2…"""
    issue: Times
    """When the host had launched it: the end of the launch call, or the recorded start if that is earlier."""
    host: Array
    """Place of the launching sequence of threads among the lane's; 0 where unknown."""
    thread: Array
    """Place of the launching thread in the lists of explained spans and stretches; 0 where unknown."""


@dataclass(frozen=True)
class Outcome:
    """Idle time (ns) before each operation that no cause of its own explains, as replayed, and the part of it in long
    stretches."""

    recorded: Times
    unblocked: Times
    stretched: Times
    stretched_unblocked: Times


def replay(
    work: Work,
    blocked: Sequence[Spans],
    explained: Sequence[Spans],
    stretches: Sequence[Spans],
    host_of_thread: Sequence[int],
    segment: Times,
    pinned: Sequence[Times],
) -> Outcome:
    """Replay a lane segment by segment, each from where it was recorded to begin.

    `blocked` is when each launching sequence was blocked; of each thread, `explained` is what its own causes (loader,
    collector, allocator) cover, and `stretches` its long ones, apart from these; `segment` numbers, not decreasing, say
    which operations are replayed together. At its `pinned` instants, ascending, a launching sequence
    goes on no earlier than recorded, however little it was blocked before.
    """
    waits = inferred_waits(work)
    holds = [_Blocked(spans, pins) for spans, pins in zip(blocked, pinned, strict=True)]
    recorded, unblocked = np.zeros((2, len(work.start)), np.int64), np.zeros((2, len(work.start)), np.int64)
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(segment)) + 1, [len(segment)]))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        before = np.array([int(measure_before(spans, work.start[low : low + 1])[0]) for spans in blocked], np.int64)
        issue = work.issue[low:high]
        # Nothing is issued before the segment's first operation, which is where both replays begin.
        sooner = issue.copy()
        for host, own in enumerate(holds):
            of_host = work.host[low:high] == host
            sooner[of_host] -= own.before(issue[of_host], int(before[host]))
        shifts = [(own, gone) for own, gone in zip(holds, before.tolist(), strict=True)]
        moved, moved_stretches = (
            [_moved(spans, *shifts[host]) for spans, host in zip(sets, host_of_thread, strict=True)]
            for sets in (explained, stretches)
        )
        recorded[:, low:high] = _idle(work, waits, low, high, issue, explained, stretches)
        unblocked[:, low:high] = _idle(work, waits, low, high, sooner, moved, moved_stretches)
    return Outcome(recorded[0], unblocked[0], recorded[1], unblocked[1])


@dataclass(frozen=True)
class _Blocked:
    """When a launching sequence was blocked, and the instants at which it goes on as recorded all the same."""

    spans: Spans
    pins: Times

    def before(self, at: Times, gone: int) -> Times:
        """By how much earlier it would come to each instant without blocking: ns blocked since the last pin before it,
        the first `gone` ns of the recording left out."""
        blocked = measure_before(self.spans, at)
        base = np.full(len(at), gone)
        if len(self.pins):
            last = places(self.pins, at, "right") - 1
            pinned = measure_before(self.spans, self.pins)[np.maximum(last, 0)]
            base = np.where(last >= 0, np.maximum(base, pinned), base)
        return np.asarray(np.maximum(blocked - base, 0))


def _moved(spans: Spans, blocked: _Blocked, before: int) -> Spans:
    """Spans of a thread on its own clock without the blocked time (beyond `before`, ns, of it)."""
    start = spans.start - blocked.before(spans.start, before)
    end = spans.end - blocked.before(spans.end, before)
    keep = end > start
    return Spans(start[keep], end[keep])


def _idle(
    work: Work, waits: Times, low: int, high: int, issue: Times, explained: Sequence[Spans], stretches: Sequence[Spans]
) -> Times:
    """Idle time before each operation of [low, high), what is explained left out, and the part of it in long stretches;
    shape (2, high − low)."""
    start, end, reach = _run(work, waits, low, high, issue)
    order = np.argsort(start, kind="stable")
    busy_until = np.maximum.accumulate(np.concatenate(([reach], end[order][:-1])))
    gap_start, gap_end = np.minimum(busy_until, start[order]), start[order]
    idle, stretched = gap_end - gap_start, np.zeros(high - low, np.int64)
    thread = work.thread[low:high][order]
    for place, (own_causes, own_stretches) in enumerate(zip(explained, stretches, strict=True)):
        own = (thread == place) & (idle > 0)
        if not own.any():
            continue
        gap = gap_start[own], gap_end[own]
        if len(own_causes.start):
            idle[own] -= measure_within(own_causes, *gap)
        if len(own_stretches.start):
            stretched[own] = measure_within(own_stretches, *gap)
    found = np.empty((2, high - low), np.int64)
    found[:, order] = idle, stretched
    return found


def _run(work: Work, waits: Times, low: int, high: int, issue: Times) -> tuple[Times, Times, int]:
    """Start and end of each operation, and when the work before the segment had ended.

    An operation starts at the latest of its issue, the end of its stream's predecessor and of what it waits
    for, and keeps its duration. The first one starts as recorded.
    """
    streams = int(work.stream.max(initial=0)) + 1
    latest = np.full(streams, NA, np.int64)  # ends of the last operation of each stream
    earlier = slice(max(0, low - 4096), low)
    np.maximum.at(latest, work.stream[earlier], work.end[earlier])
    reach = int(latest.max())
    begin = int(work.start[low])
    if reach == NA:
        reach = begin
    part = slice(low, high)
    lasts = work.end[part] - work.start[part]
    start, end = native.in_order(work.stream[part], issue, waits[part], lasts, work.end, latest, low, begin)
    return start, end, reach


def inferred_waits(work: Work) -> Times:
    """For each operation, the one on another stream that it waits for, as far as the recording shows; or NA.

    That is the last to end before it starts, where its own stream was free by then and it was issued later:
    what is not seen to overlap is kept in order.
    """
    by_end = np.argsort(work.end, kind="stable")
    place = places(work.end[by_end], work.start, "right") - 1
    last = by_end[np.maximum(place, 0)]
    other: Mask = (place >= 0) & (work.stream[last] != work.stream) & (work.issue[last] <= work.issue)
    before = np.arange(len(last)) > last
    return np.where(other & before, last, NA)


LONG_STRETCHES_OF_INTERVALS = 20
"""Usual launch intervals that such a stretch must last (definitions)."""
USUAL_INTERVAL_AT_MOST = 100_000
"""ns: a program that launches more rarely does something else between its launches (definitions)."""
SLOW_LAUNCH = 1_000_000
"""ns from which a launch call did something else than launch (lazy loading, first use)."""


def own_work(trace: Trace, view: LaneView, gaps: Gaps, blocking: Times, left: Spans) -> tuple[dict[str, Spans], Spans]:
    """The idle time `left` by cause, and the stretches in which the host may have waited for another process;
    `blocking` are the lane's blocking calls."""
    if view.lane.device == NA:  # a training thread has no launch queue
        return {"host_other": left}, EMPTY
    turns = launching_threads(trace, view, blocking)
    threads = _threads(trace, view, gaps, turns)
    stretches = [_long_stretches(trace, view, turns[one.turns], one.covered) for one in threads]
    long = join(
        EMPTY,
        *(
            intersect(intersect(left, gaps.where(gaps.thread == one.number)), own)
            for one, own in zip(threads, stretches, strict=True)
            if len(own.start)
        ),
    )
    device, (low, high) = trace["device_events"], view.window
    # A single annotated step begins before its device works and may end after that; the replay does not reach so far.
    before = clip(left, low, min(int(device["start"][view.rows].min()), high))
    behind = clip(left, max(int(device["end"][view.rows].max()), low), high)
    ends = join(intersect(long, before), behind)
    blocked = [own.blocked(trace["host_events"]) for own in turns]
    if not any(len(spans.start) for spans in blocked):
        other = join(long, ends)
        return {"host_other": other, "launch": subtract(left, other)}, EMPTY
    awaiting = [EMPTY] * len(turns)
    if not trains(trace, view):
        awaiting = [
            waits_for_work(
                trace, own, join(EMPTY, *(s for s, t in zip(stretches, threads, strict=True) if t.turns == at))
            )
            for at, own in enumerate(turns)
        ]
    pinned = [spans.end for spans in awaiting]
    replayed = subtract(left, join(before, behind))
    within = intersect(long, replayed)
    sync, other = _without_blocking(trace, view, gaps, replayed, within, blocked, stretches, threads, pinned)
    other = join(other, ends)
    causes = {"host_other": other, "sync": sync, "launch": subtract(left, join(sync, other))}
    return causes, intersect(join(EMPTY, *awaiting), other)


@dataclass(frozen=True)
class _Thread:
    """A host thread of a lane that launches what ends one of its gaps, or worked before what nobody launched."""

    number: int
    turns: int
    """Place of the turns that it takes, in order of how much they launch; the busiest where it takes none."""
    covered: Spans
    """Where it was in a loader, collector, allocator or file call."""


def _threads(trace: Trace, view: LaneView, gaps: Gaps, turns: Sequence[Turns]) -> list[_Thread]:
    host = trace["host_events"]
    named = np.concatenate([named_events(trace, view, *shown) for _, shown in COVERING])
    place_of = {number: place for place, own in enumerate(turns) for number in own.threads.tolist()}
    found = []
    for number in sorted({*distinct_values(gaps.thread).tolist(), *place_of}):
        own = named[host["thread"][named] == number]
        found.append(_Thread(number, place_of.get(number, 0), union(host["start"][own], host["end"][own])))
    return found


def _long_stretches(trace: Trace, view: LaneView, own: Turns, covered: Spans) -> Spans:
    """The host's own code between two launches, blocking calls or covering causes, where it takes unusually long;
    and launch calls that did more than launch."""
    host = trace["host_events"]
    start, end = host["start"][own.launches], host["end"][own.launches]
    limit = least_stretch(_usual_interval(view, start))
    blocked = own.blocked(host)
    code = complement(join(union(start, end), covered, blocked), *view.window)
    long = code.end - code.start >= limit
    slow = end - start >= SLOW_LAUNCH
    slow_calls = subtract(union(start[slow], end[slow]), blocked)
    return join(Spans(code.start[long], code.end[long]), slow_calls)


def _usual_interval(view: LaneView, start: Times) -> int:
    """The median between launch starts in the judged steps, ns; 0 where there are none."""
    usual = np.diff(start[slice(*np.searchsorted(start, view.judged).tolist())])
    usual = usual if len(usual) else np.diff(start)
    return int(np.median(usual, overwrite_input=True)) if len(usual) else 0


def least_stretch(usual: float) -> float:
    """ns from which own code is a long stretch, where launches usually follow each other by so many."""
    return max(LONG_STRETCH, LONG_STRETCHES_OF_INTERVALS * min(usual, USUAL_INTERVAL_AT_MOST))


def _without_blocking(
    trace: Trace,
    view: LaneView,
    gaps: Gaps,
    left: Spans,
    long: Spans,
    blocked: Sequence[Spans],
    stretches: Sequence[Spans],
    threads: Sequence[_Thread],
    pinned: Sequence[Times],
) -> tuple[Spans, Spans]:
    """The part of the remaining idle time that would not be there if blocking calls returned at once, and the part of
    the rest that lies in long stretches either way."""
    work, rows = _work(trace, view, gaps, threads)
    # A gap belongs to the step in which it lies, though what ends it may be the next one's first operation.
    starts = np.array([own.start for own in view.steps], np.int64)
    step, step_of_gap = places(starts, work.start - 1, "right"), places(starts, gaps.end - 1, "right")
    replayed_with = places(starts, work.start - _ends_gap(gaps, work.start), "right")
    outcome = replay(
        work,
        blocked,
        [one.covered for one in threads],
        stretches,
        [one.turns for one in threads],
        _segments(view)[replayed_with],
        pinned,
    )

    def per_step(values: Times) -> Times:
        return np.bincount(step, weights=values, minlength=len(view.steps) + 1).astype(np.int64)

    idle, unblocked = per_step(outcome.recorded), per_step(outcome.unblocked)
    stays = np.minimum(idle, unblocked)
    in_stretches = np.minimum(stays, np.minimum(per_step(outcome.stretched), per_step(outcome.stretched_unblocked)))
    lost = _of_gaps(gaps, rows, np.maximum(outcome.recorded - outcome.unblocked, 0))
    price = _shared(idle - stays, step_of_gap, lost, _room(gaps, left))
    between = subtract(left, long)
    first = np.minimum(price, _room(gaps, between))
    sync = join(_first_of_each(between, gaps, first), _first_of_each(long, gaps, price - first))
    long = subtract(long, sync)
    room = _room(gaps, long)
    other = np.minimum(_in_proportion(in_stretches, step_of_gap, room), room)
    return sync, _first_of_each(long, gaps, other)


def _segments(view: LaneView) -> Times:
    """For each step, and for what lies before the first: the run of steps of one role it is in, shape (steps + 1,)."""
    roles = ["", *view.roles]
    change = [0] + [int(a != b) for a, b in pairwise(roles)]
    return np.cumsum(np.array(change, np.int64))


def _ends_gap(gaps: Gaps, start: Times) -> Mask:
    """Which of these starts is the end of a gap."""
    return np.asarray(places(gaps.end, start, "right") > places(gaps.end, start))


def _of_gaps(gaps: Gaps, rows: Times, values: Times) -> Times:
    """Values of a lane's operations, `rows`, at the gaps that these end; 0 where none does."""
    event = gaps.event(slice(None))
    at = places(rows, event)
    ends = (event != NA) & (at < len(rows))
    return np.where(ends, values[np.where(ends, at, 0)], 0)


def _room(gaps: Gaps, spans: Spans) -> Times:
    """ns of the spans in each gap."""
    return np.bincount(gaps.of(spans), weights=spans.end - spans.start, minlength=len(gaps)).astype(np.int64)


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


def _work(trace: Trace, view: LaneView, gaps: Gaps, threads: Sequence[_Thread]) -> tuple[Work, Times]:
    """A lane's operations as the replay takes them, and their rows (ascending, like their starts)."""
    device, host = trace["device_events"], trace["host_events"]
    rows = np.sort(view.rows, kind="stable")
    start, end, launch = device["start"][rows], device["end"][rows], device.at("launch", rows)
    known = launch != NA
    row = np.where(known, launch, 0)
    issue = np.where(known, np.minimum(host["end"][row], start), start)
    _, stream = distinct(device.at("stream", rows))
    # What no call launched belongs to the thread of the gap that it ends, if it ends one.
    number = np.where(known, host["thread"][row], NA)
    own = np.flatnonzero(~gaps.launched)
    event = gaps.event(own)
    at = places(rows, event)
    ends = (event != NA) & (at < len(rows))
    number[at[ends]] = gaps.thread[own[ends]]
    place = np.clip(places(np.array([one.number for one in threads]), number), 0, len(threads) - 1)
    sequence = np.array([one.turns for one in threads], np.int64)[place]
    return Work(start, end, stream, issue, sequence, place), rows
