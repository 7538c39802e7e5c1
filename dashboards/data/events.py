"""The events of a run for the timeline: tracks on one clock, and links from events to collectives."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from collections.abc import Sequence as abc_Sequence
from functools import cached_property
from itertools import groupby
from threading import Lock, RLock

import numpy as np

from gpuscope.analyzers.advice.rule import Predict
from gpuscope.analyzers.replay.engine import PathSpan
from gpuscope.analyzers.what_if_changes import (
    BucketSize,
    CapturedGraphs,
    Change,
    LinkSpeed,
    LoaderWorkers,
    MicroBatches,
    NoAllocatorStalls,
    NoCollector,
    NoHostWork,
    PinnedCopies,
    Refused,
    RemovedSyncs,
    ReplacedRank,
    WireBytes,
)
from gpuscope.dashboards.data.counter_tracks import CounterTrack, counter_tracks
from gpuscope.dashboards.data.tracks import STEP, RunClock, Track, host_tracks, step_tracks, stream_tracks
from gpuscope.schema.call_tree_section import EventId
from gpuscope.schema.document import Report
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import Array, Times, distinct, rows_of_rank
from gpuscope.trace.trace import Lane, Trace
from gpuscope.when_used import dataclass


class Events:
    """All events of a run, each rank laid out when it is first asked for; what is there is read-only."""

    def __init__(self, trace: Trace, report: Report) -> None:
        self.trace = trace
        self.clock = RunClock(trace, report)
        self.shown_names: dict[int, str] = {}
        """Names as they were sent, by code: kept so that each is put into words once."""
        self.short_names: dict[int, str] = {}
        """The short form of names that have one, else an empty text, by code."""
        self._streams: dict[int, list[Track]] = {}
        self._laying_out = RLock()

    def streams(self, rank: int) -> list[Track]:
        """The tracks of a rank's streams."""
        with self._laying_out:
            if rank not in self._streams:
                self._streams[rank] = stream_tracks(self.trace, self.clock, self._lanes.get(rank, []))
            return self._streams[rank]

    @cached_property
    def _lanes(self) -> dict[int, list[Lane]]:
        return {rank: list(own) for rank, own in groupby(self.trace.lanes(), lambda lane: lane.rank)}

    @property
    def tracks(self) -> abc_Sequence[Track]:
        """Rank by rank, and there steps, streams, threads, Python, system calls."""
        with self._laying_out:  # several pages may ask at once
            return self._tracks

    @cached_property
    def _tracks(self) -> list[Track]:
        found: list[Track] = []
        for rank in self.trace.ranks:
            found += step_tracks(self.trace, self.clock, rank)
            found += self.streams(rank)
            found += host_tracks(self.trace, self.clock, rank)
        return found

    @cached_property
    def counters(self) -> abc_Sequence[CounterTrack]:
        """Counters of links: rows of the timeline too, numbered after `tracks`."""
        return counter_tracks(self.trace, self.clock)

    @cached_property
    def tracks_of_thread(self) -> dict[int, list[Track]]:
        """The tracks that hold events of a thread, by its row."""
        found: dict[int, list[Track]] = {}
        for track in self.tracks:
            if track.table == "host_events" and len(track):
                found.setdefault(track.thread, []).append(track)
        return found

    @cached_property
    def _on_training_thread(self) -> dict[int, int]:
        device = self.trace["device_events"]
        hosts = np.flatnonzero((device["device"] == NA) & (device["launch"] != NA))
        return dict(zip(device["launch"][hosts].tolist(), hosts.tolist(), strict=True))

    @cached_property
    def _collective_of(self) -> dict[str, dict[int, int]]:
        table = self.trace["collectives"]
        return {"d": _rows_by(table["event"]), "h": _rows_by(table["host_event"])}

    @cached_property
    def first(self) -> int:
        """The start of the first event."""
        return min((int(track.start[0]) for track in self.tracks if len(track)), default=0)

    @cached_property
    def last(self) -> int:
        """The end of the last event to end."""
        return max((int(track.end.max()) for track in self.tracks if len(track)), default=1)

    @property
    def origin(self) -> int:
        """What all places count from, as in the report: «+X ms», and the times that the canvas is given."""
        return self.clock.told["origin_ns"] if self.clock.told else self.first

    @cached_property
    def looks(self) -> set[int]:
        """What kinds of events there are (`Track.look`)."""
        return {look for look in range(STEP + 1) if any(bool((track.look == look).any()) for track in self.tracks)}

    @cached_property
    def latest(self) -> list[tuple[int, int]]:
        """(row of the last rank in `collectives`, ns it comes after the first) of each matched collective, the latest
        first."""
        return self.clock.latest(self.trace["collectives"])

    @property
    def window(self) -> tuple[int, int]:
        """All events, with a small margin on both sides."""
        room = max((self.last - self.first) // 100, 1)
        return self.first - room, self.last + room

    def steady_window(self, report: Report, ranks: Collection[int] | None) -> tuple[int, int] | None:
        """From the start of the first steady step to the end of the last; None without two: the host's part of a single
        one may lie before all of it."""
        steady = [
            one
            for one in report["steps"]
            if one["role"] == "steady" and one["step"] is not None and (ranks is None or one["rank"] in ranks)
        ]
        if len({one["step"] for one in steady}) < 2:
            return None
        starts = [self.clock.shown(one["rank"], one["start_ns"]) for one in steady]
        return min(starts), max(start + one["dur_ns"] for start, one in zip(starts, steady, strict=True))

    def steps_window(self, steps: tuple[int, int], ranks: Collection[int] | None) -> tuple[int, int] | None:
        """From the start of the first of these steps to the end of the last, as the host saw them."""
        table = self.trace["steps"]
        keep = (table["step"] >= steps[0]) & (table["step"] <= steps[1])
        if ranks is not None:
            keep &= np.isin(table["rank"], list(ranks))
        rows = np.flatnonzero(keep)
        if not len(rows):
            return None
        shown = [
            [self.clock.shown(int(table["rank"][row]), int(table[column][row])) for row in rows.tolist()]
            for column in ("start", "end")
        ]
        return min(shown[0]), max(shown[1])

    def collective_row(self, ref: str) -> int | None:
        """The row of `collectives` that an event, or the host call behind it, carried out; None for any other."""
        row = int(ref[1:])
        found = self._collective_of[ref[0]].get(row)
        if found is None and ref[0] == "d":
            found = self._collective_of["h"].get(int(self.trace["device_events"]["launch"][row]))
        return found

    def event_of_collective(self, row: int) -> str:
        """The event that carried a collective out: `d12`, `h3`, or empty; of a CPU run that of the training thread."""
        table = self.trace["collectives"]
        on_device = self._on_training_thread.get(int(table["host_event"][row]))
        if table["event"][row] == NA and on_device is not None:
            return f"d{on_device}"
        for letter, column in (("d", "event"), ("h", "host_event")):
            if table[column][row] != NA:
                return f"{letter}{int(table[column][row])}"
        return ""

    def place_of(self, ref: str) -> tuple[int, tuple[int, int]] | None:
        """The number of the track an event is drawn on, and its span on the run's clock; None for no event."""
        name = {"d": "device_events", "h": "host_events"}.get(ref[:1], "")
        if (
            not name
            or not ref[1:].isascii()
            or not ref[1:].isdigit()
            or len(ref) > 18
            or int(ref[1:]) >= len(self.trace[name])
        ):
            return None
        table, row = self.trace[name], int(ref[1:])
        rank = int(table["rank"][row])
        start, end = (self.clock.shown(rank, int(table[column][row])) for column in ("start", "end"))
        for number, track in enumerate(self.tracks):
            if track.table == name and track.rank == rank:
                low, high = np.searchsorted(track.start, [start, start + 1])
                if row in track.rows[low:high]:
                    return number, (start, end)
        return None

    def named(self, rank: int, one: EventId) -> str:
        """The event (`d12`, `h3`) of a rank that is meant; empty where there is none such."""
        table, on_device = self.trace[one["table"]], one["table"] == "device_events"
        low, high = rows_of_rank(table, rank)
        begun = table["start"][low:high]  # in order
        rows = low + np.arange(*np.searchsorted(begun, [one["start_ns"], one["start_ns"] + 1]))
        kept = table["end"][rows] - table["start"][rows] == one["dur_ns"]
        kept &= table["name"][rows] == self.trace.names.find(one["name"])
        lanes = (("device", rows), ("stream", rows)) if on_device else (("thread", table["thread"][rows]),)
        for column, at in lanes:
            value = one[column]  # type: ignore[literal-required]
            held = table[column][at] if on_device else self.trace["threads"]["tid"][at]
            kept &= held == (NA if value is None else value)
        return f"{one['table'][0]}{rows[kept][0]}" if kept.any() else ""


def _rows_by(column: Times) -> dict[int, int]:
    return {int(event): row for row, event in enumerate(column.tolist()) if event != NA}


# Sequences of kernels that a stream repeats, by the time they cover.

LONGEST = 64
"""Kernels of a sequence at most."""
MOST_EVENTS = 100_000
"""Of a stream, the first so many are looked at."""
SHOWN = 10


@dataclass(frozen=True)
class Sequence:
    """Kernels one behind the other: how often, and how long they run in all, ns."""

    names: tuple[str, ...]
    count: int
    time: int
    share: float
    """Of what the stream's kernels take."""
    ref: str
    """The first kernel of the first."""


def sequences(events: Events, rank: int) -> list[Sequence]:
    """Of the busiest stream of a rank, those that cover most; each kernel counts for one of them at most."""
    own = events.streams(rank)
    track = max(own, key=lambda one: int((one.end - one.start)[one.look == Kind.COMPUTE].sum()), default=None)
    if track is None:
        return []
    places = np.flatnonzero(track.look == Kind.COMPUTE)[:MOST_EVENTS]
    rows, spent = track.rows[places], (track.end - track.start)[places]
    codes = events.trace["device_events"]["name"][rows].astype(np.int64)
    sums = np.concatenate(([0], np.cumsum(spent)))
    taken, chosen = np.zeros(len(codes) + 1, np.int64), list[tuple[int, Times]]()
    for length, begun, _ in sorted(_repeated(codes, sums), key=lambda one: (-one[2], one[0])):
        before = np.cumsum(taken) - taken
        begun = begun[before[begun + length] == before[begun]]
        if len(begun) > 1 and len(chosen) < SHOWN:
            chosen.append((length, begun))
            taken[(begun[:, None] + np.arange(length)).ravel()] = 1
    return [
        Sequence(
            tuple(events.trace.names[int(code)] for code in codes[begun[0] : begun[0] + length]),
            len(begun),
            time := int((sums[begun + length] - sums[begun]).sum()),
            time / max(int(sums[-1]), 1),
            f"d{int(rows[begun[0]])}",
        )
        for length, begun in chosen
    ]


def _repeated(codes: Times, sums: Times) -> list[tuple[int, Times, int]]:
    """(kernels, where each begins, ns covered) of the best few of each length that occur twice or more."""
    found: list[tuple[int, Times, int]] = []
    ids = codes
    for length in range(2, min(LONGEST, len(codes) // 2) + 1):
        pairs = ids[:-1] * (int(codes.max()) + 1) + codes[length - 1 :]
        _, ids = distinct(pairs)
        covered = np.bincount(ids, sums[length:] - sums[: len(ids)])
        for which in np.argsort(-np.where(np.bincount(ids) > 1, covered, 0), kind="stable")[:SHOWN].tolist():
            begun = _apart(np.flatnonzero(ids == which), length)
            if len(begun) > 1:
                found.append((length, begun, int((sums[begun + length] - sums[begun]).sum())))
    return found


def _apart(begun: Times, length: int) -> Times:
    """Of places in order, from the first on those that do not overlap."""
    kept, free = [], -1
    for place in begun.tolist():
        if place >= free:
            kept.append(place)
            free = place + length
    return np.array(kept, np.int64)


# Device events by name: how often and how long, in all and on each rank.


@dataclass(frozen=True)
class KernelTimes:
    """An element per name; times in ns. `median` is the upper one of an even number."""

    codes: Array
    """Of the names, rising."""
    count: Times
    total: Times
    least: Times
    median: Times
    most: Times
    by_rank: Mapping[int, Times]
    """`total` of each rank, shape of `codes`."""


def kernel_times(names: Array, lengths: Times, ranks: Array) -> KernelTimes:
    """Of device events with these name codes, lengths in ns and ranks, shape (n,) each."""
    order = np.argsort(names, kind="stable")
    lengths, ranks = lengths[order], ranks[order]
    codes, first, count = np.unique(names[order], return_index=True, return_counts=True)
    every, which = np.unique(ranks, return_inverse=True)
    pairs = np.repeat(np.arange(len(codes)), count) * max(len(every), 1) + which
    # Sums in doubles are exact below 2^53 ns, a hundred days.
    sums = np.bincount(pairs, lengths, len(codes) * len(every)).astype(np.int64).reshape(len(codes), len(every))
    middle = (
        [np.partition(own, len(own) // 2)[len(own) // 2] for own in np.split(lengths, first[1:])] if len(codes) else []
    )
    empty = np.empty(0, np.int64)
    return KernelTimes(
        codes,
        count,
        sums.sum(axis=1),
        np.minimum.reduceat(lengths, first) if len(codes) else empty,
        np.array(middle, np.int64),
        np.maximum.reduceat(lengths, first) if len(codes) else empty,
        {int(rank): sums[:, place] for place, rank in enumerate(every.tolist())},
    )


# The what-if controls of the advice page, and the changes of the replay they stand for.

MIB = 1 << 20


@dataclass(frozen=True)
class Slider:
    """A knob: its name in the address, its label, and its stops; the first is «as recorded»."""

    key: str
    label: str
    stops: tuple[float, ...]
    unit: str

    def describe(self, value: float) -> str:
        """A stop in words."""
        number = f"{value:g}"
        return f"×{number}" if self.unit == "×" else f"{number} {self.unit}".strip()


SLIDERS = (
    Slider("bucket", "gradient buckets", (5, 10, 25, 50, 100, 200), "MiB"),
    Slider("link", "bandwidth of the link", (0.5, 2, 4, 8), "×"),
    Slider("micro", "micro-batches", (2, 4, 8, 16, 32, 64), ""),
    Slider("workers", "loader workers", (1, 2, 4, 8), ""),
)
SWITCHES: Mapping[str, tuple[str, Change]] = {
    "syncs": ("no blocking calls", RemovedSyncs()),
    "graphs": ("CUDA graphs", CapturedGraphs()),
    "gc": ("no garbage collection", NoCollector()),
    "host": ("other host work aside", NoHostWork()),
    "copies": ("pinned copies", PinnedCopies()),
    "allocator": ("no allocator calls", NoAllocatorStalls()),
    "half": ("16-bit gradients", WireBytes(0.5)),
}
"""Chips by name in the address: label and change."""
SWITCHED, RANK = "without", "replaced"
"""The address's names for the chips, and for the rank replaced."""


class WhatIf:
    """Predictions of changes by replay; what was once refused outright is remembered."""

    def __init__(self, predict: Predict, critical_path: Callable[[], abc_Sequence[PathSpan]] = list) -> None:
        self.predict = predict
        self.critical_path = critical_path
        """Of what is replayed, as recorded."""
        self._lock = Lock()
        self._impossible: dict[str, str] | None = None

    def impossible(self) -> Mapping[str, str]:
        """The controls, by name in the address, all of whose changes the trace can't support, each with the reason."""
        with self._lock:
            if self._impossible is None:
                changes = {slider.key: [_change(slider.key, stop) for stop in slider.stops] for slider in SLIDERS}
                changes |= {key: [change] for key, (_, change) in SWITCHES.items()}
                self._impossible = {key: why for key, own in changes.items() if (why := self._refused(own))}
            return self._impossible

    def _refused(self, changes: abc_Sequence[Change]) -> str:
        """Why none of them can be predicted; the first that can ends the search."""
        why = ""
        for change in changes:
            outcome = self.predict([change])
            if not isinstance(outcome, Refused):
                return ""
            why = why or outcome.why
        return why


def chosen(state: Mapping[str, str]) -> list[tuple[str, Change]]:
    """The changes in the address, each with its label; invalid ones are ignored."""
    found: list[tuple[str, Change]] = []
    for slider in SLIDERS:
        place = _whole(state.get(slider.key))
        if place is not None and 1 <= place <= len(slider.stops):
            value = slider.stops[place - 1]
            found.append((f"{slider.label}: {slider.describe(value)}", _change(slider.key, value)))
    for name in state.get(SWITCHED, "").split(","):
        if name in SWITCHES:
            found.append(SWITCHES[name])
    rank = _whole(state.get(RANK))
    if rank is not None:
        found.append((f"rank {rank} as fast as its peers", ReplacedRank(rank)))
    return found


def _change(key: str, value: float) -> Change:
    if key == "bucket":
        return BucketSize(int(value) * MIB, int(value) * MIB)
    if key == "link":
        return LinkSpeed(bandwidth=value)
    if key == "micro":
        return MicroBatches(int(value))
    return LoaderWorkers(int(value))


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 9 else None
