"""Events as rows of a timeline: streams, ranges, operators and calls of threads by depth, steps; on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from gpuscope.analyzers.facts.matching import Matched
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.schema.document import Report
from gpuscope.trace.intervals import Spans, measure_before, union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Table, Times, ascends, compact, distinct, distinct_pairs, rows_of_rank
from gpuscope.trace.trace import Lane, Trace
from gpuscope.when_used import dataclass

# A common clock for all ranks, and the matching of collectives across ranks.


class RunClock:
    """The clocks and matched collectives of a run, these matched when first asked for."""

    def __init__(self, trace: Trace, report: Report) -> None:
        self._trace = trace
        self.error = report["trace"]["clock_error_ns"]
        """Bound on the error of times compared across ranks, ns; None if the clocks are not aligned."""
        self.told = report["trace"].get("clock")
        """As the report states it; None where no rank has a window."""

    @cached_property
    def _matched(self) -> Matched:
        return RunFacts(self._trace, ()).matched

    def common(self, rank: int, times: Times) -> Times:
        """Times of a rank's own clock on the run's clock, shape (n,); as `arrangement.Starts` places them."""
        offset = self.told["offset_ns"].get(str(rank), 0) if self.told else 0
        drift = self.told["drift_frac"].get(str(rank), 0.0) if self.told else 0.0
        if not self.told or not (offset or drift):
            return times
        since = times - (self.told["origin_ns"] + offset)
        return np.asarray(times - offset - np.rint(drift * since).astype(np.int64))

    def shown(self, rank: int, time: int) -> int:
        """One time of a rank's own clock on the run's clock."""
        return int(self.common(rank, np.array([time], np.int64))[0])

    def latest(self, table: Table) -> list[tuple[int, int]]:
        """Of each matched operation of several ranks, messages left out, the row that starts last and how much later
        than the first, ns; the latest first."""
        start = table["start"].copy()
        for rank in np.unique(table["rank"]).tolist():
            own = table["rank"] == rank
            start[own] = self.common(rank, start[own])
        found = self._matched.instances.select(~self._matched.instances.p2p)
        lasts = []
        for low, high in zip(found.bounds[:-1].tolist(), found.bounds[1:].tolist(), strict=True):
            rows = found.rows[low:high]
            row = int(rows[np.argmax(start[rows])])
            lasts.append((row, int(start[row] - start[rows].min())))
        return sorted(lasts, key=lambda one: -one[1])

    def same(self, row: int) -> Times:
        """The rows of `collectives` of the same operation on all its ranks; empty if not matched."""
        instance = int(self._matched.of_row[row])
        if instance == NA:
            return np.empty(0, np.int64)
        found = self._matched.instances
        return found.rows[found.bounds[instance] : found.bounds[instance + 1]]


Group = Literal["steps", "streams", "ranges", "threads", "python", "os"]
GROUPS: dict[Group, str] = {
    "steps": "Steps",
    "streams": "Streams",
    "ranges": "Ranges",
    "threads": "Operators and calls",
    "python": "Python stacks",
    "os": "System calls",
}
OF_CATEGORY: dict[Category, Group] = {
    Category.OP: "threads",
    Category.RUNTIME: "threads",
    Category.COMMUNICATION: "threads",
    Category.OVERHEAD: "threads",
    Category.ANNOTATION: "ranges",
    Category.PYTHON: "python",
    Category.OS: "os",
}
DEEPEST = 24
"""Rows of one thread and group; deeper nesting shares the last one."""
BLOCK = 16
"""Events per block whose maxima are stored: of a long range only a block at each end and a sixteenth are scanned."""
STEP = len(Kind) + len(Category)
"""Look of a step; device events have their `Kind` as look, host events `len(Kind) + Category`."""

TableName = Literal["device_events", "host_events", "steps"]


@dataclass(frozen=True)
class Track:
    """One row of the timeline: its events by start, times in ns on the run's clock. What a window of it is found by is
    made when one is first asked for: most rows of a large run are never opened."""

    key: str
    rank: int
    group: Group
    label: str
    table: TableName
    rows: Array
    """Their rows in the table."""
    start: Times
    end: Times
    look: Array
    """What each is, for its colour (int8)."""
    thread: int = NA
    """Row of `threads` of a host event's track."""
    depth: int = 0
    """How many of its thread's events of this group are open around each."""

    @cached_property
    def reach(self) -> Times:
        """The latest end so far: monotonic, so that it can be searched."""
        if bool((self.end[1:] >= self.end[:-1]).all()):  # as in all tracks of one depth: kept once
            return self.end
        return np.asarray(np.maximum.accumulate(self.end))

    @cached_property
    def by_length(self) -> Array:
        """Places of the events, the shortest first (int32): inverse of `shorter`."""
        return np.argsort(self.end - self.start, kind="stable").astype(np.int32)

    @cached_property
    def shorter(self) -> Array:
        """How many are shorter, ties broken by row (int32): the greatest of some events is the longest."""
        found = np.empty(len(self), np.int32)
        found[self.by_length] = np.arange(len(self), dtype=np.int32)
        return found

    @cached_property
    def shorter_blocks(self) -> Array:
        """The greatest of `shorter` in each whole block of BLOCK events."""
        return block_max(self.shorter)

    @cached_property
    def covered(self) -> Times:
        """How long any of the events so far runs: |∪ [start, end)| over the events up to each."""
        before = np.concatenate((self.start[:1], self.reach[:-1]))
        return np.asarray(np.cumsum(np.maximum(self.end - np.maximum(self.start, before), 0)))

    def __len__(self) -> int:
        return len(self.start)

    def busy_before(self, at: Times) -> Times:
        """How long any event runs before each instant, ns: |∪ events ∩ (−∞, t)|, shape of `at`."""
        return self.busy_of(at, np.searchsorted(self.start, at, "left"))

    def busy_of(self, at: Times, begun: Times) -> Times:
        """`busy_before`, where it is known how many events have begun before each instant, shape of `at`."""
        if not len(self):
            return np.zeros(len(at), np.int64)
        last = begun - 1
        # From the start of the last one that has begun to the latest end so far, all is covered.
        busy = self.covered[last] - np.maximum(self.reach[last] - at, 0)
        return np.where(last >= 0, busy, 0)

    def busy(self, window: tuple[int, int]) -> int:
        """How long any event runs within the window, ns."""
        before, after = self.busy_before(np.array(window, np.int64))
        return int(after - before)


