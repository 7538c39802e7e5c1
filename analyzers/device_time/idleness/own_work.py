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

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.idleness.gaps import Gaps, named_events
from gpuscope.analyzers.device_time.idleness.host_activity import LONG_STRETCH
from gpuscope.analyzers.device_time.idleness.idle_replay import Work, replay
from gpuscope.analyzers.device_time.idleness.launching_threads import Turns, launching_threads, trains, waits_for_work
from gpuscope.catalogue.cause_table import COVERING
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.intervals import EMPTY, Spans, clip, complement, intersect, join, subtract, union
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

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
