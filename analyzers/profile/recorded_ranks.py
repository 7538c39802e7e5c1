"""Which events of a rank the tables are of: all that were recorded, or those of the steps asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from gpuscope import native
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.trace.intervals import union
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import (
    Mask,
    Table,
    Times,
    blocks,
    counted,
    distinct_values,
    is_sorted,
    rows_of_rank,
    rows_where,
)
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class RecordedRank:
    """A rank of the trace with its lanes, and the window that its tables are of."""

    rank: int
    lanes: tuple[LaneView, ...]
    window: tuple[int, int] | None
    """None for all that was recorded."""
    bounds: tuple[int, int]
    """Its first host event, and the one after its last."""
    device: Times
    """Rows of its device events that touch the window, by start; empty where its training thread is the device."""
    has_device: bool

    def host_rows(self, host: Table, wanted: Callable[[slice], Mask]) -> Times:
        """Rows of its host events that begin in the window and for which `wanted` holds, asked block by block."""
        return rows_where(*self.bounds, lambda block: self.began(host["start"][block]) & wanted(block))

    def began(self, start: Times) -> Mask:
        """Which of these instants lie in the window."""
        if self.window is None:
            return np.ones(len(start), np.bool_)
        return (start >= self.window[0]) & (start < self.window[1])


def recorded_ranks(trace: Trace, lanes: Sequence[LaneView]) -> list[RecordedRank]:
    """The ranks of a trace, in order."""
    by_rank: dict[int, list[LaneView]] = {}
    for view in lanes:
        by_rank.setdefault(view.lane.rank, []).append(view)
    return [_recorded(trace, rank, views) for rank, views in sorted(by_rank.items())]


def _recorded(trace: Trace, rank: int, views: Sequence[LaneView]) -> RecordedRank:
    host = trace["host_events"]
    window = None
    if any(view.cut for view in views):
        window = min(view.window[0] for view in views), max(view.window[1] for view in views)
    real = [view for view in views if view.lane.device != NA]
    events = [of_lane(trace, view) for view in real] or [np.empty(0, np.int64)]
    rows = events[0] if len(events) == 1 else np.sort(np.concatenate(events), kind="stable")
    return RecordedRank(rank, tuple(views), window, rows_of_rank(host, rank), rows, bool(real))


def of_lane(trace: Trace, view: LaneView) -> Times:
    """Rows of a lane's device events that touch its window, by start."""
    device, rows = trace["device_events"], view.rows
    if not view.cut:
        return rows
    return rows[(device["end"][rows] > view.window[0]) & (device["start"][rows] < view.window[1])]


def streams_of(device: Table, rows: Times) -> tuple[list[int], Times]:
    """The streams that device events ran on, ascending, and how many ran on each."""
    counts: Counter[int] = Counter()
    for block in blocks(0, len(rows)):
        found, number = counted(device.at("stream", rows[block]))
        counts.update(dict(zip(found.tolist(), number.tolist(), strict=True)))
    streams = sorted(counts)
    return streams, np.array([counts[stream] for stream in streams], np.int64)


def on_stream(device: Table, rows: Times, stream: int, streams: int) -> Times:
    """Those of the device events that ran on a stream, where they ran on so many."""
    if streams == 1:
        return rows
    pieces = (rows[block] for block in blocks(0, len(rows)))
    return np.concatenate([piece[device.at("stream", piece) == stream] for piece in pieces])


# Nested operators and ranges of a rank: which one encloses which, and what each launched on the device.

_AUTOGRAD = "autograd::engine::evaluate_function"
"""How an operator of autograd's engine is named, whose threads run the backward pass."""


def parents(start: Times, end: Times, thread: Times, wanted: Mask | None = None) -> Times:
    """For each span the place of the innermost one of its thread that encloses it, or NA; shape (n,). Those that are
    not wanted have none and are none.

    Spans of a thread nest, as calls do. One that overlaps another without being inside it (a range that crosses
    threads, one of no length) has no parent and is none.
    """
    return native.parents(start, end, thread, end > start if wanted is None else (end > start) & wanted)


@dataclass(frozen=True)
class Launched:
    """Device events by the instant at which one thread launched them, with sums up to each."""

    at: Times
    start: Times
    end: Times
    sums: Times
    """Sums before each, and of all: ns of compute, communication, memory, then how many; shape (4, n + 1)."""

    @property
    def columns(self) -> tuple[Times, Times, Times, Times]:
        """All four."""
        return self.at, self.start, self.end, self.sums


def launched(trace: Trace, rows: Times) -> Launched:
    """These device events, of which the launches are recorded, by their launch's start."""
    device, host = trace["device_events"], trace["host_events"]
    at = host["start"][device.at("launch", rows)]
    if not is_sorted([at]):
        order = np.argsort(at, kind="stable")
        rows, at = rows[order], at[order]
        del order
    start, end, kind = (device.at(column, rows) for column in ("start", "end", "kind"))
    sums = np.zeros((4, len(rows) + 1), np.int64)
    for one, own in zip((Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY), sums[:, 1:], strict=False):
        np.subtract(end, start, out=own, where=kind == one)
        np.cumsum(own, out=own)
    sums[3] = np.arange(len(rows) + 1)
    return Launched(at, start, end, sums)


class LaunchingThreads:
    """The device events of a rank by the thread that launched them.

    A range of the rank's home thread (the one with most ranges) also has what autograd's threads launch while it is
    open, for they run the backward pass, and what others launch meanwhile outside of ranges of their own.
    """

    def __init__(self, trace: Trace, recorded: RecordedRank) -> None:
        rows, host, device = recorded.device, trace["host_events"], trace["device_events"]
        self._trace = trace
        known = device.known("launch")[rows]
        self._rows = rows if known.all() else rows[known]
        self._thread = host.at("thread", device.at("launch", self._rows))
        ranges = recorded.host_rows(host, lambda rows: host["category"][rows] == Category.ANNOTATION)
        of_range = host["thread"][ranges]
        self.home = int(np.bincount(of_range).argmax()) if len(of_range) else NA
        backward = trace.names.matching(lambda name: name.startswith(_AUTOGRAD))
        engine = recorded.host_rows(host, lambda rows: backward[host["name"][rows]]) if backward.any() else ranges[:0]
        autograd = distinct_values(host["thread"][engine]).tolist()
        free = np.zeros(len(self._rows), np.bool_)
        for thread in distinct_values(self._thread).tolist():
            own = self._thread == thread
            inside = ranges[of_range == thread]
            free[own] = thread != self.home
            if len(inside) and thread != self.home and thread not in autograd:
                covered = union(host["start"][inside], host["end"][inside])
                at = host["start"][device.at("launch", self._rows[own])]
                place = np.searchsorted(covered.start, at, "right") - 1
                free[own] = (place < 0) | (covered.end[np.maximum(place, 0)] <= at)
        self._free = free

    def of_thread(self, thread: int) -> tuple[Launched, Launched]:
        """What a thread launched itself, and what belongs to its ranges: the same, but for the home thread's."""
        own = self._thread == thread
        by = launched(self._trace, self._rows if own.all() else self._rows[own])
        more = thread == self.home and bool((self._free & ~own).any())
        return by, self.of_ranges(thread) if more else by

    def of_ranges(self, thread: int) -> Launched:
        """What belongs to the ranges of a thread."""
        own = self._thread == thread
        return launched(self._trace, self._rows[own | self._free if thread == self.home else own])
