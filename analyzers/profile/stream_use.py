"""Each stream of a device: how busy it is, and whether it idles for want of work or waits for something."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import DEVICE_EVENTS
from gpuscope.analyzers.frame.sections import STREAMS
from gpuscope.analyzers.profile.recorded_part import of_lane
from gpuscope.report.schema.profile_sections import StreamEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `streams` of a file's lanes, the busiest first."""
    result = Result(ANALYZER.name)
    entries = [entry for view in lanes if view.lane.device != NA for entry in _of_lane(trace, view)]
    if entries:
        result.sections[STREAMS] = entries
    return result


def _of_lane(trace: Trace, view: LaneView) -> list[StreamEntry]:
    device = trace["device_events"]
    rows = of_lane(trace, view)
    rows = rows[np.argsort(device.at("stream", rows), kind="stable")]
    bounds = np.flatnonzero(np.diff(device.at("stream", rows))) + 1
    entries = [_of_stream(trace, view, own) for own in np.split(rows, bounds)] if len(rows) else []
    return sorted(entries, key=lambda entry: -entry["busy_ns"])


def _of_stream(trace: Trace, view: LaneView, rows: Times) -> StreamEntry:
    """One stream's operations, by start."""
    device, host = trace["device_events"], trace["host_events"]
    start, end, launch = device["start"][rows], device["end"][rows], device.at("launch", rows)
    reach = np.maximum.accumulate(end)
    gap = np.maximum(start[1:] - reach[:-1], 0)
    known = launch != NA
    issue = np.where(known, host["end"][np.where(known, launch, 0)] if len(host) else NA, start)
    queued = np.clip(start - np.maximum(np.minimum(issue, start), np.append(start[:1], reach[:-1])), 0, None)[1:]
    queued = np.where(known[1:], np.minimum(queued, gap), 0)
    spent, kind = end - start, device["kind"][rows]
    compute, communication, memory = (int(spent[kind == one].sum()) for one in Kind)
    span, idle = int(reach[-1] - start[0]), int(gap.sum())
    stream = int(device["stream"][rows[0]])
    return {
        "rank": view.lane.rank, "device": view.lane.device, "stream": None if stream == NA else stream,
        "operations": len(rows), "span_ns": span, "busy_ns": span - idle, "idle_ns": idle,
        "host_wait_ns": int(gap[known[1:]].sum()) - int(queued.sum()), "queued_wait_ns": int(queued.sum()),
        "longest_idle_ns": int(gap.max(initial=0)), "compute_ns": compute, "communication_ns": communication,
        "memory_ns": memory,
    }  # fmt: skip


ANALYZER = FileAnalyzer("stream_use", run, (DEVICE_EVENTS,), (STREAMS,))
