"""From the marks and collectives of one step to the line of it (docs/formats.md: «Digests»)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from gpuscope.instrumented_runtime.record.digest.thread_marks import FORWARD, GC, HOST, INPUT, Mark
from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective

BLOCKED_NS = 50_000
"""A shorter time off the core is no wait: locks, page faults."""
MOST = 64
"""Collectives, and waits, that a line lists one by one: with these it stays under 3 kB."""


def phases(marks: Sequence[Mark]) -> list[list[Any]]:
    """[phase, ns] one after the other, which tile the step."""
    spans = [(phase, after[0] - wall) for (wall, _, _, phase), after in pairwise(marks)]
    found = [[phase, sum(ns for _, ns in own)] for phase, own in groupby(spans, key=lambda one: one[0])]
    return [one for one in found if one[1]]


def pauses(marks: Sequence[Mark], collectives: Sequence[Collective]) -> tuple[list[list[int]], list[list[int]]]:
    """Where the thread was blocked, [offset, ns] from the first mark: on collectives, and on something else.

    Blocked time between two marks is put before the last end of a collective between them: nothing else wakes the
    thread there so late.
    """
    ended = sorted((one.completed_ns, one.issued_ns) for one in collectives if one.completed_ns is not None)
    ends = [end for end, _ in ended]
    begin = marks[0][0]
    waits: list[list[int]] = []
    others: list[list[int]] = []
    for (wall, cpu, core, phase), (until, cpu_after, core_after, _) in pairwise(marks):
        blocked = until - wall - (cpu_after - cpu) - (core_after - core)
        if blocked < BLOCKED_NS or phase in (INPUT, GC):
            continue
        last = bisect_right(ends, until) - 1
        if phase != HOST and last >= 0 and ends[last] > wall:
            issued = min(ended[place][1] for place in range(bisect_right(ends, wall), last + 1))
            start = max(wall, issued, ends[last] - blocked)
            waits.append([start - begin, ends[last] - start])
            blocked -= ends[last] - start
        if blocked >= BLOCKED_NS:
            others.append([wall - begin, blocked])
    return _longest(waits), _longest(others)


def _longest(spans: list[list[int]]) -> list[list[int]]:
    """The longest of them, in their order."""
    if len(spans) <= MOST:
        return spans
    least = sorted(ns for _, ns in spans)[-MOST]
    return [span for span in spans if span[1] >= least][:MOST]


def listed(collectives: Sequence[Collective]) -> tuple[list[Collective], int]:
    """Those to list one by one, and one in how many that is: chosen by number, so that all ranks list the same."""
    every = -(-len(collectives) // MOST)
    if every <= 1:
        return list(collectives), 1
    return [one for one in collectives if (one.p2p_seq if one.is_p2p else one.seq) % every == 0][:MOST], every


def time_in(phase: str, found: Sequence[Sequence[Any]]) -> int:
    """ns of a step's phases that are of this kind."""
    return sum(ns for name, ns in found if name == phase)


__all__ = ["FORWARD", "GC", "INPUT", "listed", "pauses", "phases", "time_in"]
