"""Runs the analyses over a run's files, one file at a time, and makes the report.

Of each file only its summary, its collectives and its results stay, so memory grows with the collectives
of a run, not with its events. Files are read in parallel where there are several large ones.
"""

from __future__ import annotations

import gc
import shlex
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np

from gpuscope.analyzers.base.analyzer import Result, analyzers_of, attributed, broken, run_one
from gpuscope.analyzers.facts.pipeline_facts import Flush, Key
from gpuscope.analyzers.facts.process_groups import setup, with_members
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.analyzers.replay.recording import Recorded, not_recorded
from gpuscope.analyzers.replay.replayer import Replayer
from gpuscope.analyzers.run.analysis import Analysis, Executor, LeftOut, in_turn, side_by_side
from gpuscope.analyzers.run.file_part import HoldsPart, Options, Part
from gpuscope.analyzers.run.reporting import build
from gpuscope.analyzers.topology.counter_means import narrow_links
from gpuscope.analyzers.what_if_changes import Change, Predicted, Refused
from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.hardware.device_peaks import known_model
from gpuscope.problems import job, reading
from gpuscope.schema.document import Report
from gpuscope.sources import digest
from gpuscope.sources.by_role import intervals
from gpuscope.sources.opening import (
    Input,
    PathLike,
    asked_ranks,
    check_any_read,
    check_one_run,
    check_ranks_present,
    inputs,
    numbered,
    total_size,
)
from gpuscope.sources.run_manifest import ended, mesh, refused_files, run_folders
from gpuscope.sources.source import ReadOptions, Role, left_out, suffixes_of
from gpuscope.trace.table import distinct_values
from gpuscope.trace.trace import Trace, merge, recorded_world, with_world_size
from gpuscope.welch import median
from gpuscope.words import units

PARALLEL_FROM = 64 << 20
"""Bytes of input from which further processes pay for their start."""


def analyze(
    *paths: PathLike,
    ranks: Collection[int] | str | int | None = None,
    steps: tuple[int, int] | None = None,
    partial: bool = False,
    nsys: str | None = None,
    workers: int = 1,
    advice: bool = True,
    replay: bool | None = None,
    cache: bool = False,
    window: int | None = None,
    role: str | None = None,
    world_size: int | None = None,
    device: str | None = None,
) -> Analysis:
    """Analyse files, folders or globs as one run: `gpuscope.analyze`.

    `ranks` leaves other ranks unread, `steps` is the first and the last step, both included (default: the whole
    window), `partial` reads what there is of a file that is cut off, `nsys` is the program that exports reports of
    Nsight Systems. `workers` processes read large runs; a script that asks for several needs the usual
    `if __name__ == "__main__"`. `advice` says whether changes are tried; without, the report holds no suggestions, and
    the run is not replayed unless `replay` asks for that: then `predict` answers. Both take about a third of the time.
    `cache` looks for large files in the user's cache directory, and keeps there what is found in them. `window` is the
    one to analyse of a folder with several of one run (`iteration_10/`, `iteration_20/`); by default the latest. `role`
    is the one to analyse of a folder with jobs of several roles (`actor_update/`, `rollout/`). `world_size` is the
    number of ranks of the whole job, where the files don't record it or are wrong. `device` is the model of the GPUs
    (`H100`), where the files don't record it.

    Returns an `Analysis` whose `report` is the document of `gpuscope analyze --json` and whose `tables` are DataFrames;
    times are int ns. Raises `InputError` for what is missing or can't be read, `UsageError` where files claim one rank
    or are of different jobs or roles, or no such step is recorded. An analysis that fails is in `Analysis.failed`.
    """
    read = ReadOptions(partial=partial, nsys=nsys, cache=cache, device=None if device is None else known_model(device))
    replayed = advice if replay is None else replay or advice
    asked = asked_ranks(ranks)
    options = Options(asked, steps, workers, read, advice, replayed, world_size=world_size)
    return run(inputs(paths, asked, window, role), options)


