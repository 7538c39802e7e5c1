"""Runs the analyses over a run's files, one file at a time, and makes the report.

Of each file only its summary, its collectives and its results stay, so memory grows with the collectives
of a run, not with its events. Files are read in parallel where there are several large ones.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpuscope.analyzers.device_time.thinned import why_thinned
from gpuscope.analyzers.facts.pipeline_facts.flushes import Flush, Key
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result, analyzers_of, attributed, broken, run_one
from gpuscope.analyzers.frame.changes import Change, Predicted, Refused
from gpuscope.analyzers.frame.lanes import LaneSummary, no_such_steps, summarise, views
from gpuscope.analyzers.host_time.work_done_once import work_done_once
from gpuscope.analyzers.operations.operations_from_ranges import operations
from gpuscope.analyzers.replay.record.recording import Recorded, record
from gpuscope.analyzers.replay.replayer import Replayer
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.analyzers.run.reporting import build
from gpuscope.cache import second_look
from gpuscope.sources.opening import Input, PathLike, check_one_run, inputs, numbered, read_file, total_size
from gpuscope.sources.restarts import left_out
from gpuscope.sources.run_manifest import ended, mesh, run_folders, world_size
from gpuscope.sources.source import ReadOptions
from gpuscope.trace.merge import merge
from gpuscope.trace.trace import Trace

PARALLEL_FROM = 64 << 20
"""Bytes of input from which further processes pay for their start."""


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
    files: int = 1
    """Files of the run: what each may keep for the replay depends on it."""


@dataclass
class Part:
    """What stays of one file."""

    trace: Trace
    """Without events; with its ranks, groups, steps, and what its collectives refer to."""
    lanes: list[LaneSummary]
    results: list[Result]
    recorded: list[Recorded]
    """Graphs of its lanes, for the replay."""


def let_go(_: Trace) -> None:
    """What becomes of a file's trace with all its events once it is analysed."""


def analyze(
    *paths: PathLike,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    partial: bool = False,
    nsys: str | None = None,
    workers: int = 1,
    advice: bool = True,
    cache: bool = False,
) -> Analysis:
    """Analyse files, folders or globs as one run: `gpuscope.analyze`.

    `ranks` leaves other ranks unread, `steps` is the first and the last step, both included (default: the whole
    window), `partial` reads what there is of a file that is cut off, `nsys` is the program that exports reports of
    Nsight Systems. `workers` processes read large runs; a script that asks for several needs the usual
    `if __name__ == "__main__"`. `advice` says whether changes are tried; without, the report holds no suggestions.
    `cache` looks for large files in the user's cache directory, and keeps there what is found in them.

    Returns an `Analysis` whose `report` is the document of `gpuscope analyze --json` and whose `tables` are DataFrames;
    times are int ns. Raises `InputError` for what is missing or can't be read, `UsageError` where files claim one rank
    or are of different jobs, or no such step is recorded. An analysis that fails is in `Analysis.failed`.
    """
    read = ReadOptions(partial=partial, nsys=nsys, cache=cache)
    return run(inputs(paths, ranks), Options(ranks, steps, workers, read, advice))


def run(
    items: Sequence[Input],
    options: Options,
    begun: Callable[[str], None] = lambda _: None,
    keep: Callable[[Trace], None] | None = None,
) -> Analysis:
    """Analyse inputs; `begun` is called with the name of each file as it is begun.

    `keep` is given each file's trace with all its events, which are otherwise let go; files are then read here,
    one after the other.
    """
    with _without_collector():
        return _run(items, options, begun, keep)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Python's cyclic garbage collector off: it would look through millions of small objects, none of them garbage."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _run(
    items: Sequence[Input],
    options: Options,
    begun: Callable[[str], None],
    keep: Callable[[Trace], None] | None,
) -> Analysis:
    items = numbered(items, options.read)
    options = replace(options, files=len(items))
    if keep is not None:
        parts = _in_turn(items, options, begun, keep)
    else:
        parts = (_side_by_side if _worth_processes(items, options) else _in_turn)(items, options, begun)
    check_one_run([part.trace.ranks_by_file() for part in parts])
    lanes = [lane for part in parts for lane in part.lanes]
    results = [result for part in parts for result in part.results]
    facts = RunFacts(merge([part.trace for part in parts]), lanes, attributed(results), options.steps is not None)
    replayer, replayed = _replay(facts, [entry for part in parts for entry in part.recorded])
    what_if: WhatIf = _NotReplayed() if replayer is None else replayer
    results += _of_run(facts, what_if)
    folders = run_folders(item.path for item in items)
    results += [_how_it_ended(folder, [item.path for item in items]) for folder in folders]
    if options.ranks is not None:
        results += _ranks_absent(options.ranks, facts.trace.ranks)
    results.append(replayed)
    named = mesh(folders[0]) if len(folders) == 1 else {}
    report = build(facts, results, what_if if options.advice else None, named)
    return Analysis(report, replayer)


def _replay(facts: RunFacts, recorded: Sequence[Recorded]) -> tuple[Replayer | None, Result]:
    """The replay and what became of it as an analysis; a bug in it hides no other."""
    try:
        replayer = Replayer(facts, recorded)
        return replayer, replayer.result()
    except Exception as error:
        return None, broken("replay", error)


