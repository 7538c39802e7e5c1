"""The steady step of a run that is closest to the median, as strips of how busy the device is."""

from __future__ import annotations

import numpy as np

from gpuscope.dashboards.data.open_runs import OpenRun
from gpuscope.dashboards.data.rows.event_styles import EVENT_STYLES
from gpuscope.dashboards.data.rows.tracks import Track
from gpuscope.trace.columns.table import Array
from gpuscope.trace.intervals import measure_before, union
from gpuscope.when_used import dataclass

COLUMNS = 300


@dataclass(frozen=True)
class Strip:
    """`busy` by kind of work: share of each of `COLUMNS` equal parts of the step that any of it runs in."""

    step: int
    duration: int
    busy: dict[str, Array]


def typical_step(run: OpenRun) -> Strip | None:
    """Of the run's lowest rank; None where it has no steady steps or no events."""
    if run.events is None or run.report["step_time"] is None:
        return None
    steps = [one for one in run.report["steps"] if one["role"] == "steady" and one["step"] is not None]
    first = min((one["rank"] for one in steps), default=None)
    own = [one for one in steps if one["rank"] == first]
    if not own:
        return None
    middle = run.report["step_time"]["median_ns"]
    step = min(own, key=lambda one: abs(one["dur_ns"] - middle))
    start = run.events.clock.shown(step["rank"], step["start_ns"])
    edges = start + (np.arange(COLUMNS + 1) * step["dur_ns"]) // COLUMNS
    tracks = run.events.streams(step["rank"])
    busy = {}
    for look, (label, _) in EVENT_STYLES.items():
        share = busy_share(tracks, look, edges)
        if share is not None:
            busy[label] = share
    number = step["step"]
    assert number is not None
    return Strip(number, step["dur_ns"], busy)


def busy_share(tracks: list[Track], look: int, edges: Array) -> Array | None:
    """Share of each column between `edges` that any event of this look runs in; None where none does."""
    starts, ends = [], []
    for track in tracks:
        low, high = np.searchsorted(track.reach, edges[0], "right"), np.searchsorted(track.start, edges[-1], "left")
        of_kind = low + np.flatnonzero(track.look[low:high] == look)
        starts.append(track.start[of_kind])
        ends.append(track.end[of_kind])
    if not any(map(len, starts)):
        return None
    covered = np.diff(measure_before(union(np.concatenate(starts), np.concatenate(ends)), edges))
    return np.asarray(covered / np.maximum(np.diff(edges), 1))