def make_track(
    key: str,
    rank: int,
    group: Group,
    label: str,
    table: TableName,
    rows: Times,
    start: Times,
    end: Times,
    look: Array,
    thread: int = NA,
    depth: int = 0,
) -> Track:
    """A track of events in any order."""
    if bool((np.diff(start) < 0).any()):
        order = np.lexsort((-end, start))
        rows, start, end, look = rows[order], start[order], end[order], look[order]
    return Track(key, rank, group, label, table, rows, start, end, look, thread, depth)


def block_max(values: Array) -> Array:
    """The greatest of each whole block of BLOCK values, shape (n // BLOCK,)."""
    whole = len(values) // BLOCK * BLOCK
    return np.asarray(values[:whole].reshape(-1, BLOCK).max(axis=1)) if whole else values[:0]


def step_tracks(trace: Trace, clock: RunClock, rank: int) -> list[Track]:
    """The track of a rank's steps, where it has any."""
    rows = np.arange(*rows_of_rank(trace["steps"], rank))
    look = np.full(len(rows), STEP, np.int8)
    return [_track(trace, clock, f"s{rank}", rank, "steps", "steps (host)", "steps", rows, look)] if len(rows) else []


def stream_tracks(trace: Trace, clock: RunClock, lanes: Sequence[Lane]) -> list[Track]:
    """The streams of one rank's lanes."""
    table, found = trace["device_events"], []
    for lane in lanes:
        streams, which = distinct(table.at("stream", lane.rows))
        for place, stream in enumerate(streams.tolist()):
            rows = lane.rows[which == place] if len(streams) > 1 else lane.rows
            label = stream_label(lane.device, stream, len(lanes) > 1)
            key, look = f"d{lane.rank}.{lane.device}.{stream}", compact(table.at("kind", rows))
            found.append(_track(trace, clock, key, lane.rank, "streams", label, "device_events", rows, look))
    return found


def _track(
    trace: Trace,
    clock: RunClock,
    key: str,
    rank: int,
    group: Group,
    label: str,
    table: TableName,
    rows: Times,
    look: Array,
    thread: int = NA,
    depth: int = 0,
) -> Track:
    own = trace[table]
    start, end = (clock.common(rank, own.at(column, rows)) for column in ("start", "end"))
    rows = rows.astype(np.int32) if len(own) < 2**31 else rows
    return make_track(key, rank, group, label, table, rows, start, end, look, thread, depth)


