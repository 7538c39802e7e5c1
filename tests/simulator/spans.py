"""Sets of instants as sorted, disjoint (start, end) pairs in ns."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

Span = tuple[int, int]
Spans = list[Span]


def union(spans: Iterable[Span]) -> Spans:
    """The instants in any of them."""
    made: Spans = []
    for start, end in sorted(spans):
        if made and start <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        elif end > start:
            made.append((start, end))
    return made


def minus(whole: Spans, taken: Spans) -> Spans:
    """The instants of `whole` that are not in `taken`."""
    made: Spans = []
    ends = [end for _, end in taken]
    for start, end in whole:
        at = start
        for first, last in taken[bisect_right(ends, start) :]:
            if first >= end:
                break
            if first > at:
                made.append((at, first))
            at = max(at, last)
        if at < end:
            made.append((at, end))
    return made


def both(one: Spans, other: Spans) -> Spans:
    """The instants in both."""
    return minus(one, minus(one, other))


def clip(spans: Spans, start: int, end: int) -> Spans:
    """What lies in a window."""
    return [(max(a, start), min(b, end)) for a, b in spans if b > start and a < end]


def length(spans: Spans) -> int:
    """Their ns."""
    return sum(end - start for start, end in spans)