def run(
    items: Sequence[Input],
    options: Options,
    begun: Callable[[str], None] = lambda _: None,
    keep: Callable[[Trace], None] | None = None,
    executor: Executor | None = None,
) -> Analysis:
    """Analyse inputs; `begun` is called with the name of each file as it is begun.

    `executor` reads the files; by default this process, or `options.workers` of them where the files are large.
    `keep` is given each file's trace with all its events, which are otherwise let go.
    """
    with _undisturbed():
        return _run(items, options, begun, keep, executor)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Python's cyclic garbage collector off: it would look through millions of small objects, none of them garbage. And
    threads that come back from numpy or the native core wait 0.2 ms for the interpreter, not 5."""
    was_on, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(0.0002)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_on:
            gc.enable()


def _run(
    items: Sequence[Input],
    options: Options,
    begun: Callable[[str], None],
    keep: Callable[[Trace], None] | None,
    executor: Executor | None,
) -> Analysis:
    items = numbered(items, options.read)
    options = replace(options, files=len(items), with_events=keep is not None)
    chosen = executor or (side_by_side if _worth_processes(items, options) else in_turn)
    parts, without = chosen(items, options, begun)
    for part in parts:
        if keep is not None and part.events is not None:
            keep(part.events)
        part.events = None
    check_one_run([part.trace.ranks_by_file() for part in parts])
    with _blaming([item for item in items if isinstance(item.source, HoldsPart)]):
        return _joined(parts, items, options, without)


@contextmanager
def _blaming(reduced: Sequence[Input]) -> Iterator[None]:
    """What goes wrong with reduced parts is blamed on them: their makers have analysed them once already."""
    try:
        yield
    except GpuscopeError:
        raise
    except Exception as error:
        if not reduced:
            raise
        names = ", ".join(str(item.path) for item in reduced[:4]) + (", …" if len(reduced) > 4 else "")
        raise InputError(
            f"{names}: hold what gpuscope never writes ({type(error).__name__}: {error})",
            hint="make them again with gpuscope reduce",
        ) from error


def _joined(parts: list[Part], items: Sequence[Input], options: Options, without: Sequence[LeftOut]) -> Analysis:
    """The analysis of a run from its files' parts, which are used up."""
    traces = [part.trace for part in parts]
    lanes = [lane for part in parts for lane in part.lanes]
    results = [result for part in parts for result in part.results]
    recorded = [entry for part in parts for entry in part.recorded]
    lost = {id(file.item) for file in without}
    present = (item for item in items if id(item) not in lost)
    files = [(item, set(part.trace.ranks)) for item, part in zip(present, parts, strict=True)]
    parts.clear()  # of thousands each holds tables that are merged here
    whole = _of_size(_with_left_out(merge(traces), files, without), options.world_size)
    check_any_read(items, whole)
    check_ranks_present(items, options.ranks, whole.ranks)
    digest.check_one_run(whole)
    intervals.check_one_clock(whole)
    folders = run_folders(item.path for item in items)
    ends = [ended(folder) for folder in folders]
    completed = bool(ends) and all(end is not None and end.status == "completed" for end in ends)
    over = bool(ends) and not any(end is None or end.going_on for end in ends)
    killed = frozenset(rank for end in ends if end is not None for rank in end.killed)
    broken = min((end.broken_step for end in ends if end is not None and end.broken_step is not None), default=None)
    asked = options.steps is not None
    facts = RunFacts(with_members(whole), lanes, attributed(results), asked, completed, over, killed, broken)
    del traces, whole
    if not options.replay:
        recorded = not_recorded(facts.trace.ranks)
    others: dict[int, int] = {}
    if any(entry.cut for entry in recorded):
        from gpuscope.analyzers.replay.device_contention import stand_ins

        if others := stand_ins(facts):
            recorded = _again(files, set(facts.trace.ranks) - others.keys(), options) or recorded
    replayer, replayed = _replay(facts, recorded, others)
    what_if: WhatIf = _NotReplayed() if replayer is None else replayer
    results += _of_run(facts, what_if)
    results += [_how_it_ended(folder, [item.path for item in items]) for folder in folders]
    results.append(narrow_links(facts, folders))
    if options.ranks is not None:
        results += _ranks_absent(options.ranks, facts.trace.ranks)
    results += _left_out(without)
    if unread := next((item.left_out for item in items if item.left_out), ()):
        results.append(Result("windows", problems=list(unread)))
    results.append(replayed)
    named = mesh(folders[0]) if len(folders) == 1 else {}
    about = setup(facts.trace, folders)
    report = build(facts, results, what_if if options.advice else None, named, about)
    if len(items) > 1:
        check_one_job(facts, report)
    return Analysis(report, replayer, facts.trace.hosts)


UNLIKE_STEPS = 1.3
"""Steps that differ by more than this are of no job in which ranks wait for each other."""


def check_one_job(facts: RunFacts, report: Report) -> None:
    """Raise `UsageError` where ranks are of different jobs: no collective joins them, they share no kernel's name, and
    their steps differ (definitions: «Ranks of a file and of a folder»)."""
    joined = {rank: rank for rank in facts.trace.ranks}

    def first_of(rank: int) -> int:
        while joined[rank] != rank:
            rank = joined[rank]
        return rank

    table, parts = facts.trace["collectives"]["rank"], len(joined)
    for instances in (facts.matched.instances, facts.matched.partial):
        for low, high in pairwise(instances.bounds.tolist()):
            members = {first_of(rank) for rank in distinct_values(np.sort(table[instances.rows[low:high]])).tolist()}
            joined.update(dict.fromkeys(members, min(members, default=0)))
            parts -= max(len(members) - 1, 0)
            if parts == 1:
                return
    kernels: dict[int, set[str]] = defaultdict(set)
    steps: dict[int, list[int]] = defaultdict(list)
    for row in report["kernel_ranks"]:
        if row["category"] not in ("communication", "memory") and row["device"] is not None:
            kernels[first_of(row["rank"])].add(row["name"])
    for step in report["steps"]:
        if step["step"] is not None and step["role"] == "steady":
            steps[first_of(step["rank"])].append(step["dur_ns"])
    files = {rank: path for path, _, ranks, _ in facts.trace.ranks_by_file() for rank in ranks}
    apart = [rank for rank in sorted(steps) if kernels[rank] and joined[rank] == rank]
    for one, other in combinations(apart[:MOST_APART], 2):
        times = sorted((median(steps[one]), median(steps[other])))
        unlike = kernels[one].isdisjoint(kernels[other]) and times[1] > UNLIKE_STEPS * times[0]
        if unlike and files[one] != files[other]:
            raise UsageError(
                f"{files[one].name} and {files[other].name} are of different jobs: no collective joins them, no kernel "
                f"runs in both, and their steps take {units.duration(median(steps[one]))} and "
                f"{units.duration(median(steps[other]))}",
                hint=f"analyse one of them at a time, or compare them: gpuscope diff {shlex.quote(str(files[one]))} "
                f"{shlex.quote(str(files[other]))}",
            )