def stream_label(device: int, stream: int, with_device: bool = True) -> str:
    """`gpu 0 stream 7`; a CPU run's device is its training thread."""
    if device == NA:
        return "training thread"
    return (f"gpu {device} " if with_device else "") + f"stream {stream if stream != NA else '?'}"


def host_tracks(trace: Trace, clock: RunClock, rank: int) -> list[Track]:
    """A rank's ranges, operators, Python, system calls by thread and depth; of each the busiest threads first: those
    that launch."""
    host = trace["host_events"]
    first, last = rows_of_rank(host, rank)
    pairs, which = distinct_pairs(*(host.at(column, slice(first, last)) for column in ("thread", "category")))
    by_group: dict[tuple[Group, int], list[int]] = {}
    for place, (thread, category) in enumerate(pairs):
        by_group.setdefault((OF_CATEGORY[Category(category)], thread), []).append(place)
    groups = [
        (group, thread, first + np.flatnonzero(np.isin(which, places) if len(places) > 1 else which == places[0]))
        for (group, thread), places in by_group.items()
    ]
    order, found = list(GROUPS), []
    for group, thread, rows in sorted(groups, key=lambda one: (order.index(one[0]), -len(one[2]))):
        label, depth = thread_label(trace, thread), _depth(host.at("start", rows), host.at("end", rows))
        for level in range(int(depth.max()) + 1):
            own = rows[depth == level]
            look = compact((host.at("category", own) + len(Kind)).astype(np.int8))
            key = f"h{thread}.{group}.{level}"
            found.append(_track(trace, clock, key, rank, group, label, "host_events", own, look, thread, level))
    return found


def _depth(start: Times, end: Times) -> Array:
    """How many of the events are open around each, at most DEEPEST - 1; shape (n,), int8."""
    end = np.maximum(end, start + 1)  # an instant event is open for a moment, else it would close before it opens
    order: Array | slice = slice(None) if ascends(start) else np.lexsort((-end, start))
    # Ends are nearly in order, which a stable sort makes use of.
    closed = np.searchsorted(np.sort(end, kind="stable"), start[order], "right")
    level = np.empty(len(start), np.int8)
    level[order] = np.clip(np.arange(len(start)) - closed, 0, DEEPEST - 1)
    return level


def thread_label(trace: Trace, thread: int) -> str:
    """Its name and id, as far as they are recorded."""
    threads: Table = trace["threads"]
    code = int(threads["name"][thread])
    tid = int(threads["tid"][thread])
    name = trace.names[code] if code != NO_NAME else "thread"
    return name if tid == NA or str(tid) in name else f"{name} {tid}"


# Level of detail: what a window of a track looks like in cells of a power of two nanoseconds.
#
# An event of at least `WIDE` cells is sent by itself. The others are merged: each cell tells exactly how long any event
# runs in it, so that a gap is never covered, and the longest of its events. Sums of coverage make this a search of the
# cells' edges in ordered columns (`Track.busy_before`), whatever the number of events.

WIDE = 3
"""Cells. A cell is between half a pixel and a pixel: what is wider has edges and a label of its own."""
FEW = 4
"""With fewer events in a window than cells by this, all are sent by themselves."""


@dataclass(frozen=True)
class Window:
    """`cells` cells of `1 << level` ns, the first of which begins at `origin`, ns on the run's clock."""

    origin: int
    level: int
    cells: int

    @property
    def edges(self) -> Times:
        """Where cells begin and the last one ends, shape (cells + 1,)."""
        return self.origin + (np.arange(self.cells + 1, dtype=np.int64) << self.level)

    @property
    def span(self) -> tuple[int, int]:
        """Its start and end."""
        return self.origin, self.origin + (self.cells << self.level)


@dataclass(frozen=True)
class Detail:
    """A window of one track. Places are indices into the track."""

    wide: Times
    """Places of the events drawn by themselves, by start; shape (w,)."""
    at: Times
    """The cells in which other events run, shape (c,)."""
    busy: Times
    """How long, ns; no more than what the wide events leave free."""
    count: Times
    """How many events start there."""
    place: Times
    """The longest of them, or the one that runs on."""


