"""Level of detail: what a window of a track looks like in cells of a power of two nanoseconds.

An event of at least `WIDE` cells is sent by itself. The others are merged: each cell tells exactly how long any event
runs in it, so that a gap is never covered, and the longest of its events. Sums of coverage make this a search of the
cells' edges in ordered columns (`Track.busy_before`), whatever the number of events.
"""

from __future__ import annotations

import numpy as np

from gpuscope.dashboards.data.rows.tracks import BLOCK, Track
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.intervals import Spans, measure_before, union
from gpuscope.when_used import dataclass

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
