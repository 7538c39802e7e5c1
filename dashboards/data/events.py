"""The events of a run for the timeline: tracks on one clock, and links from events to collectives."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.dashboards.data.run_clock import RunClock
from gpuscope.dashboards.data.tracks import GROUPS, Group, Track, tracks
from gpuscope.report.schema.document import Evidence
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

SHOWN_AT_FIRST: tuple[Group, ...] = ("steps", "streams", "ranges", "threads")
MAX_TRACKS = 60
"""Rows drawn at once; more can't be distinguished on a screen."""


@dataclass(frozen=True)
class Choice:
    """Tracks to draw, and how many did not fit."""

    tracks: list[Track]
    left_out: int


class Events:
    """All events of a run, laid out once; read-only afterwards."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.clock = RunClock(trace)
        self.tracks: Sequence[Track] = tracks(trace, self.clock)
        self.tracks_of_thread = _by_thread(trace, self.tracks)
        table = trace["collectives"]
        self._collective_of = {"d": _rows_by(table["event"]), "h": _rows_by(table["host_event"])}
        filled = [track for track in self.tracks if len(track)]
        self.first = min((int(track.start[0]) for track in filled), default=0)
        self.last = max((int(track.reach[-1]) for track in filled), default=1)

    @property
    def window(self) -> tuple[int, int]:
        """All events, with a small margin on both sides."""
        room = max((self.last - self.first) // 100, 1)
        return self.first - room, self.last + room

    def present(self) -> list[Group]:
        """The groups of tracks this run has."""
        have = {track.group for track in self.tracks}
        return [group for group in GROUPS if group in have]

    def choose(self, ranks: Collection[int] | None, groups: Collection[str]) -> Choice:
        """The tracks of these ranks and groups, as many as fit on a screen."""
        found = [one for one in self.tracks if one.group in groups and (ranks is None or one.rank in ranks)]
        if len(found) <= MAX_TRACKS:
            return Choice(found, 0)
        # The busiest of each rank, so that a rank with many threads does not crowd out another.
        share = max(MAX_TRACKS // len({one.rank for one in found}), 1)
        kept: list[Track] = []
        for rank in dict.fromkeys(one.rank for one in found):
            own = [one for one in found if one.rank == rank]
            best = sorted(own, key=lambda one: (one.group not in ("steps", "streams"), -len(one)))[:share]
            kept += [one for one in own if any(one is chosen for chosen in best)]
        kept = kept[:MAX_TRACKS]
        return Choice(kept, len(found) - len(kept))

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
        """The event that carried a collective out: `d12`, `h3`, or empty."""
        table = self.trace["collectives"]
        for letter, column in (("d", "event"), ("h", "host_event")):
            if table[column][row] != NA:
                return f"{letter}{int(table[column][row])}"
        return ""

    def place_of(self, ref: str) -> tuple[str, tuple[int, int]] | None:
        """The track an event is drawn on, and its span on the run's clock; None for no event."""
        name = {"d": "device_events", "h": "host_events"}.get(ref[:1], "")
        if not name or not ref[1:].isascii() or not ref[1:].isdigit() or int(ref[1:]) >= len(self.trace[name]):
            return None
        table, row = self.trace[name], int(ref[1:])
        rank = int(table["rank"][row])
        start, end = (self.clock.shown(rank, int(table[column][row])) for column in ("start", "end"))
        for track in self.tracks:
            if track.table == name and track.rank == rank:
                low, high = np.searchsorted(track.start, [start, start + 1])
                if row in track.rows[low:high]:
                    return track.key, (start, end)
        return None

    def locate(self, evidence: Evidence) -> str:
        """The event (`d12`, `h3`) that a piece of evidence lies in, by name and time; empty where it is only a span."""
        code = self.trace.names.find(evidence["name"])
        at = self.clock.shown(evidence["rank"], evidence["start_ns"])
        for letter, name in (("d", "device_events"), ("h", "host_events")):
            for track in self.tracks:
                if track.table != name or track.rank != evidence["rank"]:
                    continue
                low, high = np.searchsorted(track.reach, at, "left"), np.searchsorted(track.start, at, "right")
                places = np.arange(low, high)
                rows = track.rows[places[track.end[places] >= at]]
                named = rows[self.trace[name]["name"][rows] == code]
                if len(named):
                    return f"{letter}{named[-1]}"
        return ""


def _by_thread(trace: Trace, tracks: Sequence[Track]) -> dict[int, list[Track]]:
    found: dict[int, list[Track]] = {}
    for track in tracks:
        if track.table == "host_events" and len(track):
            found.setdefault(int(trace["host_events"]["thread"][track.rows[0]]), []).append(track)
    return found


def _rows_by(column: Times) -> dict[int, int]:
    return {int(event): row for row, event in enumerate(column.tolist()) if event != NA}