def detail(track: Track, window: Window) -> Detail:
    """What is seen of the track in this window."""
    none = np.empty(0, np.int64)
    low, inside, high = bounds(track, window.span)
    early = low + np.flatnonzero(track.end[low:inside] > window.origin)
    if len(early) + high - inside <= max(window.cells // FEW, 64):
        return Detail(np.concatenate((early, np.arange(inside, high))), none, none, none, none)
    width = WIDE << window.level
    wide = np.concatenate(
        (early[track.end[early] - track.start[early] >= width], inside + _wide(track, inside, high, width))
    )
    if len(wide) > window.cells:  # they overlap
        wide = np.sort(wide[np.argsort(track.shorter[wide])[-window.cells :]])
    edges = window.edges
    apart = _covered(union(track.start[wide], track.end[wide]), edges)
    first = low + np.searchsorted(track.start[low:high], edges, "left")
    busy = np.maximum(np.diff(track.busy_of(edges, first)) - np.diff(apart), 0)
    at = np.flatnonzero(busy)
    count = np.diff(first)[at]
    return Detail(wide, at, busy[at], count, _longest(track, first[:-1][at], count, width))


def _covered(spans: Spans, edges: Times) -> Times:
    return measure_before(spans, edges)


def bounds(track: Track, span: tuple[int, int]) -> tuple[int, int, int]:
    """Events [low, inside) may reach into the span from before it, [inside, high) start in it."""
    low = int(np.searchsorted(track.reach, span[0], "right"))
    inside = int(np.searchsorted(track.start, span[0], "left"))
    high = int(np.searchsorted(track.start, span[1], "left"))
    return min(low, inside), inside, max(high, inside)


def _longest(track: Track, first: Times, count: Times, width: int) -> Times:
    """The longest event that starts in each cell; where none does, or it has a mark of its own, one that may run on."""
    place = np.maximum(first - 1, 0)
    filled = np.flatnonzero(count)
    if len(filled):
        cuts = first[filled]
        found = track.by_length[range_max(track.shorter, track.shorter_blocks, cuts, cuts + count[filled])]
        place[filled] = found
    wide = track.end[place] - track.start[place] >= width
    place[wide] = np.where(count[wide] > 1, first[wide] + (place[wide] == first[wide]), place[wide])
    return place


def range_max(values: Array, blocks: Array, start: Times, end: Times) -> Array:
    """The greatest of each values[start:end], shape of `start`. Values are not negative; ranges are not empty and rise
    without overlap.

    Whole blocks are answered by their maxima (`block_max`), only what is left at both ends by the values themselves:
    about n / BLOCK + 2 · BLOCK · k steps instead of n.
    """
    first, last = -(-start // BLOCK), end // BLOCK  # whole blocks, where first < last
    tail = np.maximum(last * BLOCK, start)
    found = np.maximum(_short_max(values, start, np.minimum(first * BLOCK, end)), _short_max(values, tail, end))
    whole = np.flatnonzero(first < last)
    if len(whole):
        ends = np.column_stack((first[whole], last[whole])).ravel()
        # A bound at the very end has nothing after it to reduce.
        maxima = np.maximum.reduceat(np.append(blocks, blocks[-1:]), ends)[::2]
        found[whole] = np.maximum(found[whole], maxima)
    return found


def _short_max(values: Array, start: Times, end: Times) -> Array:
    """The greatest of each values[start:end] of at most BLOCK; -1, less than all, where that is empty."""
    reach = int(np.max(end - start, initial=0))
    found = np.full(len(start), -1, values.dtype)
    for by in range(reach):
        place = start + by
        np.maximum(found, np.where(place < end, values[np.minimum(place, len(values) - 1)], -1), out=found)
    return found


def _wide(track: Track, low: int, high: int, width: int) -> Times:
    """Places, from `low`, of the events at least `width` long."""
    shorter = _count_shorter(track, width)
    if len(track) - shorter < high - low:
        places = track.by_length[shorter:]
        found = np.sort(places[(places >= low) & (places < high)].astype(np.int64)) - low
        return np.asarray(found)
    return np.flatnonzero(track.shorter[low:high] >= shorter)


def _count_shorter(track: Track, width: int) -> int:
    """How many events of the track are shorter than `width`: bisection over those ordered by length."""
    low, high = 0, len(track)
    while low < high:
        middle = (low + high) // 2
        place = track.by_length[middle]
        if track.end[place] - track.start[place] < width:
            low = middle + 1
        else:
            high = middle
    return low
