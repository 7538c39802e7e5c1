"""The runs of a dashboard: each analysed once, then read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import numpy as np

from gpuscope.analyzers.comparison.compare import StoredRun, TrendPoint, trend
from gpuscope.analyzers.queries.engine import Rows, RunData, query
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.runner import Options, run
from gpuscope.dashboards.data.counter_tracks import EVENT_STYLES
from gpuscope.dashboards.data.events import Events, KernelTimes, WhatIf, kernel_times
from gpuscope.dashboards.data.tracks import Track
from gpuscope.dashboards.state import View
from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.report.read_report import read_report
from gpuscope.schema.document import Report
from gpuscope.sources.opening import inputs
from gpuscope.store.store import opened, real_path
from gpuscope.trace.intervals import measure_before, union
from gpuscope.trace.table import Array, Mask
from gpuscope.trace.trace import Trace, merge
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import short_kernels

REPORT_ONLY = "this is a report without its trace: open the trace itself (gpuscope dashboard TRACE) to see events"


QUERIES = 2
"""Queries answered at once: each takes memory for the tables that it reads."""
ALWAYS = frozenset(
    ("trace", "verdict", "ranks", "steps", "collectives", "stragglers", "kernels", "findings", "problems", "analyzers")
)
"""Keys of every report since the first schema; later ones may be missing from an older file."""


@dataclass(frozen=True)
class OpenRun:
    """One run. `key` is used in addresses, `label` is shown, `report` the document of `analyze --json`."""

    key: str
    label: str
    report: Report
    trace: Trace | None
    """All events; None for a report alone."""
    events: Events | None = None
    """The events laid out for the timeline; None where there are none."""
    what_if: WhatIf | None = None
    """Predictions of changes by replay; None for a report alone."""
    files: tuple[str, ...] = ()
    """What was read, by absolute paths and URLs, as the run store knows them."""

    @property
    def why_no_events(self) -> str:
        """Why `events` is None, and what to record."""
        return REPORT_ONLY if self.trace is None else "the files of this run hold no events, only records"

    @cached_property
    def kernel_times(self) -> KernelTimes | None:
        """The kernels of all ranks by name; computed once, None without a trace."""
        if self.trace is None:
            return None
        device = self.trace["device_events"]
        return kernel_times(device["name"], device["end"] - device["start"], device["rank"])

    @cached_property
    def queried(self) -> RunData:
        """What SQL can ask."""

        def trace() -> Trace:
            if self.trace is None:
                raise InputError(REPORT_ONLY)
            return self.trace

        return RunData(trace, lambda: self.report)

    @property
    def tables(self) -> Analysis:
        """The report with its sections as DataFrames."""
        return Analysis(self.report)


@dataclass(frozen=True)
class NotOpened:
    """A path of the command line that could not be opened; `key` would have been its run's."""

    key: str
    path: str
    error: GpuscopeError


class NoSuchRunError(LookupError):
    """An address names a run that is not open: `what` says so, the message also which are."""

    def __init__(self, what: str, open_runs: Iterable[OpenRun]) -> None:
        self.what = what
        listed = ", ".join(f"{run.key} ({units.clean(run.label)})" for run in open_runs)
        super().__init__(f"{what}. Open: {listed}")


