"""What of a job's time no step has: start-up, evaluations, checkpoints, restarts, pauses; and the goodput."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpuscope.analyzers.job_logs.log_records import JobRecords, LogEvent
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array

SECOND = 1_000_000_000
LEAST_PAUSE = 5
"""Median steps, and one second: shorter gaps between two lines are within what lines are late by."""


@dataclass
class Occurrence:
    """An evaluation or a checkpoint; `dur` is None where nothing tells it."""

    dur: int | None
    line: int
    source: int
    text: str
    step: int | None = None


@dataclass
class LostTime:
    """All in ns; None where the log has no clock."""

    total: int | None = None
    startup: int | None = None
    evaluations: list[Occurrence] = field(default_factory=list)
    checkpoints: list[Occurrence] = field(default_factory=list)
    restarts: list[tuple[int, int | None, int]] = field(default_factory=list)
    """(index of the first row after it, ns lost, steps that are run again)."""
    pauses: list[tuple[int, int]] = field(default_factory=list)
    """(index of the row after it, ns beyond the steps and what is known between)."""
    steps: int | None = None
    marks: list[LogEvent] = field(default_factory=list)

    @property
    def evaluation(self) -> int:
        return sum(one.dur or 0 for one in self.evaluations)

    @property
    def checkpoint(self) -> int:
        return sum(one.dur or 0 for one in self.checkpoints)

    @property
    def restart(self) -> int:
        return sum(lost or 0 for _, lost, _ in self.restarts)


def lost_time(records: JobRecords, median: float) -> LostTime:
    """What a job's time goes into beside its steps."""
    found = LostTime()
    steps = records.steps
    begin, run, end = _ends(records, found)
    if begin is not None and end is not None and end > begin:
        found.total = end - begin
    if begin is not None:
        first = run
        if first is None and len(steps) and steps.time[0] != NA:
            first = int(steps.time[0] - steps.dur[0] * steps.covers[0])
        if first is not None:
            found.startup = max(first - begin, 0)
    found.evaluations = _occurrences(records, "evaluation", "eval", median)
    found.checkpoints = _occurrences(records, "checkpoint", "checkpoint", median)
    found.restarts = list(_restarts(records))
    found.pauses = _pauses(records, found, median)
    found.steps = _steps_time(records, found, median)
    return found


def _ends(records: JobRecords, found: LostTime) -> tuple[int | None, int | None, int | None]:
    """(begin, the first step's begin where a mark tells it, end)."""
    marks: dict[str, list[LogEvent]] = {}
    for event in records.events:
        if event.time is not None:
            marks.setdefault(event.what, []).append(event)

    def edge(*names: str, last: bool = False) -> LogEvent | None:
        own = [event for name in names for event in marks.get(name, [])[::1]]
        if not own:
            return None
        return max(own, key=lambda one: one.time or 0) if last else min(own, key=lambda one: one.time or 0)

    begin = edge("init_start") or edge("first")
    run, stop = edge("run_start"), edge("run_stop", last=True)
    end = stop or edge("last", last=True)
    if run is not None and begin is not None and begin.what == "first":
        begin = edge("first", "run_start")
    found.marks = [one for one in (begin, run, end) if one is not None]
    first, ran, ended = (None if one is None else one.time for one in (begin, run, end))
    steps = records.steps
    known = steps.time[steps.time != NA]
    if first is None and len(known):
        # A progress bar's own clock begins with its first step.
        bar = records.basis == "rate"
        first = 0 if bar else int(known[0] - steps.dur[0] * steps.covers[0])
        ended = int(known.max())
        runtime = [event.dur for event in records.events if event.what == "train_runtime" and event.dur]
        if bar and runtime:
            ended = max(ended, sum(runtime))
    elif ended is not None and len(known) and stop is None:
        ended = max(ended, int(known.max()))
    return first, ran, ended


def _occurrences(records: JobRecords, what: str, mark: str, median: float) -> list[Occurrence]:
    """Those whose duration a line tells; else from a start to its stop, or to the next step's begin."""
    timed: list[Occurrence] = []
    ranks = [event.rank for event in records.events if event.what.startswith((what, f"{mark}_")) and event.rank != NA]
    main = min(ranks, default=NA)
    own = [
        event
        for event in records.events
        if event.what in (what, f"{what}_start", f"{what}_stop", f"{mark}_start", f"{mark}_stop")
        and event.rank in (NA, main)
    ]
    for event in own:
        if event.what == what and event.dur is not None:
            timed.append(Occurrence(event.dur, event.line, event.source, event.text, event.step))
    if timed:
        return timed
    found: list[Occurrence] = []
    open_at: LogEvent | None = None
    for event in own:
        if event.what.endswith("_start"):
            if open_at is not None:
                found.append(_until_next_step(records, open_at, median))
            open_at = event
        elif event.what.endswith("_stop"):
            if open_at is not None and open_at.time is not None and event.time is not None:
                spent = max(event.time - open_at.time, 0)
                found.append(Occurrence(spent, open_at.line, open_at.source, open_at.text, open_at.step))
            elif open_at is None:
                found.append(_before(records, event, median))
            open_at = None
    if open_at is not None:
        found.append(_until_next_step(records, open_at, median))
    return found


