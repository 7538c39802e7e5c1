"""A window of several tracks as binary columns: what the timeline's canvas draws.

Layout: the header's length in bytes (uint32), the header (JSON, padded with spaces so that a multiple of 8 is reached),
then the columns of `COLUMNS` one after the other, each padded to a multiple of 8. All are little-endian.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np

from gpuscope.analyzers.replay.engine import PathSpan
from gpuscope.dashboards.data.counter_tracks import CounterTrack, counter_detail
from gpuscope.dashboards.data.event_details import ended_before, event, last_to_come, longest_compute
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.tracks import Track, Window, detail
from gpuscope.dashboards.state import View
from gpuscope.schema.document import Report
from gpuscope.trace.table import Array, Times
from gpuscope.words import units
from gpuscope.words.units import plain_call, short_kernel

# Where to look next: the longest gaps, the collectives in which a rank is latest, the slowest steps;
# what an event leads to, and the critical path.

MOST = 50


def jumps(events: Events, report: Report, view: View) -> dict[str, list[dict[str, Any]]]:
    """For the canvas, of the ranks and steps shown, by key; times in ns from the run's origin."""
    found = {"gap": _gaps(events, report, view), "late": _late(events, view), "step": _steps(events, report, view)}
    return {
        kind: [{**one, "said": f"{place} of {len(own)}: {one['said']}"} for place, one in enumerate(own, 1)]
        for kind, own in ((kind, list(all_)[:MOST]) for kind, all_ in found.items())
    }


def _placed(events: Events, rank: int, start: int, length: int, said: str, ref: str = "") -> dict[str, Any]:
    begun = events.clock.shown(rank, start) - events.origin
    return {"start": begun, "end": begun + length, "ref": ref, "said": said}


def _gaps(events: Events, report: Report, view: View) -> Iterator[dict[str, Any]]:
    for one in sorted(report.get("gaps", []), key=lambda one: -one["dur_ns"]):
        if view.has_rank(one["rank"]) and view.has_step(one["step"]):
            said = f"rank {one['rank']} idles {units.duration(one['dur_ns'])}"
            yield _placed(events, one["rank"], one["start_ns"], one["dur_ns"], said)


def _late(events: Events, view: View) -> Iterator[dict[str, Any]]:
    for row, late in events.latest[: 4 * MOST]:
        found = event(events, events.event_of_collective(row))
        if found is not None and view.has_rank(found.rank):
            said = f"rank {found.rank} comes {units.duration(late)} after the first"
            yield _placed(events, found.rank, found.start - late, late, said, found.ref)


def _steps(events: Events, report: Report, view: View) -> Iterator[dict[str, Any]]:
    steady = [one for one in report["steps"] if one["role"] != "setup" and view.has_rank(one["rank"])]
    seen = set()
    for one in sorted(steady, key=lambda one: -one["dur_ns"]):
        if one["step"] is None or one["step"] in seen or not view.has_step(one["step"]):
            continue
        seen.add(one["step"])  # once, by its slowest rank
        said = f"step {one['step']} takes {units.duration(one['dur_ns'])} on rank {one['rank']}"
        yield _placed(events, one["rank"], one["start_ns"], one["dur_ns"], said)


def critical_path(events: Events, path: Sequence[PathSpan]) -> list[tuple[int, str, int, int]]:
    """(rank, what runs, start, end) of each stretch, for the canvas."""

    def at(one: PathSpan, time: int) -> int:
        return events.clock.shown(one.rank, time) - events.origin

    return [(one.rank, one.on, at(one, one.start), at(one, one.end)) for one in path]


def follow(events: Events, ref: str) -> tuple[str, str] | None:
    """What an event leads to, and why: a launch to what it launched, a kernel to what it waited for, a collective to
    the rank that came last, that rank's collective to what it computed meanwhile. None at an end of the chain."""
    own = event(events, ref)
    if own is None:
        return None
    if (group := last_to_come(events, ref)) is not None:
        last, first = group
        if last.ref != ref:
            return last.ref, f"rank {last.rank} was late"
        found = longest_compute(events, own.rank, (first.shown, last.shown)) if first.shown < last.shown else ""
        if found:
            return found, "it computed while others waited"
    if ref[0] == "h":
        launched = np.flatnonzero(events.trace["device_events"]["launch"] == int(ref[1:]))
        return (f"d{launched[0]}", "launched") if len(launched) else None
    before = ended_before(events, own)
    return (before, "waited for") if before else None


TILE = 512
"""Cells of a tile: windows begin and end at multiples of it, so that a tile is asked for once."""
NAME = 160
"""Cells of a name sent, which a search looks at; the details of an event have all of it."""
COLUMNS = (
    ("start", "<f8"),
    ("end", "<f8"),
    ("row", "<u4"),
    ("name", "<u4"),
    ("look", "u1"),
    ("at", "<u4"),
    ("busy", "<u2"),
    ("count", "<u4"),
    ("cellRow", "<u4"),
    ("cellName", "<u4"),
    ("cellLook", "u1"),
)
"""Of events drawn by themselves: times in ns from the run's origin, row of their table. Of cells: their number in
the window, how busy in 1/65535, events that start there, row, name and look of the longest. Counters have cells only:
`busy` is their mean and `cellRow` the largest sample, in 1/65535 of their `top`."""
UNNAMED = 0xFFFF_FFFF
FULL = 65535
MARKED = 1 << 20
"""Codes up to which a table of marks is used."""


