"""Events as rows of a timeline: streams, ranges, operators and calls of threads by depth, steps; on one clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpuscope.dashboards.data.rows.run_clock import RunClock
from gpuscope.trace.columns.distinct import distinct_pairs
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Table, Times
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

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
    """One row of the timeline: its events by start, times in ns on the run's clock."""

    key: str
    rank: int
    group: Group
    label: str
    table: TableName
    rows: Times
    """Their rows in the table."""
    start: Times
    end: Times
    look: Array
    """What each is, for its colour (int8)."""
    reach: Times
    """The latest end so far: monotonic, so that it can be searched."""
    shorter: Array
    """How many are shorter, ties broken by row (int32): the greatest of some events is the longest."""
    by_length: Array
    """Places of the events, the shortest first (int32): inverse of `shorter`."""
    shorter_blocks: Array
    """The greatest of `shorter` in each whole block of BLOCK events."""
    covered: Times
    """How long any of the events so far runs: |∪ [start, end)| over the events up to each."""
    thread: int = NA
    """Row of `threads` of a host event's track."""
    depth: int = 0
    """How many of its thread's events of this group are open around each."""

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
    key: str, rank: int, group: Group, label: str, table: TableName, rows: Times, start: Times, end: Times,
    look: Array, thread: int = NA, depth: int = 0,
) -> Track:  # fmt: skip
    """A track of events in any order."""
    if bool((np.diff(start) < 0).any()):
        order = np.lexsort((-end, start))
        rows, start, end, look = rows[order], start[order], end[order], look[order]
    by_length = np.argsort(end - start, kind="stable").astype(np.int32)
    shorter = np.empty(len(rows), np.int32)
    shorter[by_length] = np.arange(len(rows), dtype=np.int32)
    reach = np.maximum.accumulate(end) if len(end) else end
    reach = end if np.array_equal(reach, end) else reach  # as in all tracks of one depth: kept once
    before = np.concatenate((start[:1], reach[:-1]))
    covered = np.cumsum(np.maximum(end - np.maximum(start, before), 0))
    return Track(
        key, rank, group, label, table, rows, start, end, look, reach, shorter, by_length, block_max(shorter), covered,
        thread, depth,
    )  # fmt: skip


def block_max(values: Array) -> Array:
    """The greatest of each whole block of BLOCK values, shape (n // BLOCK,)."""
    whole = len(values) // BLOCK * BLOCK
    return np.asarray(values[:whole].reshape(-1, BLOCK).max(axis=1)) if whole else values[:0]


def tracks(trace: Trace, clock: RunClock) -> list[Track]:
    """All tracks: rank by rank, and there steps, streams, ranges, threads, Python, system calls."""
    shift = _Shift(trace, clock)
    found = [*_steps(trace, shift), *_streams(trace, shift), *_threads(trace, shift)]
    order = list(GROUPS)
    return sorted(found, key=lambda track: (track.rank, order.index(track.group)))


class _Shift:
    """Times of a table's rows on the run's clock."""

    def __init__(self, trace: Trace, clock: RunClock) -> None:
        self.trace, self.clock = trace, clock

    def track(
        self, key: str, rank: int, group: Group, label: str, table: TableName, rows: Times, look: Array,
        thread: int = NA, depth: int = 0,
    ) -> Track:  # fmt: skip
        own = self.trace[table]
        start, end = (self.clock.common(rank, own[column][rows]) for column in ("start", "end"))
        return make_track(key, rank, group, label, table, rows, start, end, look, thread, depth)


def _steps(trace: Trace, shift: _Shift) -> Iterator[Track]:
    table = trace["steps"]
    for rank in np.unique(table["rank"]).tolist():
        rows = np.flatnonzero(table["rank"] == rank)
        look = np.full(len(rows), STEP, np.int8)
        yield shift.track(f"s{rank}", rank, "steps", "steps (host)", "steps", rows, look)


def _streams(trace: Trace, shift: _Shift) -> Iterator[Track]:
    table = trace["device_events"]
    for lane in trace.lanes():
        several = len(np.unique(table["device"][table["rank"] == lane.rank])) > 1
        streams = table["stream"][lane.rows]
        for stream in np.unique(streams).tolist():
            rows = lane.rows[streams == stream]
            label = stream_label(lane.device, stream, several)
            key = f"d{lane.rank}.{lane.device}.{stream}"
            yield shift.track(key, lane.rank, "streams", label, "device_events", rows, table["kind"][rows])


def stream_label(device: int, stream: int, with_device: bool = True) -> str:
    """`gpu 0 stream 7`; a CPU run's device is its training thread."""
    if device == NA:
        return "training thread"
    return (f"gpu {device} " if with_device else "") + f"stream {stream if stream != NA else '?'}"


def _threads(trace: Trace, shift: _Shift) -> Iterator[Track]:
    host = trace["host_events"]
    if not len(host):
        return
    pairs, which = distinct_pairs(host["thread"], host["category"].astype(np.int64))
    by_group: dict[tuple[int, Group], list[int]] = {}
    for place, (thread, category) in enumerate(pairs):
        by_group.setdefault((thread, OF_CATEGORY[Category(category)]), []).append(place)
    groups = []
    for (thread, group), places in by_group.items():
        rows = np.flatnonzero(np.isin(which, places) if len(places) > 1 else which == places[0])
        groups.append((int(host["rank"][rows[0]]), group, thread, rows))
    # The busiest threads of a rank first: those that launch.
    groups.sort(key=lambda one: (one[0], one[1], -len(one[3])))
    for rank, group, thread, rows in groups:
        label = thread_label(trace, thread)
        depth = _depth(host["start"][rows], host["end"][rows])
        for level in range(int(depth.max()) + 1):
            own = rows[depth == level]
            look = (host["category"][own] + len(Kind)).astype(np.int8)
            yield shift.track(f"h{thread}.{group}.{level}", rank, group, label, "host_events", own, look, thread, level)


def _depth(start: Times, end: Times) -> Times:
    """How many of the events are open around each, at most DEEPEST - 1; shape (n,)."""
    end = np.maximum(end, start + 1)  # an instant event is open for a moment, else it would close before it opens
    order = np.lexsort((-end, start))
    level = np.empty(len(start), np.int64)
    level[order] = np.arange(len(start)) - np.searchsorted(np.sort(end), start[order], "right")
    return np.asarray(np.clip(level, 0, DEEPEST - 1))


def thread_label(trace: Trace, thread: int) -> str:
    """Its name and id, as far as they are recorded."""
    threads: Table = trace["threads"]
    code = int(threads["name"][thread])
    tid = int(threads["tid"][thread])
    name = trace.names[code] if code != NO_NAME else "thread"
    return name if tid == NA or str(tid) in name else f"{name} {tid}"
