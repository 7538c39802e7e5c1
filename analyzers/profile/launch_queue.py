"""How kernels are launched: what the calls cost, how long kernels wait to start, how many are queued over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import DEVICE_EVENTS
from gpuscope.analyzers.frame.sections import LAUNCHES, QUEUES
from gpuscope.analyzers.profile.recorded_part import of_lane
from gpuscope.report.schema.profile_sections import LaunchEntry, QueueEntry
from gpuscope.trace.columns.distinct import counted, distinct_values
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace

SLOW_CALL = 50_000
"""ns from which a launching call counts as slow, and below, LATE_START a kernel as late: HTA's defaults."""
LATE_START = 100_000
BINS = 60
"""Parts of the recording in which a queue's length is given."""
STREAMS_KEPT = 8
"""Streams of a device whose queues are given: those with most operations."""
FEWEST = 10
"""Operations from which a stream has a queue worth showing."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The sections `launches` and `queues` of a file's lanes."""
    result = Result(ANALYZER.name)
    launches: list[LaunchEntry] = []
    queues: list[QueueEntry] = []
    for view in lanes:
        rows = of_lane(trace, view)
        rows = rows[trace["device_events"].at("launch", rows) != NA]
        if view.lane.device != NA and len(rows):
            launches += _launches(trace, view, rows)
            queues += _queues(trace, view, rows)
    if launches:
        result.sections[LAUNCHES] = launches
    if queues:
        result.sections[QUEUES] = queues
    return result


def _launches(trace: Trace, view: LaneView, rows: Times) -> Iterator[LaunchEntry]:
    device, host = trace["device_events"], trace["host_events"]
    rows = rows[device["kind"][rows] != Kind.MEMORY]
    if not len(rows):
        return
    launch = device.at("launch", rows)
    calls = distinct_values(launch)
    call = host["end"][calls] - host["start"][calls]
    kernel = device["end"][rows] - device["start"][rows]
    delay = np.maximum(device["start"][rows] - host["end"][launch], 0)
    yield {
        "rank": view.lane.rank, "device": view.lane.device, "launches": len(rows), "call_ns": int(call.sum()),
        "call_median_ns": int(np.median(call)), "call_max_ns": int(call.max()),
        "delay_median_ns": int(np.median(delay)), "delay_max_ns": int(delay.max()),
        "kernel_median_ns": int(np.median(kernel)),
        "short_kernels": int((kernel < host["end"][launch] - host["start"][launch]).sum()),
        "slow_calls": int((call >= SLOW_CALL).sum()), "late_starts": int((delay >= LATE_START).sum()),
    }  # fmt: skip


def _queues(trace: Trace, view: LaneView, rows: Times) -> Iterator[QueueEntry]:
    """The queue of each stream of a lane, the one with most operations first."""
    device, host = trace["device_events"], trace["host_events"]
    stream = device.at("stream", rows)
    streams, counts = counted(stream)
    for place in np.argsort(-counts, kind="stable")[:STREAMS_KEPT].tolist():
        if counts[place] < FEWEST:
            break
        own = rows[stream == streams[place]]
        issue = np.minimum(host["end"][device.at("launch", own)], device["start"][own])
        issue, start = (np.sort(times, kind="stable") for times in (issue, device["start"][own]))  # nearly in order
        yield _queue(view, int(streams[place]), issue, start)


def _queue(view: LaneView, stream: int, issue: Times, start: Times) -> QueueEntry:
    """The queue of operations issued and started at those instants, each sorted."""
    begin, end = view.window
    width = max(-(-(end - begin) // BINS), 1)
    edges = begin + width * np.arange(BINS + 1)
    waited = _time_since(issue, edges) - _time_since(start, edges)
    at = np.concatenate((issue, start))
    order = np.lexsort((np.repeat((1, -1), len(issue)), at))  # of one instant, what starts leaves first
    at, length = at[order], np.cumsum(np.repeat((1, -1), len(issue))[order])
    spent = np.diff(at)
    first, last = int(issue[0]), int(start[-1])
    return {
        "rank": view.lane.rank, "device": view.lane.device, "stream": None if stream == NA else stream,
        "operations": len(issue), "mean": float((start - issue).sum() / max(last - first, 1)),
        "max": int(length.max()),
        "empty_frac": float(spent[length[:-1] == 0].sum() / max(last - first, 1)),
        "start_ns": begin, "bin_ns": int(width), "mean_by_bin": [round(float(v), 3) for v in np.diff(waited) / width],
        "max_by_bin": _largest_by_bin(at, length, edges),
    }  # fmt: skip


def _time_since(instants: Times, at: Times) -> Times:
    """Σ max(0, t − x) over the sorted instants x, for each t."""
    base = int(instants[0])
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(instants - base)))
    passed = places(instants, at, "right")
    return np.asarray(passed * (at - base) - sums[passed], np.int64)


def _largest_by_bin(at: Times, length: Times, edges: Times) -> list[int]:
    """The longest that a queue is in each bin, from its lengths after the instants `at`."""
    after = np.searchsorted(at, edges, "right")
    found: list[int] = []
    for low, high in zip(after[:-1].tolist(), after[1:].tolist(), strict=True):
        at_begin = int(length[low - 1]) if low else 0
        found.append(max(at_begin, int(length[low:high].max(initial=0))))
    return found


ANALYZER = FileAnalyzer("launches", run, (DEVICE_EVENTS,), (LAUNCHES, QUEUES))
