"""The longest times in which a device had nothing to do: their cause, what lies around them, what the host did."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope.analyzers.base.analyzer import longest
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.idleness.gap_evidence import EndedGaps
from gpuscope.analyzers.device_time.idleness.host_activity import host_activity
from gpuscope.schema.profile_sections import GapEntry
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, measure_within
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

KEPT = 10
"""Gaps per lane."""


def longest_gaps(
    trace: Trace, view: LaneView, causes: Mapping[str, Spans], gaps: EndedGaps | None = None
) -> list[GapEntry]:
    """The longest idle gaps of a lane's window, the longest first. `causes` divide its idle time; without `gaps`
    (no host events) nothing is known of the thread that ends each."""
    idle = view.parts.idle
    picked = longest(idle, KEPT)
    start, end = idle.start[picked], idle.end[picked]
    shares = {cause: measure_within(spans, start, end) for cause, spans in causes.items()}
    before, after = _around(trace, view, start, end)
    entries: list[GapEntry] = []
    for place, gap in enumerate(picked.tolist()):
        low, high = int(start[place]), int(end[place])
        entry: GapEntry = {
            "rank": view.lane.rank,
            "device": None if view.lane.device == NA else view.lane.device,
            "start_ns": low,
            "dur_ns": high - low,
            "step": next((step.step for step in view.steps if step.start <= low < step.end and step.step != NA), None),
            "cause": max(shares, key=lambda cause: int(shares[cause][place])) if shares else None,
            "before": _name(trace, "device_events", int(before[place])),
            "after": _name(trace, "device_events", int(after[place])),
            "host": None,
        }
        if gaps is not None:
            found = host_activity(trace, view, int(gaps.thread[gap]), low, high)
            entry["host"], entry["host_ns"] = found.name or None, found.covered
        entries.append(entry)
    return entries


def _around(trace: Trace, view: LaneView, start: Times, end: Times) -> tuple[Times, Times]:
    """The device events that end last before each gap, and that end it; NA where there is none."""
    device, rows = trace["device_events"], view.rows
    starts, ends = device.at("start", rows), device.at("end", rows)
    begun = np.searchsorted(starts, start, "right")  # and all of these have ended, since the device is idle
    reach = np.maximum.accumulate(ends)
    before = np.full(len(start), NA, np.int64)
    for place, count in enumerate(begun.tolist()):
        if count:
            latest = int(reach[count - 1])
            first = int(np.searchsorted(reach, latest, "left"))
            before[place] = rows[first + int(np.flatnonzero(ends[first:count] == latest)[-1])]
    return before, ending(starts, rows, end)


def ending(begins: Times, rows: Times, end: Times) -> Times:
    """Rows of the device events that begin first from each instant on, or NA; `begins` are the starts of `rows`."""
    position = places(begins, end)
    return np.where(position < len(rows), rows[np.minimum(position, len(rows) - 1)], NA)


def _name(trace: Trace, table: str, row: int) -> str | None:
    return None if row == NA else trace.names[int(trace[table]["name"][row])]
