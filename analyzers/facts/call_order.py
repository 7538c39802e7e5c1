"""Numbers for operations that carry none: from their order, over captures that begin and end at different times.

All ranks of a group carry out one sequence of operations. A rank's capture holds a stretch of it; how far two
stretches are shifted against each other follows from where operations and sizes agree throughout. Training
repeats itself, so several shifts can agree: then the one is right at which the operations also end together, up to a
constant difference between clocks. If none stands out, the operations stay unnumbered.
"""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

MIN_OVERLAP = 3
"""Fewer common operations than this can agree by accident."""
_GOLDEN = (5**0.5 - 1) / 2
CLEARER = 2.0
"""A shift is right if the ends scatter so many times less than at any other."""
_RESOLUTION_NS = 1_000
"""Kineto's older traces have times in µs: scatter below that is none."""


def numbers_by_order(trace: Trace, rows: Times, group: Times, token: Times) -> Times:
    """Per row of `rows` (of `collectives`), a number equal for equal operations of its group; NA if unknown.

    `token` says what an operation is (operation and size); a group's ranks are compared with the longest.
    """
    table = trace["collectives"]
    number = np.full(len(rows), NA, np.int64)
    if not len(rows):
        return number
    rank = table["rank"][rows]
    order = np.lexsort((table["start"][rows], rank, group))
    change = (np.diff(group[order]) != 0) | (np.diff(rank[order]) != 0)
    bounds = np.concatenate(([0], np.flatnonzero(change) + 1, [len(rows)]))
    clock, ends = clock_of(trace), table["end"][rows]
    stretches: dict[int, list[Times]] = {}
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        stretches.setdefault(int(group[order[low]]), []).append(order[low:high])
    for own in stretches.values():
        longest = max(own, key=len)
        for stretch in own:
            if stretch is longest:
                number[stretch] = np.arange(len(stretch))
                continue
            same_clock = clock[int(rank[stretch[0]])] == clock[int(rank[longest[0]])]
            shift = _shift(token[stretch], token[longest], ends[stretch], ends[longest], same_clock)
            if shift is not None:
                number[stretch] = np.arange(len(stretch)) + shift
    return number


def _shift(own: Times, longest: Times, ends: Times, lead: Times, one_clock: bool) -> int | None:
    """Where in `longest` the stretch `own` begins (negative: before it); None where that is ambiguous."""
    whole = len(own) == len(longest) and bool(np.array_equal(own, longest))
    if whole and _scatter(ends, lead, 0)[0] <= CLEARER * _RESOLUTION_NS:
        return 0  # none can be clearer
    shifts = _agreeing(longest, own)
    if not shifts:
        return None
    scatter, apart = np.array([_scatter(ends, lead, shift) for shift in shifts]).T
    if whole and scatter[shifts.index(0)] <= CLEARER * scatter.min():
        return 0
    for judged in (scatter, apart) if one_clock else (scatter,):
        best = np.argsort(judged, kind="stable")
        if len(shifts) == 1 or judged[best[0]] * CLEARER <= judged[best[1]]:
            return int(shifts[int(best[0])])
    return None


def _agreeing(lead: Times, own: Times) -> list[int]:
    """Shifts at which all operations that both hold agree, and these are at least half of the shorter stretch.

    Candidates come from a correlation of scattered phases, one per kind of operation, O(n log n).
    """
    _, codes = np.unique(np.concatenate((lead, own)), return_inverse=True)
    scattered = np.arange(1, int(codes.max()) + 2) ** 2 * _GOLDEN % 1  # importing `numpy.random` takes 10 ms
    phase = np.exp(2j * np.pi * scattered)[codes]
    size = 1 << (len(lead) + len(own)).bit_length()
    spectrum = np.fft.fft(phase[: len(lead)], size) * np.conj(np.fft.fft(phase[len(lead) :], size))
    matching = np.fft.ifft(spectrum).real
    shifts = np.arange(-len(own) + 1, len(lead))
    common = np.minimum(len(lead), shifts + len(own)) - np.maximum(shifts, 0)
    least = max(MIN_OVERLAP, (min(len(lead), len(own)) + 1) // 2)
    if len(lead) == len(own):  # nothing is missing at either end
        least = min(least, len(own))
    likely = shifts[(common >= least) & (matching[shifts] > common - 0.5)]
    return [shift for shift in likely.tolist() if _same(lead, own, shift)]


def _same(lead: Times, own: Times, shift: int) -> bool:
    low, high = max(shift, 0), min(len(lead), shift + len(own))
    return bool(np.array_equal(lead[low:high], own[low - shift : high - shift]))


def _scatter(ends: Times, lead: Times, shift: int) -> tuple[int, int]:
    """How far the differences of the ends scatter about their median, and that median, both absolute, ns."""
    low, high = max(shift, 0), min(len(lead), shift + len(ends))
    apart = ends[low - shift : high - shift] - lead[low:high]
    middle = _middle(apart)
    return max(_middle(np.abs(apart - middle)), _RESOLUTION_NS), max(abs(middle), _RESOLUTION_NS)


def _middle(values: Times) -> int:
    """The (upper) median; numpy's own costs more than the rest of a comparison."""
    return int(np.partition(values, len(values) // 2)[len(values) // 2])


def clock_of(trace: Trace) -> dict[int, int]:
    """Per rank, the lowest rank that reads the same clock. Where the host is not recorded, only the ranks of one
    file are known to share one."""
    table = trace["ranks"]
    order = np.argsort(table["rank"], kind="stable")
    lead: dict[tuple[str, int], int] = {}
    found: dict[int, int] = {}
    columns = (table[name][order].tolist() for name in ("rank", "host", "source"))
    for rank, host, source in zip(*columns, strict=True):
        found.setdefault(rank, lead.setdefault(("host", host) if host != NO_NAME else ("file", source), rank))
    return found
