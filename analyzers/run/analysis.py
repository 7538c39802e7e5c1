"""What `gpuscope.analyze` returns: the report, and its sections as DataFrames."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from gpuscope.analyzers.run.file_part import Options, Part, analyze_file
from gpuscope.analyzers.what_if_changes import Change, Predicted, Refused
from gpuscope.errors import GpuscopeError, InputError, MissingExtraError, UsageError
from gpuscope.report.section_tables import SectionTables, table
from gpuscope.report.view import report_rows
from gpuscope.schema import call_tree_section, document, memory_section, nccl_sections
from gpuscope.schema.document import Report, Verdict
from gpuscope.sources.opening import Input, or_skip, total_size
from gpuscope.when_used import dataclass
from gpuscope.words import units

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

    import pandas as pd

    from gpuscope.analyzers.replay.replayer import Replayer


# Who reads the files of a run: this process, several, or a Dask cluster. The parts are the same, in the same order.

RETRIES = 2
"""Times that a file is given to another worker after one died with it."""


@dataclass(frozen=True)
class LeftOut:
    """A file that could not be read."""

    item: Input
    why: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.item.name


Read = tuple[list[Part], list[LeftOut]]


class Executor(Protocol):
    """Reads files. `begun` is called with the name of each as its result is awaited."""

    def __call__(self, items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
        """The parts in the order of the items, and what is left out."""
        ...


def in_turn(items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
    """One after the other, here."""
    return _collected(items, options, begun, lambda item: analyze_file(item, options))


def side_by_side(items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
    """In `options.workers` processes. A file whose process dies is tried once more, alone, and then left out."""
    from concurrent.futures.process import BrokenProcessPool

    quiet = _quiet(options)
    with _pool(min(len(items), options.workers)) as pool:
        futures = dict(zip(map(id, items), [pool.submit(analyze_file, item, quiet) for item in items], strict=True))

        def result(item: Input) -> Part:
            future: Future[Part] = futures[id(item)]
            try:
                part = future.result()
            except BrokenProcessPool:
                part = _alone(item, quiet)
            if options.read.advance:
                options.read.advance(total_size([item]))
            return part

        return _collected(items, options, begun, result)


def _alone(item: Input, options: Options) -> Part:
    with _pool(1) as pool:
        return pool.submit(analyze_file, item, options).result()


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    from concurrent.futures import ProcessPoolExecutor  # most runs are read in this process
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)  # a pool that is let go before it has heard of this reads on
            raise


@dataclass(frozen=True)
class OnDask:
    """On a Dask cluster: `scheduler` is its address; empty for the one in Dask's configuration, else a local one."""

    scheduler: str = ""

    def __call__(self, items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> Read:
        """See `Executor`. A file whose worker dies goes to another, `RETRIES` times, and is then left out."""
        with self._client(options.workers) as client:
            quiet = _quiet(options)
            futures = {
                id(item): client.submit(analyze_file, item, quiet, retries=RETRIES, pure=False) for item in items
            }

            def result(item: Input) -> Part:
                part: Part = futures.pop(id(item)).result()
                if options.read.advance:
                    options.read.advance(total_size([item]))
                return part

            return _collected(items, options, begun, result)

    def _client(self, workers: int) -> Any:
        try:
            from dask import config
            from distributed import Client
        except ImportError:
            raise MissingExtraError("distributed") from None
        address = self.scheduler or config.get("scheduler-address", None)
        try:
            # Without an address Dask starts a cluster of its own, on this machine.
            settings = {"address": address, "timeout": "10s"} if address else {"n_workers": workers}
            return Client(**settings, **({} if address else {"threads_per_worker": 1}))  # type: ignore[no-untyped-call]
        except (OSError, TimeoutError, ValueError) as error:
            raise UsageError(
                f"no Dask scheduler answers at {address}: {error}", hint="start one with `dask scheduler`"
            ) from None


def executor_named(name: str | None) -> Executor | None:
    """The executor of `--executor`: `dask` or `dask=ADDRESS`; None for the default. Raises `UsageError` otherwise."""
    if name is None:
        return None
    kind, _, address = name.partition("=")
    if kind != "dask":
        raise UsageError(f"--executor {name}: unknown", hint="dask, or dask=tcp://scheduler:8786")
    return OnDask(address)


def _quiet(options: Options) -> Options:
    # The progress bar lives in this process: there it advances file by file.
    return replace(options, read=replace(options.read, advance=None, status=None))


def _collected(
    items: Sequence[Input], options: Options, begun: Callable[[str], None], result: Callable[[Input], Part]
) -> Read:
    parts: list[Part] = []
    without: list[LeftOut] = []
    for item in items:
        begun(item.name)
        try:
            parts.append(result(item))
        except InputError as error:
            if len(items) == 1:
                raise
            if not options.skip_unreadable:
                raise or_skip(error) from error
            without.append(LeftOut(item, error.message))
        except GpuscopeError:
            raise
        except Exception as error:
            if not _worker_died(error) or len(items) == 1:
                raise
            without.append(LeftOut(item, f"the process that read it died ({type(error).__name__})"))
    if not parts:
        raise InputError(f"none of {len(items)} files could be read: {without[0].name}: {without[0].why}")
    return parts, without


def _worker_died(error: Exception) -> bool:
    # By name: most runs need neither Dask nor further processes.
    return isinstance(error, MemoryError) or type(error).__name__ in (
        "BrokenProcessPool",
        "KilledWorker",
        "CommClosedError",
    )


SECTIONS: dict[str, type] = {
    "ranks": document.RankEntry,
    "steps": document.StepEntry,
    "collectives": document.CollectiveEntry,
    "stragglers": document.StragglerEntry,
    "kernels": document.KernelEntry,
    "findings": document.FindingEntry,
    "suggestions": document.SuggestionEntry,
    "problems": document.ProblemEntry,
    "bandwidth": nccl_sections.BandwidthEntry,
    "fits": nccl_sections.FitEntry,
    "link_counters": nccl_sections.LinkCounterEntry,
    "device_counters": call_tree_section.DeviceCounterEntry,
    "crossovers": nccl_sections.CrossoverEntry,
    "traffic": nccl_sections.TrafficEntry,
    "topology": nccl_sections.TopologyEntry,
    "memory": memory_section.MemoryEntry,
    "kernel_ranks": nccl_sections.KernelRankEntry,
    "operators": nccl_sections.OperatorEntry,
    "ranges": nccl_sections.RangeEntry,
    "phases": nccl_sections.PhaseEntry,
    "api_calls": nccl_sections.ApiCallEntry,
    "copies": nccl_sections.CopyEntry,
    "launches": nccl_sections.LaunchEntry,
    "queues": nccl_sections.QueueEntry,
    "streams": nccl_sections.StreamEntry,
    "gaps": nccl_sections.GapEntry,
}
"""Sections of the report that are tables, and what a row of each holds. Not every report has those from `bandwidth`
to `memory`."""


class RunTables:
    """The tables of a run by name: of `Analysis` and of `Analysis.tables` alike. A section that a run has not raises
    `AttributeError`."""

    ranks: pd.DataFrame
    steps: pd.DataFrame
    collectives: pd.DataFrame
    stragglers: pd.DataFrame
    kernels: pd.DataFrame
    findings: pd.DataFrame
    suggestions: pd.DataFrame
    problems: pd.DataFrame
    bandwidth: pd.DataFrame
    fits: pd.DataFrame
    link_counters: pd.DataFrame
    device_counters: pd.DataFrame
    crossovers: pd.DataFrame
    traffic: pd.DataFrame
    topology: pd.DataFrame
    memory: pd.DataFrame
    kernel_ranks: pd.DataFrame
    operators: pd.DataFrame
    ranges: pd.DataFrame
    phases: pd.DataFrame
    api_calls: pd.DataFrame
    copies: pd.DataFrame
    launches: pd.DataFrame
    queues: pd.DataFrame
    streams: pd.DataFrame
    gaps: pd.DataFrame


class AnalysisTables(SectionTables, RunTables):
    """The sections of a report that are lists, as DataFrames: `tables.kernels` or `tables["kernels"]`."""


@dataclass(frozen=True, repr=False)
class Analysis(RunTables):
    """What `gpuscope.analyze` found in a run; every table of `tables` is an attribute too (`analysis.kernels`)."""

    report: Report
    """The document of `gpuscope analyze --json` as a dict: every key is in docs/report.md, times are int ns."""
    replayer: Replayer | None = None
    """The run's replay, which `predict` asks; None where only a finished report is at hand."""
    hosts: tuple[str, ...] = ()
    """The hosts that the traces name."""

    @property
    def tables(self) -> AnalysisTables:
        """The report's sections that are lists, as DataFrames by name (`SECTIONS`), nested keys dotted; times in ns."""
        return AnalysisTables(self.report, SECTIONS)

    @property
    def verdict(self) -> Verdict:
        """What bounds the run, and how sure that is: `bound_by`, `cause`, `share_frac`, `confidence`, `why`…"""
        return self.report["verdict"]

    @property
    def step_ns(self) -> int | None:
        """«The step», ns: the median of the judged steps; None where no steps were found."""
        return report_rows.step_ns(self.report)

    @property
    def failed(self) -> list[str]:
        """Analyses that failed, each with its reason. The report says nothing of what they would have found."""
        return [f"{a['name']}: {a['why']}" for a in self.report["analyzers"] if a["status"] == "failed"]

    def predict(self, *changes: Change) -> Predicted | Refused:
        """What a step would take with these changes (`gpuscope.changes`), made one after the other, by replay.

        Returns `Predicted` (step times in ns, mean over ranks and steps) or `Refused` with the reason, where this
        trace can't support a prediction. Raises `UsageError` without a change.
        """
        if not changes:
            raise UsageError("nothing to predict", hint="name a change, such as gpuscope.changes.BucketSize(25 << 20)")
        if self.replayer is None:
            return Refused("a finished report holds no replay: analyse the trace itself")
        return self.replayer.predict(changes)

    if not TYPE_CHECKING:  # to type checkers it would make every misspelt name one of ours

        def __getattr__(self, name: str) -> pd.DataFrame:
            if name.startswith("_") or name == "report":  # asked for by copying and pickling, before there is one
                raise AttributeError(name)
            return table(self, name, self.tables)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.tables})

    def _repr_html_(self) -> str:
        """The first screen, for notebooks."""
        from gpuscope.report.html.html_report import render_cell

        return render_cell(self.report)

    def __repr__(self) -> str:
        entries = self.report["ranks"]
        present = self.report["trace"]["ranks_present"]
        pieces = [_bound(self.report), units.plural(len(present), "rank")]
        step = report_rows.step_ns(self.report)
        if step is not None:
            pieces.append(f"step {units.duration(step)}")
        elif entries:
            pieces.append(f"window {units.duration(max(entry['window_ns'] for entry in entries))}")
        return f"Analysis({', '.join(pieces)})"


def _bound(report: Report) -> str:
    """`communication-bound by straggler 24.8 %`; the share is the cause's, or the class's where no cause is known."""
    verdict = report["verdict"]
    if verdict["abstained"] or verdict["bound_by"] is None:
        return "no verdict"
    cause = verdict["cause"]
    if cause is None:
        return f"{verdict['bound_by']}-bound {units.share(verdict['share_frac'])}"
    share = next((row.share_frac for row in report_rows.causes(report) if row.cause == cause), verdict["share_frac"])
    return f"{verdict['bound_by']}-bound by {cause} {units.share(share)}"
