"""The runs of a dashboard: each analysed once, then read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from threading import BoundedSemaphore

from gpuscope.analyzers.queries.engine import RunData
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.runner import Options, run
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.kernel_durations import KernelTimes, kernel_times
from gpuscope.dashboards.data.what_if import WhatIf
from gpuscope.errors import GpuscopeError, InputError
from gpuscope.report.read_report import read_report
from gpuscope.schema.document import Report
from gpuscope.sources.opening import inputs
from gpuscope.store.rows import real_path
from gpuscope.trace.merge import merge
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

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
