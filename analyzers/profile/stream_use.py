"""Each stream of a device: how busy it is, and whether it idles for want of work or waits for something."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, entries_of_devices
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.base.sections import STREAMS
from gpuscope.analyzers.profile.recorded_ranks import of_lane, on_stream, streams_of
from gpuscope.schema.profile_sections import StreamEntry
from gpuscope.trace.columns.table import Times, blocks
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace


def _of_lane(trace: Trace, view: LaneView) -> list[StreamEntry]:
    device = trace["device_events"]
    rows = of_lane(trace, view)
    streams, _ = streams_of(device, rows)
    entries = [_of_stream(trace, view, on_stream(device, rows, stream, len(streams))) for stream in streams]
    return sorted(entries, key=lambda entry: -entry["busy_ns"])


def _of_stream(trace: Trace, view: LaneView, rows: Times) -> StreamEntry:
    """One stream's operations, by start."""
    device, host = trace["device_events"], trace["host_events"]
    idle = waited = queueing = longest = 0
    spent, reach = dict.fromkeys(Kind, 0), int(device["start"][rows[0]])
    for block in blocks(0, len(rows)):
        own = rows[block]
        start, end, launch = device["start"][own], device["end"][own], device.at("launch", own)
        reached = np.maximum.accumulate(np.maximum(end, reach))
        before = np.concatenate((np.array([reach], np.int64), reached[:-1]))
        gap = np.maximum(start - before, 0)
        known = launch != NA
        issue = np.where(known, host["end"][np.where(known, launch, 0)] if len(host) else NA, start)
        queued = np.clip(start - np.maximum(np.minimum(issue, start), before), 0, None)
        queued = np.where(known, np.minimum(queued, gap), 0)
        for one in Kind:
            spent[one] += int((end - start).sum(where=device["kind"][own] == one))
        idle += int(gap.sum())
        waited += int(gap.sum(where=known))
        queueing += int(queued.sum())
        longest = max(longest, int(gap.max()))
        reach = int(reached[-1])
    span = reach - int(device["start"][rows[0]])
    stream = int(device.at("stream", rows[:1])[0])
    return {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "stream": None if stream == NA else stream,
        "operations": len(rows),
        "span_ns": span,
        "busy_ns": span - idle,
        "idle_ns": idle,
        "host_wait_ns": waited - queueing,
        "queued_wait_ns": queueing,
        "longest_idle_ns": longest,
        "compute_ns": spent[Kind.COMPUTE],
        "communication_ns": spent[Kind.COMMUNICATION],
        "memory_ns": spent[Kind.MEMORY],
    }


ANALYZER = FileAnalyzer("stream_use", entries_of_devices("stream_use", STREAMS, _of_lane), (DEVICE_EVENTS,), (STREAMS,))
