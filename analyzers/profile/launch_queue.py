"""How kernels are launched: what the calls cost, how long kernels wait to start, how many are queued over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, FileAnalyzer, Result, entries_of_devices
from gpuscope.analyzers.base.lanes import API_CALLS, COPIES, LAUNCHES, QUEUES, STREAMS, LaneView
from gpuscope.analyzers.host_time.blocking_sites import plain
from gpuscope.analyzers.profile.recorded_ranks import RecordedRank, of_lane, on_stream, recorded_ranks, streams_of
from gpuscope.schema.nccl_sections import ApiCallEntry, CopyEntry, LaunchEntry, QueueEntry, StreamEntry
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Times, blocks, distinct_pairs, distinct_values, grouped, grouped_parts, places
from gpuscope.trace.trace import Trace

# Each stream of a device: how busy it is, and whether it idles for want of work or waits for something.


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


STREAM_USE_ANALYZER = FileAnalyzer(
    "stream_use", entries_of_devices("stream_use", STREAMS, _of_lane), (DEVICE_EVENTS,), (STREAMS,)
)


# Calls of the CUDA, HIP or CANN runtime by function: count, total, median, largest.


def runtime_calls_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The section `api_calls` of a file's ranks, the function with most time first."""
    result = Result(RUNTIME_CALLS_ANALYZER.name)
    entries = [entry for recorded in recorded_ranks(trace, lanes) for entry in _of_rank(trace, recorded)]
    if entries:
        result.sections[API_CALLS] = entries
    return result


def _of_rank(trace: Trace, recorded: RecordedRank) -> list[ApiCallEntry]:
    host = trace["host_events"]

    def calls() -> Iterator[Times]:
        for rows in blocks(*recorded.bounds):
            own = (host["category"][rows] == Category.RUNTIME) & recorded.began(host["start"][rows])
            yield np.flatnonzero(own) + rows.start

    called = np.zeros(len(trace.names), np.bool_)
    for rows in calls():
        called[host["name"][rows]] = True
    codes = np.flatnonzero(called)
    if not len(codes):
        return []
    # nsys records versions of one function under several names.
    names, of_name = np.unique([plain(trace.names[code]) for code in codes.tolist()], return_inverse=True)
    of_code = np.zeros(len(trace.names), np.int64)
    of_code[codes] = of_name
    stats = grouped_parts(
        lambda: ((host["end"][rows] - host["start"][rows], of_code[host["name"][rows]]) for rows in calls()), len(names)
    )
    everything = int(stats.total.sum())
    return [
        {
            "rank": recorded.rank,
            "name": str(names[index]),
            "count": int(stats.number[index]),
            "dur_ns": int(stats.total[index]),
            "mean_ns": int(stats.total[index] // stats.number[index]),
            "median_ns": int(stats.median[index]),
            "min_ns": int(stats.least[index]),
            "max_ns": int(stats.largest[index]),
            "share_frac": int(stats.total[index]) / everything if everything else 0.0,
        }
        for index in np.argsort(-stats.total, kind="stable").tolist()
    ]


RUNTIME_CALLS_ANALYZER = FileAnalyzer("api_calls", runtime_calls_run, (DEVICE_EVENTS,), (API_CALLS,))


# Copies, memsets and migrations by kind and size: how many, how long, at what bandwidth.

BOUNDS = (0, 1 << 12, 1 << 16, 1 << 20, 1 << 24)
"""Sizes from which a class of copies begins, bytes: a page, what is cheap to stage, what fills a link, and large."""
_UNKNOWN = -1


def _copies_by_size_of_lane(trace: Trace, view: LaneView) -> list[CopyEntry]:
    device = trace["device_events"]
    rows = of_lane(trace, view)
    rows = rows[device["kind"][rows] == Kind.MEMORY]
    if not len(rows):
        return []
    size = device["bytes"][rows]
    kind = np.where(device["copy_kind"][rows] == NO_NAME, device["name"][rows], device["copy_kind"][rows])
    size_class = np.where(size == NA, _UNKNOWN, np.searchsorted(BOUNDS, size, "right") - 1)
    groups, of_group = distinct_pairs(kind, size_class)
    stats = grouped(device["end"][rows] - device["start"][rows], of_group, len(groups))
    moved = np.zeros(len(groups), np.int64)
    np.add.at(moved, of_group, np.maximum(size, 0))
    entries: list[CopyEntry] = []
    for index in np.argsort(-stats.total, kind="stable").tolist():
        name, place = groups[index]
        known, spent, carried = place != _UNKNOWN, int(stats.total[index]), int(moved[index])
        entries.append(
            {
                "rank": view.lane.rank,
                "device": view.lane.device,
                "kind": trace.names[name],
                "least_bytes": BOUNDS[place] if known else None,
                "below_bytes": BOUNDS[place + 1] if known and place + 1 < len(BOUNDS) else None,
                "count": int(stats.number[index]),
                "bytes": carried if known else None,
                "dur_ns": spent,
                "median_ns": int(stats.median[index]),
                "max_ns": int(stats.largest[index]),
                "bandwidth_gbps": carried / spent if known and spent else None,
            }
        )
    return entries


COPIES_BY_SIZE_ANALYZER = FileAnalyzer(
    "copies", entries_of_devices("copies", COPIES, _copies_by_size_of_lane), (DEVICE_EVENTS,), (COPIES,)
)


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
    result = Result(LAUNCH_QUEUE_ANALYZER.name)
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


LAUNCH_QUEUE_ANALYZER = FileAnalyzer("launches", run, (DEVICE_EVENTS,), (LAUNCHES, QUEUES), large=True)


ANALYZERS = (COPIES_BY_SIZE_ANALYZER, LAUNCH_QUEUE_ANALYZER, RUNTIME_CALLS_ANALYZER, STREAM_USE_ANALYZER)