class Runs(Mapping[str, OpenRun]):
    """The opened runs by key, in the order given; nothing is added later."""

    def __init__(
        self, runs: Sequence[OpenRun], store: Path | None = None, not_opened: Sequence[NotOpened] = ()
    ) -> None:
        if not runs:
            raise ValueError("a dashboard needs a run")
        self._runs = {one.key: one for one in runs}
        self.store = store
        """The run store for the history; None if there is none."""
        self.not_opened = tuple(not_opened)
        self.asking = BoundedSemaphore(QUERIES)

    def __getitem__(self, key: str) -> OpenRun:
        return self._runs[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    @property
    def first(self) -> OpenRun:
        """The run shown if an address names none."""
        return next(iter(self._runs.values()))

    def named(self, key: str) -> OpenRun:
        """The run of that key; the first for an address that names none. Raises `NoSuchRunError`."""
        if not key:
            return self.first
        if key not in self._runs:
            failed = next((f": {one.path} could not be opened" for one in self.not_opened if one.key == key), "")
            raise NoSuchRunError(units.clean(f"No run {units.crop(key, 40)} is open{failed}"), self._runs.values())
        return self._runs[key]


def open_run(key: str, path: str, options: Options, begun: Callable[[str], None] = lambda _: None) -> OpenRun:
    """Open and analyse one run: anything `gpuscope analyze` takes, or the JSON report it wrote.

    Raises the errors of reading and analysing.
    """
    label = Path(path).name or path
    report = read_report(Path(path), ALWAYS)
    if report is not None:
        return OpenRun(key, label, report, None, files=_real(entry["path"] for entry in report["trace"]["sources"]))
    traces: list[Trace] = []
    found = inputs([path], options.ranks)
    analysis = run(found, options, begun, keep=traces.append)
    trace = merge(traces)
    has_events = len(trace["device_events"]) or len(trace["host_events"])
    replayer = analysis.replayer
    what_if = WhatIf(replayer.predict, lambda: replayer.critical_path) if replayer is not None else None
    files = _real(item.url or str(item.path) for item in found)
    return OpenRun(
        key, label, analysis.report, trace, Events(trace, analysis.report) if has_events else None, what_if, files
    )


def _real(paths: Iterable[str]) -> tuple[str, ...]:
    return tuple(map(real_path, paths))


def open_runs(
    paths: Sequence[str], options: Options, begun: Callable[[str], None] = lambda _: None, store: Path | None = None
) -> Runs:
    """Each path as a run, keyed by its place from 1 on; those that can't be opened are left out, and kept by error.

    Raises the error of a single path, and `InputError` where none of several can be opened.
    """
    opened: list[OpenRun] = []
    lost: list[NotOpened] = []
    for key, path in enumerate(paths, 1):
        try:
            opened.append(open_run(str(key), path, options, begun))
        except GpuscopeError as error:
            if len(paths) == 1:
                raise
            lost.append(NotOpened(str(key), path, error))
    if not opened:
        raise InputError("\n".join([f"none of these {len(paths)} could be opened", *(str(one.error) for one in lost)]))
    return Runs(opened, store, lost)


# SQL over an open run, for the query page, its download, and the timeline.

MOST_ROWS = 5_000
"""Rows of a table in the browser, and of its CSV."""
Place = tuple[int, int, int]
"""Rank, start and end; ns on the timeline's clock."""
_FAR = 1 << 61


def asked(runs: Runs, key: str, sql: str) -> Rows:
    """The answer of a query. Raises `UsageError` where it is refused, or too many are under way."""
    run = runs.named(key)
    if not runs.asking.acquire(timeout=1):  # no thread waits for long: the others go on answering
        raise UsageError("other queries of this dashboard are under way", hint="try again in some seconds")
    try:
        return query(run.queried, sql, MOST_ROWS)
    finally:
        runs.asking.release()


def places(found: Rows) -> list[Place | None]:
    """Where each row is that has `rank` and `start_ns`: up to its `end_ns`, or for its `dur_ns`, else an instant."""
    names = {name.lower(): place for place, name in enumerate(found.columns)}
    if not {"rank", "start_ns"} <= set(names):
        return [None] * len(found.rows)
    rank, start, end, length = (names.get(name) for name in ("rank", "start_ns", "end_ns", "dur_ns"))
    assert rank is not None
    assert start is not None
    made: list[Place | None] = []
    for row in found.rows:
        begin = row[start]
        if not isinstance(row[rank], int) or not isinstance(begin, int) or abs(begin) > _FAR:
            made.append(None)
            continue
        until = row[end] if end is not None else begin + (row[length] or 0) if length is not None else begin
        made.append((row[rank], begin, until if isinstance(until, int) and begin <= until < _FAR else begin))
    return made


# The steady step of a run that is closest to the median, as strips of how busy the device is.

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


# Stored runs of one job, for trends: read-only, and reopened each time.

MOST = 50
"""Runs of a trend, whose reports are read for each drawing."""


def jobs(store: Path) -> list[str]:
    """Job names of stored runs: their label, else their paths; most runs first."""
    with opened(store) as open_store:
        names = [_name(row) for row in open_store.runs()]
    return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))


def job_of(store: Path, files: Sequence[str]) -> str:
    """The name of the newest stored run of any of these files; empty where there is none."""
    with opened(store) as open_store:
        found = open_store.runs_of(files)
    return _name(found[0]) if found else ""


def trend_of(store: Path, job: str) -> list[TrendPoint]:
    """The last runs of that name, the oldest first."""
    with opened(store) as open_store:
        rows = [row for row in open_store.runs() if _name(row) == job][:MOST]
        rows.sort(key=lambda row: (row["recorded_at"], row["id"]))
        return trend([StoredRun(row["id"], row["recorded_at"], open_store.report(row["id"])) for row in rows])


