"""The events of a run for the timeline: tracks on one clock, and links from events to collectives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from itertools import groupby
from threading import RLock

import numpy as np

from gpuscope.dashboards.data.rows.counter_tracks import CounterTrack, counter_tracks
from gpuscope.dashboards.data.rows.run_clock import RunClock
from gpuscope.dashboards.data.rows.tracks import STEP, Track, host_tracks, step_tracks, stream_tracks
from gpuscope.schema.document import Report
from gpuscope.schema.event_id import EventId
from gpuscope.trace.columns.table import Times, rows_of_rank
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Lane, Trace


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
    def tracks(self) -> Sequence[Track]:
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
    def counters(self) -> Sequence[CounterTrack]:
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
