"""Memory given back to the device: by a retry inside a request, by `empty_cache`, or by something not recorded.

The history has no event for a retry. A request that cudaMalloc refuses gives cached segments back and asks again:
segments are freed, and the next event is a new segment or the failure. `empty_cache` looks the same where a
request that needs a segment follows it; then stacks decide, or whether the request would have fitted beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuscope.analyzers.allocator.allocator_settings import segment_size
from gpuscope.analyzers.allocator.history import GROWS, SHRINKS, Event, History
from gpuscope.trace.schema import NA, AllocatorAction
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Release:
    """A run of segments given back, and what followed."""

    first: int
    """Row of its first event."""
    last: int
    size: int
    kind: Literal["retry", "empty_cache", "unknown"]
    requested: int | None
    """Bytes that the request asked the device for; None where none followed."""
    time: int
    """ns from the first segment freed to what followed; `NA` where no times were recorded."""


def releases(history: History) -> list[Release]:
    """Every release of a history, in order."""
    limit = capacity(history)
    return [_release(history, first, last, reserved, limit) for first, last, reserved in _runs(history)]


def capacity(history: History) -> int | None:
    """Bytes the allocator could reserve at most: what it held when a request failed and what was then free.

    None where no request failed, or where more was free than asked for (a fraction set for the process).
    """
    found: list[int] = []
    for reserved, event in _reserved(history):
        if event.action == AllocatorAction.OOM and event.device_free != NA:
            refused = segment_size(history.settings.round(event.requested))
            if event.device_free < refused:
                found.append(reserved + event.device_free)
    return max(found, default=None)


def _reserved(history: History) -> Iterator[tuple[int, Event]]:
    """Each event and the bytes reserved before it."""
    reserved = sum(segment.size for segment in history.before.segments.values())
    for event in history.events:
        yield reserved, event
        if event.action in GROWS:
            reserved += event.requested
        elif event.action in SHRINKS:
            reserved -= event.requested


def _runs(history: History) -> Iterator[tuple[int, int, int]]:
    """First and last row of each run of frees, and what was reserved before it."""
    first: int | None = None
    before = 0
    for row, (reserved, event) in enumerate(_reserved(history)):
        if event.action in SHRINKS:
            if first is None:
                first, before = row, reserved
        elif first is not None:
            yield first, row - 1, before
            first = None
    if first is not None:
        yield first, len(history.events) - 1, before


def _release(history: History, first: int, last: int, reserved: int, limit: int | None) -> Release:
    events = history.events
    size = sum(event.requested for event in events[first : last + 1])
    following = events[last + 1] if last + 1 < len(events) else None
    inside = following is not None and following.action in (*GROWS, AllocatorAction.OOM)
    if following is None or not inside:
        return Release(first, last, size, "empty_cache", None, NA)
    stack = history.frames.get(events[first].frames, "")
    asked = following.requested
    kind: Literal["retry", "empty_cache", "unknown"] = "unknown"
    if following.action == AllocatorAction.OOM:
        kind = "retry"
    elif stack:
        kind = "empty_cache" if "empty_cache" in stack or "emptyCache" in stack else "retry"
    elif limit is not None:
        kind = "retry" if reserved + asked > limit else "empty_cache"
    times = (events[first].time, following.time)
    return Release(first, last, size, kind, asked, NA if NA in times else times[1] - times[0])
