"""From the marks and collectives of one step to the line of it (docs/formats.md: «Digests»)."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, pairwise
from operator import attrgetter, itemgetter
from typing import Any

from gpuscope.instrumented_runtime.record.digest.thread_marks import BLOCKED_NS, GC, HOST, INPUT, MOST, Mark
from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective, Issue

WholeMark = tuple[int, int, int, str]
"""A mark whose time without a core is known."""
LIMIT = 3_000
"""Bytes of a line, which it stays under: of collectives it lists as many as there is room for beside…"""
MOST_WAITS, MOST_PAUSES, MOST_PHASES, MOST_SERIES = 36, 6, 20, 8
"""… so many of everything else."""
LEAST_ROW = 13
"""Bytes of a listed collective, at least."""


def with_issues(marks: Sequence[Mark], issues: Sequence[Issue]) -> list[Mark]:
    """The marks, and one within its phase at each call of the thread between them, where the kernel was not asked: that
    would have been a third of its cost."""
    begin, end = marks[0][0], marks[-1][0]
    within: list[Mark] = [(one[0], one[1], None, "") for one in issues if begin < one[0] < end]
    found: list[Mark] = []
    for wall, cpu, core, phase in sorted([*marks, *within[:MOST]], key=itemgetter(0)):
        found.append((wall, cpu, core, phase or found[-1][3]))
    return found


def with_core_time(marks: Sequence[Mark]) -> list[WholeMark]:
    """The marks with the time without a core at each: between two at which the kernel was asked, it is shared out by
    the time off the core."""
    found: list[WholeMark] = []
    held: list[Mark] = []
    for mark in marks:
        held.append(mark)
        if mark[2] is not None:
            found += _shared_out(held, found[-1] if found else None, mark[2])
            held = []
    return found


def _shared_out(marks: Sequence[Mark], before: WholeMark | None, core: int) -> list[WholeMark]:
    if before is None or len(marks) == 1 or core == before[2]:
        return [(wall, cpu, core, phase) for wall, cpu, _, phase in marks]
    spans = pairwise([before, *marks])
    off = [*accumulate(max(0, after[0] - one[0] - after[1] + one[1]) for one, after in spans)]
    waited = core - before[2]
    return [
        (wall, cpu, before[2] + waited * so_far // max(1, off[-1]) if place < len(off) - 1 else core, phase)
        for place, ((wall, cpu, _, phase), so_far) in enumerate(zip(marks, off, strict=True))
    ]


def phases(marks: Sequence[WholeMark]) -> list[list[Any]]:
    """[phase, ns] one after the other, which tile the step. Of very many the shortest count to the one before."""
    spans = [(phase, after[0] - wall) for (wall, _, _, phase), after in pairwise(marks)]
    found = _joined(spans)
    if len(found) <= MOST_PHASES:
        return found
    kept = set(sorted(range(1, len(found)), key=lambda place: -found[place][1])[: MOST_PHASES - 1])
    for place in range(1, len(found)):
        if place not in kept:
            found[place][0] = found[place - 1][0]
    return _joined(found)


def _joined(spans: Iterable[Sequence[Any]]) -> list[list[Any]]:
    present = [span for span in spans if span[1]]
    return [[phase, sum(ns for _, ns in own)] for phase, own in groupby(present, key=lambda one: one[0])]


@dataclass(frozen=True)
class Blocked:
    """Where the thread was blocked, [offset, ns] from the first mark: on collectives, and on something else."""

    waits: list[list[int]]
    others: list[list[int]]
    exposed: Mapping[str, int]
    """ns of the waits by operation and group of what they waited for."""


def blocked(marks: Sequence[WholeMark], collectives: Sequence[Collective]) -> Blocked:
    """What the thread waited for.

    Blocked time between two marks is put before the last end of a collective between them: nothing else wakes the
    thread there so late.
    """
    ended = sorted((one for one in collectives if one.completed_ns), key=_end)
    ends = [*map(_end, ended)]
    begin = marks[0][0]
    waits: list[list[int]] = []
    others: list[list[int]] = []
    exposed: Counter[str] = Counter()
    for (wall, cpu, core, phase), (until, cpu_after, core_after, _) in pairwise(marks):
        off = until - wall - (cpu_after - cpu) - (core_after - core)
        if off < BLOCKED_NS or phase in (INPUT, GC):
            continue
        last = bisect_right(ends, until) - 1
        if phase != HOST and last >= 0 and ends[last] > wall:
            issued = min(one.issued_ns for one in ended[bisect_right(ends, wall) : last + 1])
            start = max(wall, issued, ends[last] - off)
            waits.append([start - begin, ends[last] - start])
            exposed[series(ended[last])] += ends[last] - start
            off -= ends[last] - start
        if off >= BLOCKED_NS:
            others.append([wall - begin, off])
    return Blocked(_longest(waits, MOST_WAITS), _longest(others, MOST_PAUSES), exposed)


_end = attrgetter("completed_ns")


def series(one: Collective) -> str:
    """Operation and group."""
    return f"{one.op} {one.group.name}"


def in_all(collectives: Sequence[Collective], exposed: Mapping[str, int]) -> dict[str, list[int]]:
    """By operation and group: count, bytes, ns from issue to end, ns exposed; of many those that took longest."""
    sums: dict[str, list[int]] = {}
    for one in collectives:
        name = series(one)
        own = sums.get(name) or sums.setdefault(name, [0, 0, 0, exposed.get(name, 0)])
        own[0] += 1
        own[1] += one.bytes
        own[2] += (one.completed_ns or one.issued_ns) - one.issued_ns
    return dict(sorted(sums.items(), key=lambda item: -item[1][2])[:MOST_SERIES])


def _longest(spans: list[list[int]], most: int) -> list[list[int]]:
    """The longest of them, in their order."""
    if len(spans) <= most:
        return spans
    least = sorted(ns for _, ns in spans)[-most]
    return [span for span in spans if span[1] >= least][:most]


def listed(collectives: Sequence[Collective], step: int, every: int) -> list[Collective]:
    """One in so many of them, to list one by one: by number, so that a rank lists what another with as much room or
    more does, and others in the next step, so that none is never listed where each step has as many."""
    return [one for one in collectives if ((one.p2p_seq if one.is_p2p else one.seq) + step) % every == 0]


def least_every(count: int) -> int:
    """Of so many collectives one in at least how many is listed, a power of two: then all in the coarser list of two
    ranks are in the finer one, too."""
    every = 1
    while count * LEAST_ROW > every * LIMIT:
        every *= 2
    return every


def time_in(phase: str, found: Sequence[Sequence[Any]]) -> int:
    """ns of a step's phases that are of this kind."""
    return sum(ns for name, ns in found if name == phase)