def report_of(store: Path, number: int) -> Report | None:
    """The report of a stored run; None if there is none of that number."""
    with opened(store) as open_store:
        return open_store.report(number) if open_store.runs("id = ?", [number]) else None


def _name(row: dict[str, object]) -> str:
    paths = row["paths"]
    assert isinstance(paths, list)
    return str(row["label"] or ", ".join(paths))


# Kernels by name for the table: the report's, or those of some ranks, steps or a window, counted from the trace.

WITHIN = "within"
"""Parameter of the address: `window` for the kernels that start in the window of the timeline only."""
WIDTH = 64
"""Cells of a short name."""


def window_of(view: View) -> tuple[int, int] | None:
    """The window that the kernels are of, ns on the run's clock; None for the whole recording."""
    return view.window if view.extra.get(WITHIN) == "window" else None


def filtered(view: View) -> bool:
    """Whether the rows are of a part of the run."""
    return view.ranks is not None or view.steps is not None or window_of(view) is not None


def kernel_rows(run: OpenRun, view: View) -> list[dict[str, Any]]:
    """The costliest first, with `short`, `count`, `dur_ns`, `mean_ns`, `min_ns`, `median_ns`, `max_ns`, `share_frac`,
    and `by_rank` (ns by rank).

    Without a filter these are the report's; median and ranks are None and empty unless the trace has as many of the
    name. Filtered, they are of the chosen ranks, and of the events that start in the chosen steps or window.
    """
    rows = _report_rows(run) if run.trace is None or not filtered(view) else _counted(run, run.trace, view)
    for row, short in zip(rows, short_kernels([row["name"] for row in rows], WIDTH), strict=True):
        row["short"] = short
    return rows


def _report_rows(run: OpenRun) -> list[dict[str, Any]]:
    """The report's entries, with what only the trace knows."""
    times = run.kernel_times
    place = {} if times is None else {code: i for i, code in enumerate(times.codes.tolist())}
    rows: list[dict[str, Any]] = []
    for entry in run.report["kernels"]:
        row: dict[str, Any] = {**entry, "median_ns": None, "by_rank": {}}
        i = place.get(run.trace.names.find(entry["name"])) if run.trace is not None else None
        if times is not None and i is not None and times.count[i] == entry["count"]:
            row |= {"median_ns": int(times.median[i]), "by_rank": _by_rank(times, i)}
        rows.append(row)
    return rows


def _by_rank(times: KernelTimes, i: int) -> dict[int, int]:
    return {rank: int(total[i]) for rank, total in times.by_rank.items()}


def _counted(run: OpenRun, trace: Trace, view: View) -> list[dict[str, Any]]:
    device = trace["device_events"]
    rows = np.flatnonzero(_chosen(run, trace, view))
    times = kernel_times(device["name"][rows], device["end"][rows] - device["start"][rows], device["rank"][rows])
    everything = int(times.total.sum()) or 1
    known = {one["name"]: one for one in reversed(run.report["kernels"])}
    found = []
    for i, code in enumerate(times.codes.tolist()):
        name, total, count = trace.names[code], int(times.total[i]), int(times.count[i])
        entry = known.get(name)
        found.append(
            {
                "name": name,
                "category": entry["category"] if entry else "",
                "operator": entry["operator"] if entry else None,
                "count": count,
                "dur_ns": total,
                "mean_ns": total // count,
                "min_ns": int(times.least[i]),
                "median_ns": int(times.median[i]),
                "max_ns": int(times.most[i]),
                "share_frac": total / everything,
                "flops_per_s": None,
                "by_rank": _by_rank(times, i),
            }
        )
    return sorted(found, key=lambda one: -int(one["dur_ns"]))


def _chosen(run: OpenRun, trace: Trace, view: View) -> Mask:
    """Which rows of device_events: steps are on their rank's own clock, the window is on the run's."""
    device = trace["device_events"]
    rank, start = device["rank"], device["start"]
    keep = np.ones(len(device), np.bool_) if view.ranks is None else np.isin(rank, list(view.ranks))
    if view.steps is not None:
        inside = np.zeros(len(device), np.bool_)
        for step in run.report["steps"]:
            if view.has_step(step["step"]):
                end = step["start_ns"] + step["dur_ns"]
                inside |= (rank == step["rank"]) & (start >= step["start_ns"]) & (start < end)
        keep &= inside
    window = window_of(view)
    if window is not None and run.events is not None:
        for one in np.unique(rank).tolist():
            own = np.flatnonzero(rank == one)
            shown = run.events.clock.common(one, start[own])
            keep[own] &= (shown >= window[0]) & (shown < window[1])
    return keep