MOST_APART = 64
"""Parts of a run without a collective between them that are compared with each other."""


def _again(files: Sequence[tuple[Input, set[int]]], ranks: set[int], options: Options) -> list[Recorded]:
    """What the replay needs of these ranks, now that it needs no more of the others: their files read once more. None
    where one of them holds no events any more."""
    chosen = [item for item, own in files if own & ranks]
    if any(isinstance(item.source, HoldsPart) for item in chosen):
        return []
    read = replace(options.read, advance=None, status=None)
    again = replace(options, ranks=sorted(ranks), files=len(chosen), read=read, with_events=False, analyses=False)
    parts, without = (side_by_side if _worth_processes(chosen, again) else in_turn)(chosen, again, lambda _: None)
    return [] if without else [entry for part in parts for entry in part.recorded]


def _with_left_out(trace: Trace, files: Sequence[tuple[Input, set[int]]], without: Sequence[LeftOut]) -> Trace:
    """The trace with a world that counts the ranks whose files could not be read, where nothing records its size and
    each file is of one rank: they are missing from the figures, not from the job."""
    timelines = suffixes_of(Role.TIMELINE)
    lost = [one.item for one in without if one.item.name.endswith(timelines)]
    own = [ranks for item, ranks in files if item.source.files.role is Role.TIMELINE]
    if not lost or any(len(ranks) != 1 for ranks in own) or recorded_world(trace).size is not None:
        return trace
    named = {item.rank for item in lost if item.rank is not None} - set(trace.ranks)
    size = len(trace.ranks) + len(named) + sum(item.rank is None for item in lost)
    return with_world_size(trace, max(size, *(rank + 1 for rank in (*named, *trace.ranks))), "files")


def _of_size(trace: Trace, size: int | None) -> Trace:
    """The trace with the number of ranks that was asked for. Raises `UsageError` for one below those at hand."""
    if size is None:
        return trace
    if size < len(trace.ranks):
        raise UsageError(
            f"--world-size {size}: {len(trace.ranks)} ranks are at hand",
            hint="give the number of ranks of the whole job",
        )
    return with_world_size(trace, size, "asked")


def _replay(facts: RunFacts, recorded: Sequence[Recorded], others: Mapping[int, int]) -> tuple[Replayer | None, Result]:
    """The replay, with who stands in for `others`, and what became of it as an analysis; a bug in it hides no other."""
    try:
        replayer = Replayer(facts, recorded, others)
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
    result.problem(job.RANKS_ABSENT, len(absent), ranks=shown)
    return [result]


def _how_it_ended(folder: Path, read: Sequence[Path]) -> Result:
    """What a run folder's manifest says went wrong, as problems of the report."""
    result, end = Result("run"), ended(folder)
    if end is not None and end.badly:
        if end.failures:
            failures = "; ".join(end.failures[:4])
            kind = job.RUN_FAILED if end.status == "failed" else job.RUN_ENDED_EARLY
            result.problem(kind, 1, run=folder.name, ended=end.words, failures=failures)
        else:
            result.problem(job.RUN_ENDED_UNEXPLAINED, 1, run=folder.name, ended=end.words)
    if end is not None and end.going_on:
        result.problem(job.RUN_GOING_ON, 1, run=folder.name)
    for said in end.lost if end else ():
        result.problem(job.RECORDING_LOST, 1, said=said)
    for said in end.wrong if end else ():
        result.problem(job.RUN_TROUBLE, 1, run=folder.name, said=said)
    for said in end.paused if end else ():
        result.problem(job.RUN_PAUSED, 1, run=folder.name, said=said)
    for refused in refused_files(folder):
        result.problem(reading.RUN_FILE_REFUSED, 1, run=folder.name, why=refused.why)
    if others := left_out(folder, read):
        result.problems.append(others)
    return result


def _left_out(files: Sequence[LeftOut]) -> list[Result]:
    """Files that could not be read, as problems: what they would have shown is missing from every figure."""
    if not files:
        return []
    result = Result("files")
    for file in files:
        result.problem(job.FILE_LEFT_OUT, 1, file=file.name, why=file.why)
    return [result]


def _worth_processes(items: Sequence[Input], options: Options) -> bool:
    return len(items) > 1 and options.workers > 1 and total_size(items) >= PARALLEL_FROM


__all__ = ["Options", "analyze", "run"]