def window_columns(events: Events, tracks: Sequence[int], level: int, first: int, last: int) -> bytes:
    """The tiles [first, last) of some tracks. A tile's number is counted from the run's origin."""
    window = Window(events.origin + ((first * TILE) << level), level, (last - first) * TILE)
    held: dict[str, list[Array]] = {name: [] for name, _ in COLUMNS}
    counts, kernels = [], [np.empty(0, np.int64)]
    for number in tracks:
        counter = number - len(events.tracks)
        one = (
            _counter(events.counters[counter], window)
            if counter >= 0
            else _track(events, events.tracks[number], window)
        )
        counts.append([number, len(one["start"]), len(one["at"])])
        if counter < 0 and events.tracks[number].table == "device_events":
            kernels += [one["name"], one["cellName"]]
        for name in held:
            held[name].append(one[name])
    joined = {name: np.concatenate(parts) if parts else np.empty(0) for name, parts in held.items()}
    codes = _distinct(np.concatenate((joined["name"], joined["cellName"])).astype(np.int64))
    short = _short_names(events, codes, set(_distinct(np.concatenate(kernels))))
    names = _names(events, codes)
    header = {"level": level, "first": first, "last": last, "tracks": counts, "names": names, "short": short}
    text = json.dumps(header, separators=(",", ":")).encode(errors="backslashreplace")
    text += b" " * (-(len(text) + 4) % 8)
    return np.uint32(len(text)).tobytes() + text + b"".join(_packed(joined[name], kind) for name, kind in COLUMNS)


def _distinct(codes: Times) -> list[int]:
    """Each code once, rising, without `UNNAMED`; marked in a table where that is small: quicker than sorting."""
    codes = codes[codes != UNNAMED]
    most = int(codes.max(initial=0))
    if most > MARKED:
        return [int(code) for code in np.unique(codes)]
    seen = np.zeros(most + 1, np.bool_)
    seen[codes] = True
    return [int(code) for code in np.flatnonzero(seen)]


def _packed(values: Array, kind: str) -> bytes:
    data = np.ascontiguousarray(values, kind).tobytes()
    return data + b"\0" * (-len(data) % 8)


def _track(events: Events, track: Track, window: Window) -> dict[str, Array]:
    found = detail(track, window)
    busy = np.maximum(np.round(found.busy * (FULL / (1 << window.level))), 1)
    return {
        "start": track.start[found.wide] - events.origin,
        "end": track.end[found.wide] - events.origin,
        "row": track.rows[found.wide],
        "name": _codes(events, track, found.wide),
        "look": track.look[found.wide],
        "at": found.at,
        "busy": busy,
        "count": found.count,
        "cellRow": track.rows[found.place],
        "cellName": _codes(events, track, found.place),
        "cellLook": track.look[found.place],
    }


def _counter(track: CounterTrack, window: Window) -> dict[str, Array]:
    found = counter_detail(track, window)
    none, same = np.empty(0, np.int64), np.zeros(len(found.at), np.int64)
    scale = FULL / track.top
    return {
        **dict.fromkeys(("start", "end", "row", "name", "look"), none),
        "at": found.at,
        "busy": np.clip(np.round(found.mean * scale), 0, FULL),
        "count": found.count,
        "cellRow": np.clip(np.round(found.most * scale), 0, FULL),
        "cellName": same + UNNAMED,
        "cellLook": same,
    }


def _codes(events: Events, track: Track, places: Times) -> Array:
    column = "step" if track.table == "steps" else "name"
    codes = events.trace[track.table][column][track.rows[places]].astype(np.int64)
    return np.where(codes < 0, UNNAMED, codes + (len(events.trace.names) if track.table == "steps" else 0))


def _names(events: Events, codes: Sequence[int]) -> dict[int, str]:
    pool, known = events.trace.names, events.shown_names
    for code in codes:
        if code not in known:
            step = code - len(pool)
            known[code] = f"step {step}" if step >= 0 else units.crop(units.clean(pool[code]), NAME)
    return {code: known[code] for code in codes}


def _short_names(events: Events, codes: Sequence[int], kernels: Set[int]) -> dict[int, str]:
    """What is written on the events, where that is not the name itself: C++ and autograd's names, shortened."""
    pool, known = events.trace.names, events.short_names
    for code in codes:
        if code not in known and code < len(pool):
            name = pool[code]
            found = short_kernel(name) if code in kernels else plain_call(name)
            known[code] = units.clean(found) if found != name else ""
    return {code: short for code in codes if (short := known.get(code))}


def overview(
    events: Events, tracks: Sequence[Track], columns: int, window: tuple[int, int] | None = None
) -> list[dict[str, Any]]:
    """The whole run, or a window, in `columns`: of each kind of device work, the share of a column it fills, mean over
    ranks."""
    edges = np.linspace(*(window or events.window), columns + 1).astype(np.int64)
    width = np.maximum(np.diff(edges), 1)
    sums: dict[int, Array] = {}
    streams = [track for track in tracks if track.group == "streams" and len(track)]
    for track in streams:
        look = int(np.bincount(track.look[:: max(len(track) // 1000, 1)]).argmax())
        sums[look] = sums.get(look, np.zeros(columns)) + np.diff(track.busy_before(edges)) / width
    ranks = max(len({track.rank for track in streams}), 1)
    return [
        {"look": look, "share": np.round(np.minimum(total / ranks, 1), 3).tolist()}
        for look, total in sorted(sums.items())
    ]