class _NotReplayed:
    """Stands for a replay that failed."""

    def predict(self, _: Change | Sequence[Change], /) -> Predicted | Refused:
        return Refused("the replay failed")

    def estimate(self, _: Change | Sequence[Change], /) -> int | Refused:
        return Refused("the replay failed")

    def pipeline_places(self, _: Flush, __: Change, /) -> dict[Key, tuple[int, int]]:
        return {}


def _of_run(facts: RunFacts, what_if: WhatIf) -> list[Result]:
    """The analyses of all ranks together, in order of name."""
    results = [run_one(analyzer, facts.trace, facts) for analyzer in analyzers_of(RunAnalyzer)]
    results += [run_one(analyzer, facts.trace, facts, what_if) for analyzer in analyzers_of(WhatIfAnalyzer)]
    return sorted(results, key=lambda result: result.analyzer)


def _ranks_absent(asked: Collection[int], there: Sequence[int]) -> list[Result]:
    absent = sorted(set(asked) - set(there))
    if not absent:
        return []
    result = Result("ranks")
    shown = ", ".join(map(str, absent[:10])) + (", …" if len(absent) > 10 else "")
    result.problem("info", "ranks_absent", len(absent), f"ranks asked for that are in no file: {shown}")
    return [result]


def _how_it_ended(folder: Path, read: Sequence[Path]) -> Result:
    """What a run folder's manifest says went wrong, as problems of the report."""
    result, end = Result("run"), ended(folder)
    if end is not None and end.badly:
        failures = "; ".join(end.failures[:4]) or "no rank recorded why"
        result.problem("error", "run_ended_early", 1, f"{folder.name}: the run {end.status}: {failures}")
    for message in end.wrong if end else ():
        result.problem("error", "run_trouble", 1, f"{folder.name}: {message}")
    if message := left_out(folder, read):
        result.problem("info", "restarts_left_out", 1, message)
    return result


def _worth_processes(items: Sequence[Input], options: Options) -> bool:
    return len(items) > 1 and options.workers > 1 and total_size(items) >= PARALLEL_FROM


def _in_turn(
    items: Sequence[Input],
    options: Options,
    begun: Callable[[str], None],
    keep: Callable[[Trace], None] = let_go,
) -> list[Part]:
    parts: list[Part] = []
    for item in items:
        begun(item.path.name)
        parts.append(analyze_file(item, options, keep))
    return parts


def _side_by_side(items: Sequence[Input], options: Options, begun: Callable[[str], None]) -> list[Part]:
    from concurrent.futures import ProcessPoolExecutor  # most runs are read in this process
    from multiprocessing import get_context

    # The progress bar lives in this process: there it advances file by file.
    quiet = replace(options, read=replace(options.read, advance=None, status=None))
    parts: list[Part] = []
    with ProcessPoolExecutor(min(len(items), options.workers), mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(analyze_file, item, quiet) for item in items]
        try:
            for item, future in zip(items, futures, strict=True):
                begun(item.path.name)
                parts.append(future.result())
                if options.read.advance:
                    options.read.advance(total_size([item]))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return parts


DERIVED_OPERATIONS = FileAnalyzer(
    "operations", lambda trace, lanes: Result("operations", tables={"operations": operations(trace, lanes)})
)
"""Operations of jobs that no timer of operations recorded, found from their ranges."""


def analyze_file(item: Input, options: Options, keep: Callable[[Trace], None] = let_go) -> Part:
    """Read one file, analyse its lanes, and let its events go, unless `keep` holds on to them."""
    ranks = None if options.ranks is None else sorted(options.ranks)
    asked = (item.first_rank, "part", ranks, options.steps, options.files, world_size(item.path))
    key = second_look.key_of(item.path, item.source, options.read, *asked)
    part = second_look.kept(key, Part)
    if part is not None and keep is let_go:
        if options.read.advance:
            options.read.advance(total_size([item]))
        return part
    trace = read_file(item, options.read)
    if options.ranks is not None:
        trace = trace.select_ranks(options.ranks)
    keep(trace)
    if part is None:
        part = reduce_trace(trace, options)
        if not any(result.status == "failed" for result in part.results):
            second_look.keep(key, part)
    return part


def reduce_trace(trace: Trace, options: Options) -> Part:
    """Analyse the lanes of one file's trace; what stays of it grows with its collectives, not its events."""
    lanes = views(trace, options.steps)
    results = [run_one(analyzer, trace, trace, lanes) for analyzer in analyzers_of(FileAnalyzer)]
    summaries = [summarise(trace, view, why_thinned(trace, view), work_done_once(trace, view)) for view in lanes]
    reduced = trace.reduced()
    for table in (table for result in results for table in result.tables.values()):
        reduced = reduced.with_table(table)
    if not len(trace["operations"]):
        derived = run_one(DERIVED_OPERATIONS, trace, trace, lanes)
        results.append(derived)
        reduced = reduced.with_operations(derived.tables.get("operations", trace["operations"]))
    if options.steps is not None:
        reduced = _with_operations_of(reduced, options.steps)
    return Part(reduced, summaries, results, record(trace, lanes, reduced["operations"], options.files))


def _with_operations_of(trace: Trace, steps: tuple[int, int]) -> Trace:
    kept = trace.select_operations(steps)
    if len(trace["operations"]) and not len(kept["operations"]) and not len(trace.lanes()):
        raise no_such_steps(steps)
    return kept


__all__ = ["Options", "analyze", "run"]
