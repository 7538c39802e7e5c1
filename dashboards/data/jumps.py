"""Where to look next: the longest gaps, the collectives in which a rank is latest, the slowest steps;
what an event leads to, and the critical path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpuscope.analyzers.replay.critical_path import PathSpan
from gpuscope.dashboards.data.event_details import ended_before, event, last_to_come
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.range_statistics import longest_compute
from gpuscope.dashboards.state import View
from gpuscope.schema.document import Report
from gpuscope.words import units

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
