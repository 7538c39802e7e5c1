"""What stays of one file: its results, and of its events what the analyses of the whole run need."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, replace
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Protocol, TypeVar, runtime_checkable

from gpuscope import cache
from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result, analyzers_of, breaches_without_causes, run_one
from gpuscope.analyzers.base.evidence import name_phases
from gpuscope.analyzers.base.lanes import LaneSummary, LaneView, no_such_steps, summarise, views
from gpuscope.analyzers.collectives.activity import IDLE
from gpuscope.analyzers.device_time.launching_threads import lost_work, why_thinned
from gpuscope.analyzers.facts.message_sizes import ESTIMATED_SIZES
from gpuscope.analyzers.host_time.blocking_sites import work_done_once
from gpuscope.analyzers.replay.recording import Recorded, not_recorded, record, with_fixed_shares
from gpuscope.analyzers.step_graph.operations_from_ranges import operations
from gpuscope.errors import InputError
from gpuscope.native import release_memory
from gpuscope.sources import windows
from gpuscope.sources.opening import Input, as_shown, read_file, total_size
from gpuscope.sources.run_manifest import world_size
from gpuscope.sources.source import ReadOptions
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# The analyses of one large file, in two threads, one of which first makes what else is kept of it: nearly all of their
# time is numpy's and the native core's, which run at once. More would mostly wait for the interpreter, and each needs
# memory.

LARGE = 1 << 18
"""Events from which threads pay for waiting for each other."""
HUGE = 1 << 23
"""Events from which two analyses that need much memory don't run at once: of fewer, both need a few megabytes more."""


Kept = TypeVar("Kept")


def results_of(
    trace: Trace, lanes: Sequence[LaneView], alone: bool, beside: Callable[[], Kept]
) -> tuple[list[Result], Kept]:
    """The results of all analyses of a file, in order of their names, and what `beside` returns, which needs none of
    them. `alone` says that no other file is being read."""
    analyzers = analyzers_of(FileAnalyzer)

    def result(analyzer: FileAnalyzer) -> Result:
        return run_one(analyzer, trace, trace, lanes)

    events = len(trace["host_events"]) + len(trace["device_events"])
    if not alone or events < LARGE or os.cpu_count() == 1:
        return [result(analyzer) for analyzer in analyzers], beside()
    from concurrent.futures import ThreadPoolExecutor

    # What they add to the names comes before them all: codes don't depend on which thread is quicker.
    name_phases(trace.names)
    trace.names.code(IDLE)
    # The large ones one after another, the others beside them, so that neither thread ends alone.
    left = _Left(sorted(analyzers, key=lambda analyzer: (not analyzer.large, -analyzer.cost)), events >= HUGE)
    found: dict[str, Result] = {}

    def work() -> None:
        while (analyzer := left.take()) is not None:
            try:
                found[analyzer.name] = result(analyzer)
            finally:
                left.done(analyzer)

    def other() -> Kept:
        kept = beside()
        release_memory()
        work()
        return kept

    with ThreadPoolExecutor(1, "gpuscope-analyze") as pool:
        running = pool.submit(other)
        work()  # here too, where freed memory is at hand
        kept = running.result()
    release_memory()
    return [found[analyzer.name] for analyzer in analyzers], kept


class _Left:
    """The analyses that are still to be run, for several threads to take from."""

    def __init__(self, analyzers: list[FileAnalyzer], large_alone: bool) -> None:
        self._analyzers, self._lock, self._large_alone = analyzers, Lock(), large_alone
        self._large_runs = False

    def take(self) -> FileAnalyzer | None:
        """The next one; None where none is left but what the thread that runs a large one will take itself."""
        with self._lock:
            for place, analyzer in enumerate(self._analyzers):
                if not (self._large_alone and analyzer.large and self._large_runs):
                    self._large_runs |= analyzer.large
                    return self._analyzers.pop(place)
            return None

    def done(self, analyzer: FileAnalyzer) -> None:
        """One that was taken has been run."""
        if analyzer.large:
            release_memory()
            self._large_runs = False


@dataclass(frozen=True)
class Options:
    """What to analyse and how to read it."""

    ranks: Collection[int] | None = None
    steps: tuple[int, int] | None = None
    """First and last step, both included; None for the whole window."""
    workers: int = 1
    """Processes to read large runs with. More than one needs a main module that can be imported again."""
    read: ReadOptions = field(default_factory=ReadOptions)
    advice: bool = True
    """Whether changes are tried."""
    replay: bool = True
    """Whether the run is replayed, without which no change can be tried nor predicted."""
    files: int = 1
    """Files of the run: what each may keep for the replay depends on it."""
    world_size: int | None = None
    """Ranks of the job, whatever the files record; None to take what they do."""
    skip_unreadable: bool = False
    """Leave out a file that can't be read, rather than refuse the run."""
    with_events: bool = False
    """Whether parts hold all events of their files too."""
    analyses: bool = True
    """Whether files are analysed; without, their parts hold what the replay needs."""