def _until_next_step(records: JobRecords, event: LogEvent, median: float) -> Occurrence:
    """What begins and says nothing of its end lasts until the next step can have begun."""
    steps, spent = records.steps, None
    own = np.flatnonzero((steps.source == event.source) & (steps.line > event.line) & (steps.time != NA))
    if len(own) and event.time is not None:
        at = int(own[0])
        spent = max(int(steps.time[at] - event.time - median * steps.covers[at]), 0)
    return Occurrence(spent, event.line, event.source, event.text, event.step)


def _before(records: JobRecords, event: LogEvent, median: float) -> Occurrence:
    """What says only that it has ended began after the last step."""
    del median
    steps, spent = records.steps, None
    own = np.flatnonzero((steps.source == event.source) & (steps.line < event.line) & (steps.time != NA))
    if len(own) and event.time is not None:
        spent = max(event.time - int(steps.time[own[-1]]), 0)
    return Occurrence(spent, event.line, event.source, event.text, event.step)


def _restarts(records: JobRecords) -> list[tuple[int, int | None, int]]:
    steps = records.steps
    found: list[tuple[int, int | None, int]] = []
    for start in steps.starts.tolist():
        if not start:
            continue
        lost, again = None, 0
        if steps.time[start] != NA and steps.time[start - 1] != NA:
            spent = int(steps.time[start] - steps.time[start - 1] - steps.dur[start] * steps.covers[start])
            lost = max(spent, 0)
        if steps.step[start] != NA and steps.step[start - 1] != NA:
            again = max(int(steps.step[start - 1] - steps.step[start] + steps.covers[start]), 0)
        found.append((start, lost, again))
    return found


def _pauses(records: JobRecords, found: LostTime, median: float) -> list[tuple[int, int]]:
    """Between two lines with steps, what neither the steps nor an event between them account for."""
    steps = records.steps
    if len(steps) < 4 or (steps.time == NA).any() or records.basis in ("rate", "time_stamps"):
        return []
    passed = np.diff(steps.time).astype(np.float64)
    ran = (np.maximum(steps.dur, median) * steps.covers)[1:].astype(np.float64)
    left = passed - ran
    left[np.maximum(steps.starts[steps.starts > 0] - 1, 0)] = 0
    for one in (*found.evaluations, *found.checkpoints):
        at = _after(steps.line, steps.source, one.line, one.source)
        if at is not None and at > 0:
            left[at - 1] -= one.dur if one.dur is not None else left[at - 1]
    usual = float(np.median(left))
    least = max(LEAST_PAUSE * median, float(SECOND), 0.1 * float(np.median(passed)))
    return [(int(at) + 1, int(left[at])) for at in np.flatnonzero(left - max(usual, 0.0) > least)]


def _after(lines: Array, sources: Array, line: int, source: int) -> int | None:
    own = np.flatnonzero(sources == source)
    place = int(np.searchsorted(lines[own], line))
    return int(own[place]) if place < len(own) else None


def repeated(records: JobRecords) -> Array:
    """Which rows are of steps that a later attempt ran again: work that was lost."""
    steps = records.steps
    lost = np.zeros(len(steps), np.bool_)
    if (steps.step == NA).any():
        return lost
    for start in steps.starts.tolist():
        if start:
            lost[:start] |= steps.step[:start] >= steps.step[start]
    return lost


def _steps_time(records: JobRecords, found: LostTime, median: float) -> int | None:
    """The time of all steps, each once: those between two lines take as long as the line says that follows them."""
    steps = records.steps
    if not len(steps):
        return None
    useful = ~repeated(records)
    spent = float(np.sum(steps.dur[useful].astype(np.float64) * steps.covers[useful]))
    counted = float(np.sum(steps.covers[useful]))
    told = records.settings.get("steps_done", 0.0)
    if told and counted and told > counted:
        spent += (told - counted) * median
    if found.total is not None:
        beside = (found.startup or 0) + found.evaluation + found.checkpoint + found.restart
        spent = min(spent, max(float(found.total - beside), 0.0))
    return round(spent)


def steps_run(records: JobRecords) -> int:
    """How many steps the job ran, as far as their numbers tell; each once."""
    told = records.settings.get("steps_done")
    if told:
        return round(told)
    return int(np.sum(records.steps.covers[~repeated(records)])) if len(records.steps) else 0


def shares(found: LostTime, parts: Sequence[int]) -> float:
    """Of the total."""
    return sum(parts) / found.total if found.total else 0.0
