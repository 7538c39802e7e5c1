"""Ends that can't be right: work on one stream is serial, so nothing runs on after its successor has ended.

Recorders are known to write ends late, by microseconds or by seconds. Programmatic dependent launch lets a kernel begin
before the one before it has ended, which is no such case: that one still ends first.
"""

from __future__ import annotations

import heapq

import numpy as np

from gpuscope import when_used
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Array, Mask, Table, Times, looked_up, rows_of_rank
from gpuscope.trace.schema import NA, Category
from gpuscope.when_used import dataclass

TOLERANCE_NS = 2_000
"""ns by which an event may outlast its successor: what the clocks of a device's units differ by."""
COVERED = 3
"""Successors on a hardware queue that an event must outlast: several streams share one queue there."""
TIMES_MEDIAN = 10
"""… and how many times the median of its name it must last."""
GRAPH_LEVEL = "CUDA graph"
"""What rows of a whole graph are called, but for the graph's number."""
_QUEUES = when_used.pattern(r"hip[A-Z]|roc[a-z]*_|(ze|ur|pi)[A-Z]|sycl|launchKernel$")
"""Runtime calls of ROCm, of Intel's Level Zero and SYCL, of MTIA."""
_QUEUE_DEVICES = when_used.pattern(r"\b(AMD|Instinct|Radeon|MI\d|gfx\d|Intel|ARTEMIS|MTIA|Gaudi)")


@dataclass(frozen=True)
class Overruns:
    """Device events whose recorded end can't be right."""

    rows: Times
    """In device_events, ascending."""
    ends: Times
    """Where they end: where their successor begins, ns; shape as `rows`."""


def overruns(device: Table, host: Table, ranks: Table, names: NamePool) -> Overruns:
    """The events of a trace, ordered by rank and start, that end more than the tolerance after their successor on the
    same stream has ended: read from the last one back, each against its successor as clipped."""
    eligible = device.known("stream") & (device["end"] > device["start"])
    graph_level = names.matching(lambda name: name == GRAPH_LEVEL or name.startswith(f"{GRAPH_LEVEL} "))
    if bool(graph_level.any()):
        eligible &= ~looked_up(graph_level, device["name"])
    migrates = names.matching(lambda name: name.startswith("migration"))
    if bool(migrates.any()):  # the driver's: its stream is none that work waits on
        kinds = device["copy_kind"]
        eligible &= ~((kinds >= 0) & looked_up(migrates, np.maximum(kinds, 0)))
    found_rows: list[Times] = []
    found_ends: list[Times] = []
    for rank in distinct_values(device["rank"]).tolist():
        low, high = rows_of_rank(device, rank)
        on_queue = None
        for rows in _streams(device, np.flatnonzero(eligible[low:high]) + low):
            start, end = device["start"][rows], device["end"][rows]
            if not bool((end[:-1] > end[1:] + TOLERANCE_NS).any()):
                continue
            if on_queue is None:
                on_queue = _streams_are_queues(host, ranks, names, rank)
            order = np.lexsort((end, start))
            rows, start, end = rows[order], start[order], end[order]
            outlasts = _RareLong(device, low, high, rows) if on_queue else None
            clipped = _clipped(start, end, _next_of_others(device, rows), outlasts)
            places = np.flatnonzero(clipped != end)
            found_rows.append(rows[places])
            found_ends.append(clipped[places])
    if not found_rows:
        return Overruns(np.empty(0, np.int64), np.empty(0, np.int64))
    rows, ends = np.concatenate(found_rows), np.concatenate(found_ends)
    order = np.argsort(rows)
    return Overruns(rows[order], ends[order])


def _streams(device: Table, rows: Times) -> list[Times]:
    """The rows of each stream, in order of start: streams are numbered within a context of a device."""
    if not len(rows):
        return []
    _, which = distinct(device.at("device", rows))
    for column in ("stream", "context"):
        values = device.at(column, rows)
        numbers, place = distinct(values)
        if column == "context" and int((numbers != NA).sum()) < 2:
            continue  # where it was read of some rows alone, the others are of the same
        _, which = distinct(which * len(numbers) + place)
    count = int(which.max()) + 1
    if count == 1:
        return [rows]
    order = np.argsort(which, kind="stable")
    return np.split(rows[order], np.cumsum(np.bincount(which))[:-1])


def _next_of_others(device: Table, rows: Times) -> Times:
    """For each row of a stream the place of its successor, shape (n,): nodes of one launch of a graph are none of each
    other; n where there is none."""
    count = len(rows)
    following = np.arange(1, count + 1)
    graph = device.at("graph", rows)
    if not bool((graph != NA).any()):
        return following
    launch = device.at("correlation", rows)
    alike = (graph[1:] != NA) & (graph[1:] == graph[:-1]) & (launch[1:] == launch[:-1])
    last = np.flatnonzero(np.concatenate((~alike, [True])))  # of each run of one launch
    return np.asarray(last[np.searchsorted(last, np.arange(count))] + 1)


class _RareLong:
    """Which events of a hardware queue are beyond doubt: they last many times the median of their name."""

    def __init__(self, device: Table, low: int, high: int, rows: Times) -> None:
        """`rows` are those of the queue, low to high those of its rank."""
        self._name = device["name"][low:high]
        self._lasts = device["end"][low:high] - device["start"][low:high]
        self._own = device["name"][rows], device["end"][rows] - device["start"][rows]
        self._medians: dict[int, float] = {}

    def __call__(self, place: int) -> bool:
        code = int(self._own[0][place])
        if code not in self._medians:
            self._medians[code] = float(np.median(self._lasts[self._name == code]))
        return bool(self._own[1][place] >= TIMES_MEDIAN * self._medians[code])


def _clipped(start: Times, end: Times, following: Times, rare_long: _RareLong | None) -> Times:
    """The ends of a stream's events, in order of start, as they can be; shape (n,)."""
    count = len(start)
    ends = end.copy()
    padded = np.concatenate((ends, [np.iinfo(np.int64).max - TOLERANCE_NS]))
    open_places = [-int(place) for place in np.flatnonzero(ends > padded[following] + TOLERANCE_NS)[::-1]]
    before = -1
    while open_places:  # the last one first
        place = -heapq.heappop(open_places)
        successor = int(following[place])
        if place == before or successor >= count or ends[place] <= ends[successor] + TOLERANCE_NS:
            continue
        before = place
        if rare_long is not None:
            covered = ends[successor : successor + COVERED]
            if len(covered) < COVERED or ends[place] <= covered.max() + TOLERANCE_NS or not rare_long(place):
                continue
        # A row that the file holds twice begins with its successor: it ends with it, too.
        ends[place] = start[successor] if start[successor] > start[place] else ends[successor]
        previous = place - 1
        while previous >= 0 and following[previous] == place:
            if ends[previous] > ends[place] + TOLERANCE_NS:
                heapq.heappush(open_places, -previous)
            previous -= 1
    return ends


def _streams_are_queues(host: Table, ranks: Table, names: NamePool, rank: int) -> bool:
    """Whether the recorder of a rank writes the hardware's queue as its stream: all but those of CUDA and Ascend do."""
    calls = np.arange(*rows_of_rank(host, rank))
    used: Mask = names.matching(lambda name: _QUEUES.match(name) is not None)
    if bool(used.any()) and len(calls):
        runtime = host["category"][calls] == Category.RUNTIME
        if bool((runtime & looked_up(used, host["name"][calls])).any()):
            return True
    models: Array = ranks["device_name"][ranks["rank"] == rank]
    return any(_QUEUE_DEVICES.search(names[code]) is not None for code in models.tolist() if code >= 0)
