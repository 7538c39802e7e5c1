"""How kernels are launched: what the calls cost, how long kernels wait to start, how many are queued over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.base.sections import LAUNCHES, QUEUES
from gpuscope.analyzers.profile.recorded_ranks import of_lane, on_stream, streams_of
from gpuscope.schema.profile_sections import LaunchEntry, QueueEntry
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Times, blocks
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
        known = trace["device_events"].known("launch")[rows]
        rows = rows if known.all() else rows[known]
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
    kernels = device.at("kind", rows) != Kind.MEMORY
    rows = rows if kernels.all() else rows[kernels]
    if not len(rows):
        return
    launch = device.at("launch", rows)
    calls = distinct_values(launch)
    call = host["end"][calls] - host["start"][calls]
    of_calls = int(call.sum()), int(call.max()), int((call >= SLOW_CALL).sum())
    median = int(np.median(call, overwrite_input=True))
    del calls, call
    kernel = device.at("end", rows) - device.at("start", rows)
    delay, short = np.empty(len(rows), np.int64), 0
    for block in blocks(0, len(rows)):
        begin, end = host["start"][launch[block]], host["end"][launch[block]]
        delay[block] = np.maximum(device.at("start", rows[block]) - end, 0)
        short += int((kernel[block] < end - begin).sum())
    late = int((delay >= LATE_START).sum())
    del launch
    yield {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "launches": len(rows),
        "call_ns": of_calls[0],
        "call_median_ns": median,
        "call_max_ns": of_calls[1],
        "delay_median_ns": int(np.median(delay, overwrite_input=True)),
        "delay_max_ns": int(delay.max()),
        "kernel_median_ns": int(np.median(kernel, overwrite_input=True)),
        "short_kernels": short,
        "slow_calls": of_calls[2],
        "late_starts": late,
    }


def _queues(trace: Trace, view: LaneView, rows: Times) -> Iterator[QueueEntry]:
    """The queue of each stream of a lane, the one with most operations first."""
    device, host = trace["device_events"], trace["host_events"]
    streams, counts = streams_of(device, rows)
    for place in np.argsort(-counts, kind="stable")[:STREAMS_KEPT].tolist():
        if counts[place] < FEWEST:
            break
        own = on_stream(device, rows, streams[place], len(streams))
        start = device.at("start", own)
        issue = np.empty(len(own), np.int64)
        for block in blocks(0, len(own)):
            issue[block] = np.minimum(host["end"][device.at("launch", own[block])], start[block])
        issue.sort(kind="stable")  # nearly in order
        yield _queue(view, streams[place], issue, start)  # a lane's rows are in order of start


def _queue(view: LaneView, stream: int, issue: Times, start: Times) -> QueueEntry:
    """The queue of operations issued and started at those instants, each sorted."""
    begin, end = view.window
    width = max(-(-(end - begin) // BINS), 1)
    edges = begin + width * np.arange(BINS + 1)
    waited = _time_since(issue, edges) - _time_since(start, edges)
    # Whatever is in the queue longest, it is longest just after something is issued; of one instant, what starts leaves
    # first. It is empty from the start of one until the next is issued, since each is issued before it starts.
    length = np.empty(len(issue), np.int32)
    for block in blocks(0, len(issue)):
        length[block] = np.arange(block.start + 1, block.stop + 1) - places(start, issue[block], "right")
    idle = issue[1:] - start[:-1]
    np.maximum(idle, 0, out=idle)
    first, last = int(issue[0]), int(start[-1])
    return {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "stream": None if stream == NA else stream,
        "operations": len(issue),
        "mean": float((start - issue).sum() / max(last - first, 1)),
        "max": int(length.max()),
        "empty_frac": float(idle.sum() / max(last - first, 1)),
        "start_ns": begin,
        "bin_ns": int(width),
        "mean_by_bin": [round(float(v), 3) for v in np.diff(waited) / width],
        "max_by_bin": _largest_by_bin(issue, start, length, edges),
    }


def _time_since(instants: Times, at: Times) -> Times:
    """Σ max(0, t − x) over the sorted instants x, for each t; these ascend."""
    base = int(instants[0])
    passed = places(instants, at, "right")
    between = [int((instants[low:high] - base).sum()) for low, high in pairwise((0, *passed.tolist()))]
    return np.asarray(passed * (at - base) - np.cumsum(between), np.int64)


def _largest_by_bin(issue: Times, start: Times, length: Array, edges: Times) -> list[int]:
    """The longest that a queue is in each bin, from its lengths after what is issued."""
    issued, started = (np.searchsorted(instants, edges, "right") for instants in (issue, start))
    at_begin = (issued - started)[:-1].tolist()
    bounds = zip(issued[:-1].tolist(), issued[1:].tolist(), strict=True)
    return [
        max(before, int(length[low:high].max(initial=0))) for before, (low, high) in zip(at_begin, bounds, strict=True)
    ]


ANALYZER = FileAnalyzer("launches", run, (DEVICE_EVENTS,), (LAUNCHES, QUEUES), large=True)
