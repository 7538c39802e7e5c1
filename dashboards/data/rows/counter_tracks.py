"""Counters as rows of the timeline, on the run's clock: what NVLink, PCIe and network ports carried, what GPUs did."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.topology.counter_means import values_of
from gpuscope.dashboards.data.rows.detail_levels import Window
from gpuscope.dashboards.data.rows.run_clock import RunClock
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

PERCENT = "%"
_OF_GPU = "GPU "


@dataclass(frozen=True)
class CounterTrack:
    """One counter: samples by start, which do not overlap; times in ns on the run's clock."""

    rank: int
    """Of the GPU; of a network port, the first rank whose file recorded it."""
    place: str
    """`GPU 0`, `NIC mlx5_0`."""
    label: str
    unit: str
    start: Times
    end: Times
    value: Array
    top: float
    """What the full height stands for: 100 for percent, else the largest value."""
    known: Times
    """How much time the samples before each cover, ns; shape (n + 1,)."""
    area: Array
    """∫ value dt over the samples before each; shape (n + 1,)."""

    @property
    def of_gpu(self) -> bool:
        """Whether it belongs to a GPU, not to a port of the host."""
        return self.place.startswith(_OF_GPU)

    def _before(self, at: Times) -> tuple[Times, Array]:
        """Covered time and ∫ value dt before each instant."""
        last = np.searchsorted(self.start, at, "right") - 1
        held = np.maximum(last, 0)
        part = np.where(last >= 0, np.clip(at - self.start[held], 0, self.end[held] - self.start[held]), 0)
        return self.known[held] + part, self.area[held] + part * self.value[held]


@dataclass(frozen=True)
class CounterDetail:
    """A window of a counter: cells that samples cover, shape (c,) each."""

    at: Times
    """Their numbers."""
    mean: Array
    """Mean value by time."""
    most: Array
    """The largest sample that reaches into the cell."""
    count: Times
    """Samples that start in it."""


def counter_detail(track: CounterTrack, window: Window) -> CounterDetail:
    """What is seen of a counter in this window."""
    edges = window.edges
    known, area = track._before(edges)
    covered, sums = np.diff(known), np.diff(area)
    at = np.flatnonzero(covered)
    first = np.searchsorted(track.start, edges, "left")
    return CounterDetail(at, sums[at] / covered[at], _most(track, edges, at), np.diff(first)[at])


def _most(track: CounterTrack, edges: Times, at: Times) -> Array:
    """The largest of the samples that overlap each of these cells."""
    low = np.searchsorted(track.end, edges[at], "right")
    high = np.searchsorted(track.start, edges[at + 1], "left")
    ends = np.column_stack((low, np.maximum(high, low + 1))).ravel()
    if not len(ends):
        return track.value[:0]
    return np.asarray(np.maximum.reduceat(np.append(track.value, track.value[-1:]), ends)[::2])


def counter_tracks(trace: Trace, clock: RunClock) -> list[CounterTrack]:
    """All counters: those of GPUs by rank, then those of ports."""
    table, found = trace["counters"], []
    keys = np.column_stack([table[name].astype(np.int64) for name in ("source", "place", "counter")])
    for source, place, counter in np.unique(keys, axis=0).tolist() if len(keys) else ():
        rows = np.flatnonzero((keys == (source, place, counter)).all(axis=1))
        rank = _rank(trace, source, trace.names[place])
        if rank is None:
            continue
        unit = trace.names[int(table["unit"][rows[0]])]
        start, end = (clock.common(rank, table[column][rows]) for column in ("start", "end"))
        found.append(
            make_counter(rank, trace.names[place], trace.names[counter], unit, start, end, values_of(trace, rows))
        )
    return sorted(found, key=lambda one: (not one.of_gpu, one.rank, one.place, one.label))


def make_counter(rank: int, place: str, label: str, unit: str, start: Times, end: Times, value: Array) -> CounterTrack:
    """A track of samples in any order; one that overlaps the next ends where that begins."""
    order = np.argsort(start, kind="stable")
    start, end, value = start[order], end[order], value[order].astype(np.float64)
    end = np.minimum(end, np.append(start[1:], end[-1:]))
    length = np.maximum(end - start, 0)
    known = np.concatenate(([0], np.cumsum(length)))
    area = np.concatenate(([0.0], np.cumsum(length * value)))
    top = 100.0 if unit == PERCENT else float(value.max(initial=0)) or 1.0
    return CounterTrack(rank, place, label, unit, start, end, value, top, known, area)


def _rank(trace: Trace, source: int, place: str) -> int | None:
    """The rank of a file that has the GPU of this place, else its first rank; None for a file without ranks."""
    ranks = trace["ranks"]
    own = np.flatnonzero(ranks["source"] == source)
    if not len(own):
        return None
    device = place.removeprefix(_OF_GPU)
    devices = ranks["device"][own]
    fits = own[devices == int(device)] if place.startswith(_OF_GPU) and device.isdecimal() else own[:0]
    fits = fits[ranks["device"][fits] != NA]
    return int(ranks["rank"][fits[0] if len(fits) else own[0]])
