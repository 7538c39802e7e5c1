"""What a chosen range of the timeline holds: each rank's breakdown by the definitions, and the longest kernels."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.rows.detail_levels import bounds
from gpuscope.dashboards.data.rows.tracks import TableName
from gpuscope.trace.breakdown import Breakdown, break_down
from gpuscope.trace.intervals import union
from gpuscope.trace.schema import Kind
from gpuscope.when_used import dataclass

KERNELS = 10


@dataclass(frozen=True)
class KernelInRange:
    """A name of events: how many are in the range, and how long they run in it, ns."""

    name: str
    count: int
    time: int
    ref: str
    """The longest of them."""


@dataclass(frozen=True)
class RangeStatistics:
    """Breakdowns by rank, device events in all, and the longest kernels over these ranks."""

    window: tuple[int, int]
    ranks: list[tuple[int, Breakdown]]
    events: int
    kernels: list[KernelInRange]
    host: list[KernelInRange]
    """Operators and calls of all threads by their own time, without that of those within them."""


def range_statistics(events: Events, window: tuple[int, int], ranks: Collection[int] | None) -> RangeStatistics:
    """Events are clipped at the window; concurrent kernels count in full each."""
    by_rank: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    rows_seen, length_seen = [], []
    for track in events.tracks:
        if track.group != "streams" or (ranks is not None and track.rank not in ranks):
            continue
        low, _, high = bounds(track, window)
        places = low + np.flatnonzero(track.end[low:high] > window[0])
        start, end = np.maximum(track.start[places], window[0]), np.minimum(track.end[places], window[1])
        by_rank.setdefault(track.rank, []).append((start, end, track.look[places]))
        rows_seen.append(track.rows[places])
        length_seen.append(end - start)
    rows = np.concatenate(rows_seen) if rows_seen else np.empty(0, np.int64)
    length = np.concatenate(length_seen) if length_seen else np.empty(0, np.int64)
    return RangeStatistics(
        window,
        [(rank, _breakdown(parts, window)) for rank, parts in sorted(by_rank.items())],
        len(rows),
        _longest(events, "device_events", rows, length),
        _host(events, window, ranks),
    )


def _host(events: Events, window: tuple[int, int], ranks: Collection[int] | None) -> list[KernelInRange]:
    """By depth of a thread, the deepest first: what runs within an event is on the row below it."""
    rows_seen, own_seen = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for tracks in events.tracks_of_thread.values():
        below_start, below_length = np.empty(0, np.int64), np.empty(0, np.int64)
        for track in sorted((one for one in tracks if one.group == "threads"), key=lambda one: -one.depth):
            if ranks is not None and track.rank not in ranks:
                break
            low, _, high = bounds(track, window)
            places = low + np.flatnonzero(track.end[low:high] > window[0])
            start, end = np.maximum(track.start[places], window[0]), np.minimum(track.end[places], window[1])
            sums = np.concatenate(([0], np.cumsum(below_length)))
            inner = sums[np.searchsorted(below_start, end)] - sums[np.searchsorted(below_start, start)]
            rows_seen.append(track.rows[places])
            own_seen.append(np.maximum(end - start - inner, 0))
            below_start, below_length = start, end - start
    return _longest(events, "host_events", np.concatenate(rows_seen), np.concatenate(own_seen))


def longest_compute(events: Events, rank: int, window: tuple[int, int]) -> str:
    """Of the computation that a rank spends most of the window in, the longest event (`d12`); empty where none runs."""
    rows, spent = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for track in events.streams(rank):
        low, _, high = bounds(track, window)
        inside = np.minimum(track.end[low:high], window[1]) - np.maximum(track.start[low:high], window[0])
        kept = np.flatnonzero((inside > 0) & (track.look[low:high] == Kind.COMPUTE))
        rows.append(track.rows[low:high][kept])
        spent.append(inside[kept])
    found = _longest(events, "device_events", np.concatenate(rows), np.concatenate(spent))
    return found[0].ref if found else ""


def _breakdown(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], window: tuple[int, int]) -> Breakdown:
    start, end, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    compute, communication, memory = (
        union(start[kind == one], end[kind == one]) for one in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)
    )
    return break_down(compute, communication, memory, [window])[0]


def _longest(events: Events, table: TableName, rows: np.ndarray, length: np.ndarray) -> list[KernelInRange]:
    if not len(rows):
        return []
    names = events.trace[table]["name"][rows]
    codes, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    time = np.bincount(inverse, length).astype(np.int64)
    found = []
    for place in np.argsort(-time, kind="stable")[:KERNELS].tolist():
        own = np.flatnonzero(inverse == place)
        longest = int(rows[own[np.argmax(length[own])]])
        name, ref = events.trace.names[int(codes[place])], f"{table[0]}{longest}"
        found.append(KernelInRange(name, int(counts[place]), int(time[place]), ref))
    return found
