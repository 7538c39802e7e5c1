"""Interval algebra on integer nanoseconds: the one place where spans are merged, cut and measured.

A *set* is a pair of int64 arrays (starts, ends), sorted, disjoint and without empty spans; every
function that returns a set returns it so. Spans are half-open, [start, end). All functions are
vectorised and cost O(n log n) at most.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpuscope import native, when_used
from gpuscope.trace.name_pool import NamePool
from gpuscope.trace.schema import NA, SCHEMAS, Category
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    blocks,
    distinct,
    distinct_values,
    joined,
    looked_up,
    overlapping,
    places,
    rows_of_rank,
)
from gpuscope.when_used import dataclass

# Kernels that run long on few blocks: which are worth a row of `small_grids`.

FEW = 8
"""Blocks: fewer than the multiprocessors of any GPU that trains, so that most of it idles."""
LONG_NS = 200_000
"""Shorter kernels are as long as their launch, whatever their grid."""


def small(blocks: Times, lasts: Times) -> Times:
    """Places of such kernels, of their blocks (0 or less where they are not known) and their duration, ns."""
    return np.flatnonzero((blocks > 0) & (blocks <= FEW) & (lasts >= LONG_NS))


class Spans(NamedTuple):
    """A set of disjoint, sorted, non-empty spans; each array has shape (n,), in ns."""

    start: Times
    end: Times

    @property
    def total(self) -> int:
        """The measure |S|, in ns."""
        return int((self.end - self.start).sum())


EMPTY = Spans(np.empty(0, np.int64), np.empty(0, np.int64))


def union(start: Array, end: Array) -> Spans:
    """Merge any spans, in any order, overlapping or empty, into a set."""
    if _apart(start, end):  # each is a span of its own: no need of a second copy
        return Spans(start, end)
    return Spans(*native.union(start, end)) if len(start) else EMPTY


def union_at(start: Array, end: Array, rows: Times) -> Spans:
    """The union of the spans in some rows, block by block: of many that overlap there are never copies of all."""
    return join(*(union(start[rows[block]], end[rows[block]]) for block in blocks(0, len(rows))))


def _apart(start: Array, end: Array) -> bool:
    """Whether spans are a set already."""
    if not len(start) or not start.dtype == end.dtype == np.int64:
        return False
    return all(
        bool((start[part] < end[part]).all() and (end[part][:-1] < start[part][1:]).all())
        for part in overlapping(len(start))
    )


def join(*sets: Spans) -> Spans:
    """A ∪ B ∪ …"""
    some = [one for one in sets if len(one.start)]
    if len(some) == 1:
        return union(*some[0])
    return union(np.concatenate([s.start for s in some]), np.concatenate([s.end for s in some])) if some else EMPTY


def complement(spans: Spans, start: int, end: int) -> Spans:
    """[start, end) \\ A."""
    inside = clip(spans, start, end)
    if len(inside.start) and inside.start[0] <= start and inside.end[-1] >= end:  # only what lies between them
        gap_start, gap_end = inside.end[:-1], inside.start[1:]
        keep = gap_end > gap_start
        return Spans(gap_start, gap_end) if keep.all() else Spans(gap_start[keep], gap_end[keep])
    gap_start = np.concatenate((np.array([start], np.int64), inside.end))
    gap_end = np.concatenate((inside.start, np.array([end], np.int64)))
    keep = gap_end > gap_start
    return Spans(gap_start, gap_end) if keep.all() else Spans(gap_start[keep], gap_end[keep])


def clip(spans: Spans, start: int, end: int) -> Spans:
    """A ∩ [start, end)."""
    low = int(np.searchsorted(spans.end, start, "right"))
    high = int(np.searchsorted(spans.start, end, "left"))
    if low >= high or start >= end:
        return EMPTY
    first, last = spans.start[low:high], spans.end[low:high]
    if first[0] < start:  # only the outermost can reach beyond
        first = np.maximum(first, start)
    return Spans(first, np.minimum(last, end) if last[-1] > end else last)


def subtract(a: Spans, b: Spans) -> Spans:
    """A \\ B."""
    if not len(a.start) or not len(b.start):
        return a
    low = int(min(a.start[0], b.start[0]))
    high = int(max(a.end[-1], b.end[-1]))
    return intersect(a, complement(b, low, high))


def intersect(a: Spans, b: Spans) -> Spans:
    """A ∩ B."""
    if not len(a.start) or not len(b.start):
        return EMPTY
    return Spans(*native.intersect(*a, *b))


def measure_within(spans: Spans, start: Array, end: Array) -> Times:
    """|A ∩ [start_i, end_i)| for each i, shape (n,): a prefix sum, so windows may overlap."""
    both = measure_before(spans, np.concatenate((np.asarray(end, np.int64), np.asarray(start, np.int64))))
    return both[: len(end)] - both[len(end) :]


def measure_before(spans: Spans, at: Array) -> Times:
    """|A ∩ (−∞, t)| for each instant t, shape (n,)."""
    at = np.asarray(at, np.int64)
    if not len(spans.start):
        return np.zeros(at.shape, np.int64)
    length = spans.end - spans.start
    done = np.cumsum(length, out=length)
    index = places(spans.start, at, "right")
    inside = np.where(index > 0, np.minimum(at, spans.end[index - 1]) - spans.start[index - 1], 0)
    return np.asarray(np.where(index > 1, done[np.maximum(index - 2, 0)], 0) + inside, np.int64)


# The exact breakdown of a window into four parts that sum to it.


@dataclass(frozen=True)
class Breakdown:
    """Parts of one window on one device, in ns (definitions: «Breakdown of a window»)."""

    window: int
    compute: int
    exposed_communication: int
    exposed_memory: int
    idle: int
    communication: int
    overlapped_communication: int

    def check(self) -> None:
        """Raise `ValueError` unless the four parts sum to the window and none is negative."""
        parts = (self.compute, self.exposed_communication, self.exposed_memory, self.idle)
        if sum(parts) != self.window or min(parts) < 0:
            raise ValueError(f"breakdown {parts} does not sum to its window of {self.window} ns")
        if self.communication - self.overlapped_communication != self.exposed_communication:
            raise ValueError("exposed and overlapped communication do not sum to communication")

    @property
    def parts(self) -> dict[str, int]:
        """The four parts by their names in the JSON report, in ns."""
        return {
            "compute": self.compute,
            "exposed_communication": self.exposed_communication,
            "exposed_memory": self.exposed_memory,
            "idle": self.idle,
        }


@dataclass(frozen=True)
class Parts:
    """The four parts of a window as spans; they tile it."""

    compute: Spans
    exposed_communication: Spans
    exposed_memory: Spans
    idle: Spans


def split(compute: Spans, communication: Spans, memory: Spans, window: tuple[int, int]) -> Parts:
    """C, N \\ C, M \\ (C ∪ N) and the rest of the window, as spans."""
    start, end = window
    c, n, m = (clip(spans, start, end) for spans in (compute, communication, memory))
    busy = _joined(c, n)
    return Parts(c, subtract(n, c), subtract(m, busy), complement(_joined(busy, m), start, end))


def _joined(a: Spans, b: Spans) -> Spans:
    """A ∪ B of two sets that `union` made; often one of them is empty."""
    return join(a, b) if len(a.start) and len(b.start) else a if len(a.start) else b


def break_down(
    compute: Spans, communication: Spans, memory: Spans, windows: Sequence[tuple[int, int]]
) -> tuple[Breakdown, ...]:
    """Measure the parts of each window (ns) from the unions of the three kinds of device work."""
    bounds = np.array(windows, np.int64).reshape(-1, 2)
    start, end = bounds[:, 0], bounds[:, 1]
    computing_or_communicating = _joined(compute, communication)
    busy = _joined(computing_or_communicating, memory)
    c = measure_within(compute, start, end)
    n = measure_within(communication, start, end)
    cn = c if computing_or_communicating is compute else measure_within(computing_or_communicating, start, end)
    cnm = cn if busy is computing_or_communicating else measure_within(busy, start, end)
    columns = (end - start, c, cn - c, cnm - cn, end - start - cnm, n, n - (cn - c))
    return tuple(Breakdown(*row) for row in np.stack(columns, axis=1).tolist())


# Ends that can't be right: work on one stream is serial, so nothing runs on after its successor has ended.
#
# Recorders are known to write ends late, by microseconds or by seconds. Programmatic dependent launch lets a kernel
# begin
# before the one before it has ended, which is no such case: that one still ends first.

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


# When host threads captured CUDA graphs: what they launch then is recorded into the graph and runs later.

CAPTURE = "CUDA graph capture"
"""Name of the range that stands for a capture."""
_BEGIN = when_used.pattern(r"(cu(da)?|hip)StreamBeginCapture")
_END = when_used.pattern(r"(cu(da)?|hip)StreamEndCapture")


def with_captures(host: Table, names: NamePool) -> Table:
    """The host events and a range from each call that begins a capture to the one of its thread that ends it."""
    beginning, ending = (
        names.matching(lambda name: _BEGIN.match(name) is not None),
        names.matching(lambda name: _END.match(name) is not None),
    )
    if not beginning.any():  # as in most recordings
        return host
    begins, ends = np.flatnonzero(beginning[host["name"]]), np.flatnonzero(ending[host["name"]])
    tables = [host]
    for thread in distinct_values(host["thread"][begins]).tolist():
        begin = begins[host["thread"][begins] == thread]
        end = np.sort(host["end"][ends[host["thread"][ends] == thread]])
        begin = begin[np.argsort(host["start"][begin], kind="stable")]
        place = np.searchsorted(end, host["start"][begin])
        kept = place < len(end)
        values = {
            "rank": host["rank"][begin[kept]],
            "start": host["start"][begin[kept]],
            "end": end[place[kept]],
            "thread": thread,
            "name": names.code(CAPTURE),
            "category": int(Category.ANNOTATION),
        }
        tables.append(Table.build(SCHEMAS["host_events"], int(kept.sum()), values))
    return joined(tables)


def while_capturing(host: Table, names: NamePool) -> Mask:
    """Which host events began while their thread captured, shape (host events,)."""
    found = np.zeros(len(host), np.bool_)
    captures = names.matching(lambda name: name == CAPTURE)
    if not captures.any():
        return found
    rows = np.flatnonzero(captures[host["name"]])
    for thread in distinct_values(host["thread"][rows]).tolist():
        own = rows[host["thread"][rows] == thread]
        spans = union(host["start"][own], host["end"][own])
        on_thread = np.flatnonzero(host["thread"] == thread)
        start = host["start"][on_thread]
        found[on_thread] = np.searchsorted(spans.start, start, "right") > np.searchsorted(spans.end, start, "right")
    return found
