"""Events as rows of a timeline: streams, ranges, operators and calls of threads by depth, steps; on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Literal

import numpy as np

from gpuscope.dashboards.data.rows.run_clock import RunClock
from gpuscope.trace.columns.distinct import distinct, distinct_pairs
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Table, Times, ascends, compact, rows_of_rank
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Lane, Trace
from gpuscope.when_used import dataclass

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
