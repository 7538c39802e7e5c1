"""The idle gaps that show a cause best, and what the host did in each: named by what covers most of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpuscope.analyzers.base.analyzer import longest
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.schema.document import Evidence
from gpuscope.trace.columns.distinct import among
from gpuscope.trace.columns.table import Array, Mask, Times, rows_of_rank, rows_where
from gpuscope.trace.intervals import Spans, clip
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel

MOST = 0.5
"""Share of a gap that a host event must cover to be what the gap is about."""


class EndedGaps(Protocol):
    """Gaps with what ends each and the thread that launches it."""

    @property
    def thread(self) -> Array: ...
    def event(self, gaps: Array | slice) -> Times: ...
    def of(self, spans: Spans) -> Times: ...


def evidence(
    trace: Trace, view: LaneView, spans: Spans, gaps: EndedGaps, blocking: Times | None = None
) -> list[Evidence]:
    """The longest judged spans of a cause, with what the host did there and what ended the gap.

    Where the cause is blocking, the call that returned last before is named: `blocking` are these calls, by end.
    """
    device, names = trace["device_events"], trace.names
    judged = clip(spans, *view.judged)
    spans = judged if len(judged.start) else spans
    picked = longest(spans)
    shown = Spans(spans.start[picked], spans.end[picked])
    own = gaps.of(shown)
    found: list[Evidence] = []
    for gap, event, start, end in zip(*(column.tolist() for column in (own, gaps.event(own), *shown)), strict=True):
        ended_by = names[int(device["name"][event])] if event != NA else "the end of the trace"
        name, what, covered = _host_side(trace, view.lane.rank, int(gaps.thread[gap]), start, end, blocking)
        one: Evidence = {
            "rank": view.lane.rank, "start_ns": start, "dur_ns": end - start, "name": name or ended_by,
            "note": f"{what}; device idle until {short_kernel(ended_by)}",
        }  # fmt: skip
        if covered is not None:
            one["covered_frac"] = covered
        found.append(one)
    return found


def _host_side(
    trace: Trace, rank: int, thread: int, start: int, end: int, blocking: Times | None
) -> tuple[str, str, float | None]:
    """Name of the host event behind [start, end) of a gap, what it did, and the share of the gap that it covers."""
    host, names = trace["host_events"], trace.names
    if blocking is not None and len(own := blocking[host["start"][blocking] < end]):
        call = int(own[-1])
        around = _around(trace, rank, thread, call)
        within = f" in {names[int(host['name'][around])]}" if around != NA else ""
        return names[int(host["name"][call])], f"the queue was empty when it returned{within}", None
    row, covered = host_activity(trace, rank, thread, start, end)
    if row == NA:
        return "", "nothing recorded on the launching thread (Python between operators)", None
    share = covered / (end - start)
    return names[int(host["name"][row])], f"covers {units.share(share)} of the gap", share


def host_activity(trace: Trace, rank: int, thread: int, start: int, end: int) -> tuple[int, int]:
    """The innermost host event that covers most of [start, end) on a thread, else the one that covers most there
    is, and the ns that it covers; (NA, 0) if none."""
    host = trace["host_events"]
    low, high = rows_of_rank(host, rank)
    high = low + int(np.searchsorted(host["start"][low:high], end, "left"))
    steps = trace.names.matching(lambda name: name.startswith("ProfilerStep"))
    rows = rows_where(
        low, high,
        lambda part: (host["thread"][part] == thread) & (host["end"][part] > start) & ~steps[host["name"][part]],
    )  # fmt: skip
    cover = np.minimum(host["end"][rows], end) - np.maximum(host["start"][rows], start)
    if not len(rows) or int(cover.max()) <= 0:
        return NA, 0
    best = np.flatnonzero(cover >= MOST * (end - start))
    if len(best):
        place = int(best[np.argmin(host["end"][rows[best]] - host["start"][rows[best]])])
    else:
        place = int(np.argmax(cover))
    return int(rows[place]), int(cover[place])


def _around(trace: Trace, rank: int, thread: int, call: int) -> int:
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
        {"rank": view.lane.rank, "start_ns": int(idle.start[i]), "dur_ns": int(idle.end[i] - idle.start[i]),
         "name": "idle", "note": "no host events recorded for this rank"}
        for i in longest(idle).tolist()
    ]  # fmt: skip
