"""Level of detail: the marks drawn for the tracks in a window, bounded in number whatever the events.

An event at least as wide as a cell (window / cells) is a mark of its own; narrower neighbours that start in one
cell and have no wide event between them share one. Every event in the window belongs to exactly one mark, which
covers it; `count` says how many. The code only searches arrays ordered by start and maxima of blocks of them, so that
even the whole of a large run takes no pass over its events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.dashboards.data.tracks import BLOCK, Track
from gpuscope.trace.columns.table import Array, Times

MAX_MARKS = 3_000
"""A browser redraws this many bars in well under a second."""
MAX_CELLS = 1_600
"""About the pixels of a wide screen; finer cells would not be visible."""


@dataclass(frozen=True)
class Marks:
    """Marks of one track: times in ns on the run's clock."""

    track: Track
    start: Times
    end: Times
    count: Times
    """Events in each."""
    place: Times
    """Index in the track of the longest event in each."""

    def __len__(self) -> int:
        return len(self.start)


def marks(tracks: Sequence[Track], window: tuple[int, int], limit: int = MAX_MARKS) -> list[Marks]:
    """Marks of each track in the window, at most `limit` together (but at least a few per track)."""
    held = [count_in(track, window) for track in tracks]
    if sum(held) <= limit:
        cells = max(MAX_CELLS, limit)
        return [_every(track, window) for track in tracks]
    cells = MAX_CELLS
    while True:
        found = [
            _every(track, window) if many <= max(limit // (4 * len(tracks)), 1) else _merged(track, window, cells)
            for track, many in zip(tracks, held, strict=True)
        ]
        drawn = sum(map(len, found))
        if drawn <= limit or cells == 1:
            return found
        cells = max(1, min(cells // 2, int(0.9 * cells * limit / drawn)))


def count_in(track: Track, window: tuple[int, int]) -> int:
    """How many events of the track overlap the window."""
    low, inside, high = _bounds(track, window)
    return int((track.end[low:inside] > window[0]).sum()) + high - inside


def _bounds(track: Track, window: tuple[int, int]) -> tuple[int, int, int]:
    """Events [low, inside) may reach into the window from before it, [inside, high) start in it."""
    low = int(np.searchsorted(track.reach, window[0], "right"))
    inside = int(np.searchsorted(track.start, window[0], "left"))
    high = int(np.searchsorted(track.start, window[1], "left"))
    return min(low, inside), inside, max(high, inside)


def _every(track: Track, window: tuple[int, int]) -> Marks:
    low, inside, high = _bounds(track, window)
    places = np.concatenate((low + np.flatnonzero(track.end[low:inside] > window[0]), np.arange(inside, high)))
    return Marks(track, track.start[places], track.end[places], np.ones(len(places), np.int64), places)


def _merged(track: Track, window: tuple[int, int], cells: int) -> Marks:
    low, inside, high = _bounds(track, window)
    early = low + np.flatnonzero(track.end[low:inside] > window[0])
    parts = [_early(track, early, cells)]
    if high > inside:
        parts.append(_within(track, window, inside, high, cells))
    columns = [np.concatenate(columns) for columns in zip(*parts, strict=True)]
    return Marks(track, *columns)


Columns = tuple[Times, Times, Times, Times]
"""start, end, count, place."""


def _early(track: Track, places: Times, cells: int) -> Columns:
    """Events from before the window: one in each depth of nesting, so mostly one; many only where they overlap."""
    if len(places) <= cells:
        return track.start[places], track.end[places], np.ones(len(places), np.int64), places
    longest = track.by_length[track.shorter[places].max()]
    start, end = track.start[places].min(), track.end[places].max()
    return tuple(np.array([value], np.int64) for value in (start, end, len(places), longest))  # type: ignore[return-value]


def _within(track: Track, window: tuple[int, int], low: int, high: int, cells: int) -> Columns:
    """Events that start in the window, cut where a cell begins and around each wide event."""
    width = (window[1] - window[0]) / cells
    edges = window[0] + np.arange(1, cells) * width
    start = track.start[low:high]
    wide = _wide(track, low, high, width, cells)
    cuts = np.unique(np.concatenate(([0], np.searchsorted(start, edges), wide, wide + 1)))
    cuts = cuts[cuts < high - low]
    count = np.diff(cuts, append=high - low)
    longest = track.by_length[range_max(track.shorter, track.shorter_blocks, low + cuts, high)]
    end = range_max(track.end, track.end_blocks, low + cuts, high)
    return start[cuts], end, count, longest.astype(np.int64)


def range_max(values: Array, blocks: Array, cuts: Times, high: int) -> Array:
    """The greatest of `values` from each cut to the next one, the last to `high`; shape of `cuts`, which rise.

    Whole blocks are answered by their maxima (`block_max`), only what is left at both ends by the values themselves:
    about n / BLOCK + 2 · BLOCK · cuts steps instead of n.
    """
    until = np.append(cuts[1:], high)
    first, last = -(-cuts // BLOCK), until // BLOCK  # whole blocks, where first < last
    tail = np.maximum(last * BLOCK, cuts)
    found = np.maximum(_short_max(values, cuts, np.minimum(first * BLOCK, until)), _short_max(values, tail, until))
    whole = np.flatnonzero(first < last)
    if len(whole):
        bounds = np.column_stack((first[whole], last[whole])).ravel()
        # A bound at the very end has nothing after it to reduce.
        maxima = np.maximum.reduceat(np.append(blocks, blocks[-1:]), bounds)[::2]
        found[whole] = np.maximum(found[whole], maxima)
    return found


def _short_max(values: Array, start: Times, end: Times) -> Array:
    """The greatest of each values[start:end] of at most BLOCK, or the least number where that is empty."""
    places = start[:, None] + np.arange(BLOCK)
    least = np.iinfo(values.dtype).min
    return np.asarray(np.where(places < end[:, None], values[np.minimum(places, len(values) - 1)], least).max(axis=1))


def _wide(track: Track, low: int, high: int, width: float, most: int) -> Array:
    """Places, from `low`, of the events at least `width` long; of more than `most` (they overlap) the longest."""
    shorter = _count_shorter(track, width)
    if len(track) - shorter < high - low:
        places = track.by_length[shorter:]
        places = places[(places >= low) & (places < high)].astype(np.int64) - low
    else:
        places = np.flatnonzero(track.shorter[low:high] >= shorter)
    if len(places) > most:
        places = places[np.argsort(track.shorter[low:high][places])[-most:]]
    return places


def _count_shorter(track: Track, width: float) -> int:
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
