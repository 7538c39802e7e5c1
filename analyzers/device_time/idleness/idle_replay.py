"""One rank replayed alone, as recorded and with its blocking calls returning at once: what of its idle time is
the price of blocking, and what is kernel launch overhead (definitions: «Stalls», sync against launch).

A queue that a blocking call drained is paid for over many launches after it, so no gap shows its cause by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope import native
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.intervals import Spans, measure_before, measure_within
from gpuscope.trace.schema import NA
from gpuscope.when_used import dataclass


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