@dataclass
class Part:
    """What stays of one file."""

    trace: Trace
    """Without events; with its ranks, groups, steps, and what its collectives refer to."""
    lanes: list[LaneSummary]
    results: list[Result]
    recorded: list[Recorded]
    """Graphs of its lanes, for the replay."""
    events: Trace | None = None
    """Its trace with all events, where that was asked for."""

    def check(self) -> None:
        """Raise `ValueError` where the trace or a lane contradicts itself, or causes and graphs are of other lanes."""
        self.trace.check()
        ranks, steps = set(self.trace.ranks), {lane.key: len(lane.steps) for lane in self.lanes}
        if not {lane.rank for lane in self.lanes} | {graph.rank for graph in self.recorded} <= ranks:
            raise ValueError("lanes of ranks that the trace lacks")
        if breach := next(chain.from_iterable(map(breaches_without_causes, self.lanes)), None):
            raise ValueError(breach)
        for key, causes in ((key, causes) for result in self.results for key, causes in result.causes.items()):
            for cause, own in causes.items():
                if len(own.per_step) != steps.get(key) or (len(own.per_step) and own.per_step.sum() != own.total):
                    raise ValueError(f"{cause} in the steps of lane {key} is not {own.total:,} ns in all")


@runtime_checkable
class HoldsPart(Protocol):
    """A source whose files hold a part already (`gpuscope reduce`)."""

    def part(self, path: Path, options: Options) -> Part:
        """The part. Raises `InputError` where the file can't be used, `UsageError` where it can't serve the options."""
        ...


DERIVED_OPERATIONS = FileAnalyzer(
    "operations", lambda trace, lanes: Result("operations", tables={"operations": operations(trace, lanes)})
)
"""Operations of jobs that no timer of operations recorded, found from their ranges."""


def analyze_file(item: Input, options: Options) -> Part:
    """Read one file, analyse its lanes, and let its events go, unless they are asked for."""
    if item.url:
        with windows.fetched(item.url) as local:
            return _copy_of(item, local, options)
    if item.in_archive is not None:
        return _copy_of(item, item.path, options)
    if isinstance(item.source, HoldsPart):
        return item.source.part(item.path, options)
    ranks = None if options.ranks is None else sorted(options.ranks)
    asked = (
        item.read_so,
        "part",
        ranks,
        options.steps,
        options.files,
        options.replay,
        world_size(item.path),
        options.analyses,
        options.read.device,
    )
    key = cache.key_of(item.path, item.source, options.read, *asked)
    part = cache.kept(key, Part)
    if part is not None and not options.with_events:
        if options.read.advance:
            options.read.advance(total_size([item]))
        return part
    trace = read_file(item, options.read)
    if options.ranks is not None:
        trace = trace.select_ranks(options.ranks)
    if part is None:
        part = reduce_trace(trace, options)
        if not any(result.status == "failed" for result in part.results):
            cache.keep(key, part)
    return replace(part, events=trace) if options.with_events else part


def _copy_of(item: Input, local: Path, options: Options) -> Part:
    """The part of a local copy, whose file is called as users know it."""
    try:
        part = analyze_file(replace(item, path=local, url="", in_archive=None), options)
    except InputError as error:
        raise error.naming(item.shown, local) from error
    return replace(part, trace=as_shown(part.trace, replace(item, path=local)))


def reduce_trace(trace: Trace, options: Options) -> Part:
    """Analyse the lanes of one file's trace; what stays of it grows with its collectives, not its events."""
    sized = run_one(ESTIMATED_SIZES, trace, trace, ())
    trace = trace.with_table(sized.tables.pop("collectives", trace["collectives"]))
    lanes = views(trace, options.steps)

    def beside() -> tuple[list[LaneSummary], list[Recorded]]:
        ranks = (view.lane.rank for view in lanes)
        recorded = record(trace, lanes, options.files) if options.replay else not_recorded(ranks)
        summaries = [
            summarise(trace, one, why_thinned(trace, one), work_done_once(trace, one), lost_work(trace, one))
            for one in lanes
        ]
        return summaries, recorded

    found = results_of(trace, lanes, options.files == 1, beside) if options.analyses else ([], beside())
    results, (summaries, recorded) = found
    results += [sized] if sized.problems or sized.status == "failed" else []
    reduced = trace.reduced()
    for table in (table for result in results for table in result.tables.values()):
        reduced = reduced.with_table(table)
    if not len(trace["operations"]):
        derived = run_one(DERIVED_OPERATIONS, trace, trace, lanes)
        results.append(derived)
        reduced = reduced.with_operations(derived.tables.get("operations", trace["operations"]))
    if options.steps is not None:
        reduced = _with_operations_of(reduced, options.steps)
    if len(reduced["operations"]):
        recorded = with_fixed_shares(recorded, trace, lanes, reduced["operations"])
    return Part(reduced, summaries, results, recorded)


def _with_operations_of(trace: Trace, steps: tuple[int, int]) -> Trace:
    kept = trace.select_operations(steps)
    if len(trace["operations"]) and not len(kept["operations"]) and not len(trace.lanes()):
        raise no_such_steps(steps)
    return kept
