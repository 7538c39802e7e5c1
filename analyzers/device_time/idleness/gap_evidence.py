"""The idle gaps that show a cause best, and what the host did in each: named by what covers most of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gpuscope.analyzers.base.analyzer import longest
from gpuscope.analyzers.base.evidence import identity
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.idleness.host_activity import MOST, holds_step, host_activity
from gpuscope.schema.document import Evidence
from gpuscope.trace.columns.distinct import among
from gpuscope.trace.columns.table import Array, Mask, Times, rows_of_rank, rows_where
from gpuscope.trace.intervals import EMPTY, Spans, intersect, measure_within
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel

AWAITS = "nothing recorded: it may wait for work from another process"


class EndedGaps(Protocol):
    """Gaps with what ends each and the thread that launches it."""

    @property
    def thread(self) -> Array: ...
    def event(self, gaps: Array | slice) -> Times: ...
    def of(self, spans: Spans) -> Times: ...


def evidence(
    trace: Trace, view: LaneView, spans: Spans, gaps: EndedGaps, blocking: Times | None = None, awaiting: Spans = EMPTY
) -> list[Evidence]:
    """The longest judged spans of a cause, with what the host did there and what ended the gap.

    Where the cause is blocking, the call that returned last before is named: `blocking` are these calls, by end. In the
    spans `awaiting` the thread may wait for another process.
    """
    device, names = trace["device_events"], trace.names
    judged = intersect(spans, view.judged_spans)
    spans = judged if len(judged.start) else spans
    picked = longest(spans)
    shown = Spans(spans.start[picked], spans.end[picked])
    own = gaps.of(shown)
    found: list[Evidence] = []
    for gap, event, start, end in zip(*(column.tolist() for column in (own, gaps.event(own), *shown)), strict=True):
        ended_by = names[int(device["name"][event])] if event != NA else "the end of the trace"
        one: Evidence = {
            "rank": view.lane.rank,
            "start_ns": start,
            "dur_ns": end - start,
            "name": ended_by,
            "note": "",
        }
        if event != NA:
            one["event"] = identity(trace, "device_events", event)
        what = _host_side(trace, view, int(gaps.thread[gap]), one, blocking)
        if int(measure_within(awaiting, np.array([start]), np.array([end]))[0]) >= MOST * (end - start):
            one["awaits"] = True
            what = AWAITS
        one["note"] = f"{what}; device idle until {short_kernel(ended_by)}"
        found.append(one)
    return found


def _host_side(trace: Trace, view: LaneView, thread: int, shown: Evidence, blocking: Times | None) -> str:
    """Name in `shown` the host event behind it, where there is one; what that did."""
    host, names = trace["host_events"], trace.names
    start, end = shown["start_ns"], shown["start_ns"] + shown["dur_ns"]
    if blocking is not None and len(own := blocking[host["start"][blocking] < end]):
        call = int(own[-1])
        around = _around(trace, view.lane.rank, thread, call)
        shown["name"], shown["event"] = names[int(host["name"][call])], identity(trace, "host_events", call)
        return "the queue was empty when it returned" + (
            f" in {names[int(host['name'][around])]}" if around != NA else ""
        )
    found = host_activity(trace, view, thread, start, end)
    shown["name"] = found.name or shown["name"]
    if found.between:
        shown["between"] = True
        shown.pop("event", None)
    if found.sampled:
        shown["sampled"] = True
    if not found.covered:
        return "nothing recorded on the launching thread (Python between operators)"
    shown["event"] = identity(trace, "host_events", found.row)
    shown["covered_frac"] = found.covered / (end - start)
    if holds_step(trace, view, found.row):
        shown["holds_step"] = True
    share = units.share(shown["covered_frac"])
    return f"samples find the thread in it for {share} of the gap" if found.sampled else f"covers {share} of the gap"


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
        {
            "rank": view.lane.rank,
            "start_ns": int(idle.start[i]),
            "dur_ns": int(idle.end[i] - idle.start[i]),
            "name": "idle",
            "note": "no host events recorded for this rank",
        }
        for i in longest(idle).tolist()
    ]
