"""From the facts of a run and the results of its analyses to the report, built once from parts that are complete."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import cast

import numpy as np

from gpuscope.analyzers.advice.suggesting import advise, not_asked
from gpuscope.analyzers.base import sections
from gpuscope.analyzers.base.analyzer import (
    Analyzer,
    Attributed,
    FileAnalyzer,
    LaneKey,
    Result,
    analyzers_of,
    attributed,
)
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.base.sections import Sections, merged
from gpuscope.analyzers.base.self_check import NAME as CHECK
from gpuscope.analyzers.base.self_check import self_check
from gpuscope.analyzers.device_time.ideal_step import ideal_steps
from gpuscope.analyzers.device_time.kernels.compute_findings import compute_findings
from gpuscope.analyzers.facts.pipeline_facts.assembled import computations_alone
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.analyzers.facts.setup import stacks_recorded
from gpuscope.analyzers.facts.steady_state import SteadyState
from gpuscope.analyzers.run.shown_clock import clock_entry
from gpuscope.analyzers.verdict import verdict
from gpuscope.analyzers.verdict.cause_findings import Run, findings
from gpuscope.analyzers.verdict.unexplained import unexplained
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.cause_table import BY_CODE, class_of
from gpuscope.problems import collectives, completeness, job, reading
from gpuscope.problems.problem import ProblemKind
from gpuscope.report.view import memory_sentences, places
from gpuscope.report.view.per_step import with_per_step
from gpuscope.schema.document import (
    SCHEMA_VERSION,
    AnalyzerEntry,
    BreakdownEntry,
    Diagnosis,
    FindingEntry,
    ProblemEntry,
    RankEntry,
    Report,
    SetupEntry,
    SourceEntry,
    Stalls,
    StepEntry,
    TraceEntry,
)
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.sources.companion_files import files_of, is_timeline
from gpuscope.sources.remote import shown
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming.frameworks import frameworks, parallelism
from gpuscope.trace.naming.programs import program
from gpuscope.trace.schema import NA
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.trace import Trace
from gpuscope.version import __version__

Causes = Mapping[str, Attributed]


def build(
    facts: RunFacts, results: Sequence[Result], what_if: WhatIf | None, parallelism: Mapping[str, int] | None = None,
    about: SetupEntry | None = None,
) -> Report:  # fmt: skip
    """The report of a run from the results of its analyses.

    `what_if` says what a change would bring, None where no advice is asked for; `parallelism` is what the run's
    manifest names, for jobs whose groups don't; `about` what is recorded of its software and hosts.
    """
    causes = attributed(results)
    checked, wrong = self_check(facts.lanes, causes, _unsettled(results))
    results = [*results, checked]
    causes = {key: {} if key in wrong else causes.get(key, {}) for key in (lane.key for lane in facts.lanes)}
    thinned = {lane.key for lane in facts.lanes if lane.thinned}
    causes = {key: undetermined(own) if key in thinned else own for key, own in causes.items()}
    problems = _problems(facts, results)
    diagnosis = _diagnosis(facts, causes, problems, results, parallelism or {})
    if about is not None:
        diagnosis["trace"]["setup"] = about
    for gap in diagnosis["gaps"]:
        if (gap["rank"], NA if gap["device"] is None else gap["device"]) in thinned | wrong:
            gap["cause"] = None
    suggestions, advice = (
        ([], not_asked()) if what_if is None else advise(diagnosis, what_if.predict, estimate=what_if.estimate)
    )
    return {
        **diagnosis,
        "suggestions": suggestions,
        "advice": advice,
        "problems": problems,
        "analyzers": _analyzers(results),
    }


def _diagnosis(
    facts: RunFacts, causes: Mapping[LaneKey, Causes], problems: Sequence[ProblemEntry], results: Sequence[Result],
    parallelism: Mapping[str, int],
) -> Diagnosis:  # fmt: skip
    lanes = facts.lanes
    given = merged(result.sections for result in results)
    clock_error = given.get(sections.CLOCK_ERROR)
    basis = next((lane.basis for lane in lanes if lane.basis), None)
    found: Diagnosis = {
        "schema_version": SCHEMA_VERSION,
        "gpuscope_version": __version__,
        "trace": _trace(facts, given, parallelism),
        "verdict": verdict.decide(_weigh(facts, causes, problems, results, given)),
        "ranks": [_rank(facts, lane, causes[lane.key]) for lane in lanes],
        "steps": [step for lane in lanes for step in _steps(facts.steady, lane, causes[lane.key])],
        "step_time": facts.step_time,
        "steps_basis": basis,
        "steps_provenance": None if basis is None else "inferred" if basis == KERNEL_SEQUENCE else "measured",
        "collectives": [],
        "stragglers": [],
        "rank_steps": [],
        "kernels": [],
        "kernel_ranks": [],
        "operators": [],
        "ranges": [],
        "phases": [],
        "api_calls": [],
        "copies": [],
        "launches": [],
        "queues": [],
        "streams": [],
        "gaps": [],
        "call_tree": [],
        "findings": _findings(facts, causes, results, given, clock_error),
    }
    # What no analysis gave is empty, or left out where the schema says so.
    diagnosis = cast(Diagnosis, {**found, **given.printed()})
    lines = {row["kernel"]: row["place"] for row in facts.trace.rows("compiled_kernels")}
    diagnosis["call_tree"] = places.led_to_lines(diagnosis["call_tree"], lines)
    if ideal := ideal_steps(diagnosis):
        diagnosis["ideal"] = ideal
    return diagnosis


def undetermined(causes: Causes) -> dict[str, Attributed]:
    """The causes of a thinned recording: what was dropped may be the cause of any idle or exposed time that is left."""
    found: dict[str, Attributed] = {}
    for cause, one in causes.items():
        code = _UNDETERMINED.get(BY_CODE[cause].part, cause)
        so_far = found.get(code)
        found[code] = (
            Attributed(one.total, one.per_step) if so_far is None
            else Attributed(so_far.total + one.total, so_far.per_step + one.per_step)
        )  # fmt: skip
    return found


_UNDETERMINED = {"idle": UNATTRIBUTED, "exposed_communication": UNDIVIDED_COMMUNICATION}
"""What becomes of the causes of a part of the breakdown where causes can't be determined."""


def _findings(
    facts: RunFacts, causes: Mapping[LaneKey, Causes], results: Sequence[Result], given: Sections,
    clock_error: int | None,
) -> list[FindingEntry]:  # fmt: skip
    """Those of causes, the costliest first, then those of each analysis."""
    late = given.get(sections.STRAGGLERS)
    measure = Run(
        windows={lane.key: facts.steady.breakdown(lane).window for lane in facts.lanes},
        steps={lane.key: facts.steady.count(lane) for lane in facts.lanes},
        stragglers=late or [],
        testable=given.get(sections.STRAGGLERS_TESTABLE) is not False,
        clock_error=clock_error,
    )
    judged = {lane.key: judged_causes(facts.steady, lane, causes[lane.key]) for lane in facts.lanes}
    of_analyses = (finding for result in results for finding in result.findings)
    thinned = any(lane.thinned for lane in facts.lanes)
    compute = given.get(sections.COMPUTE)
    of_compute = compute_findings(compute) if compute and not thinned else ()
    found = [*findings(judged, measure), *of_analyses, *of_compute]
    step_time = facts.step_time
    return [with_per_step(one, step_time["median_ns"] if step_time else None) for one in found]


def judged_causes(steady: SteadyState, lane: LaneSummary, causes: Causes) -> dict[str, Attributed]:
    """A lane's causes over its judged steps alone; those that took none of it are left out."""
    found = {cause: replace(one, total=steady.measure(lane, one.total, one.per_step)) for cause, one in causes.items()}
    return {cause: one for cause, one in found.items() if one.total}


def _problems(facts: RunFacts, results: Sequence[Result]) -> list[ProblemEntry]:
    of_run = Result("run")
    if facts.world.assumed:
        of_run.problem(job.WORLD_ASSUMED, len(facts.trace.ranks), why=facts.world.why)
    found = chain(*(result.problems for result in (*results, of_run)), facts.trace.problems)
    return [ProblemEntry(severity=p.severity, code=p.code, count=p.count, message=p.message) for p in found]


def _unsettled(results: Sequence[Result]) -> set[str]:
    """Causes to which nothing could be attributed, for their analysis did not run to its end."""
    ended_early = {result.analyzer for result in results if result.status != "ok"}
    analyzers: tuple[Analyzer, ...] = tuple(
        analyzer for kind in (FileAnalyzer, RunAnalyzer, WhatIfAnalyzer) for analyzer in analyzers_of(kind)
    )
    return {cause for analyzer in analyzers if analyzer.name in ended_early for cause in analyzer.causes}


def _trace(facts: RunFacts, given: Sections, named: Mapping[str, int]) -> TraceEntry:
    trace, clock_error = facts.trace, given.get(sections.CLOCK_ERROR)
    compared = sections.SLOWDOWN in given  # which takes the word of the ranks' recorder for one clock
    files = trace.ranks_by_file()
    table = trace["groups"]
    groups = [
        (trace.names[int(code)], int(size)) for code, size in zip(table["description"], table["size"], strict=True)
    ]
    formats = {source.format for source in trace.sources}
    sources: list[SourceEntry] = [
        {"path": shown(path), "format": fmt, "format_version": source.format_version,
         "rank": ranks[0] if len(ranks) == 1 else None, "ranks": ranks, "events": source.events}
        for (path, fmt, found, _), source in zip(files, trace.sources, strict=True)
        for ranks in ([] if source.facts.get("rank_told") is False else found,)
    ]  # fmt: skip
    return {
        "sources": sources,
        "world_size": facts.world.size,
        "world_basis": facts.world.provenance,
        "ranks_present": _ranks_told(trace, trace.ranks),
        "clock_error_ns": clock_error,
        "clock_provenance": "measured" if clock_error is not None else "assumed" if compared else None,
        "clock": clock_entry(facts, compared),
        "frameworks": frameworks(trace.names.names, {description for description, _ in groups}, formats),
        "program": program(trace.names.names, formats, bool(facts.lanes)),
        "parallelism": parallelism(groups) or dict(named),  # one group of all ranks says nothing of its purpose
    }


def _weigh(
    facts: RunFacts, causes: Mapping[LaneKey, Causes], problems: Sequence[ProblemEntry], results: Sequence[Result],
    given: Sections,
) -> verdict.Evidence:  # fmt: skip
    trace, lanes = facts.trace, facts.lanes
    events = sum(lane.events for lane in lanes)
    lost = verdict.count_problem(problems, completeness.KERNEL_MISSING)
    counted_apart = (completeness.KERNEL_MISSING.code, reading.TRUNCATED.code)
    losses = [p for p in problems if p["severity"] == "data_loss" and p["code"] not in counted_apart]
    # That kernels were lost says more than that there are none.
    reasons = (
        _messages(problems, completeness.KERNELS_NOT_RECORDED)
        or _messages(problems, completeness.CUDA_NOT_TRACED)
        or _messages(problems, job.RECORDING_LOST)
    )
    totals = verdict.totals([judged_causes(facts.steady, lane, causes[lane.key]) for lane in lanes])
    judged = [facts.steady.breakdown(lane) for lane in lanes]
    return verdict.Evidence(
        window=sum(breakdown.window for breakdown in judged),
        causes=totals,
        idle=sum(breakdown.idle for breakdown in judged),
        ranks=trace.ranks,
        world_size=facts.world.size,
        world_assumed=facts.world.assumed,
        launches=events + lost,
        kernels_lost=lost,
        events=events,
        launch_missing=verdict.count_problem(problems, completeness.LAUNCH_MISSING),
        events_lost=sum(p["count"] for p in losses),
        totals_differ=verdict.count_problem(problems, reading.TOTALS_DIFFER) > 0,
        unknown_communication=verdict.count_problem(problems, completeness.LOOKS_LIKE_COMMUNICATION) > 0,
        members_unknown=verdict.count_problem(problems, collectives.GROUP_UNKNOWN) > 0,
        why_whole=facts.steady.why_whole,
        thinned=next((lane.thinned for lane in lanes if lane.thinned), ""),
        assumed=[cause for result in results for cause in result.assumed],
        sizes_estimated=verdict.count_problem(problems, collectives.SIZES_ESTIMATED) > 0,
        why_no_device="; ".join(reasons) or _no_timeline(trace, given.get(sections.MEMORY)),
        hung=any(finding["code"] == "hang" for result in results for finding in result.findings),
        slowdown=given.get(sections.SLOWDOWN),
        bubble=_bubble(facts, given),
        waits_without_core=_without_core(given),
        worked=_worked(judged, lanes),
        unexplained=unexplained(given.get(sections.GAPS) or [], stacks_recorded(trace)),
        contradiction="; ".join(one.why for one in results if one.analyzer == CHECK and one.status == "failed"),
        timelines_cut=_timelines_cut(trace, problems),
    )


def _bubble(facts: RunFacts, given: Sections) -> float | None:
    """The share of a pipeline's time without computations, of a job whose timers hold these alone."""
    pipeline = given.get(sections.PIPELINE)
    return pipeline.get("bubble_frac") if pipeline and computations_alone(facts.trace, facts.operations) else None


def _worked(judged: Sequence[Breakdown], lanes: Sequence[LaneSummary]) -> int | None:
    """ns in which devices worked in what is judged; None where a lane has no device (a CPU run)."""
    if any(lane.device == NA for lane in lanes):
        return None
    return sum(breakdown.window - breakdown.idle for breakdown in judged)


def _timelines_cut(trace: Trace, problems: Sequence[ProblemEntry]) -> int:
    """How many files are cut off, where files with a timeline are among them: only these could hold device events."""
    timeline = any(is_timeline(one.format) for one in trace.sources)
    return verdict.count_problem(problems, reading.TRUNCATED) if timeline else 0


def _without_core(given: Sections) -> float:
    """The share of the waiting that may be for cores, where no rank is late for a reason of its own; else 0."""
    own = [one for one in given.get(sections.STRAGGLERS) or () if one["recurrent"]]
    if any(one["reason"] not in ("cores", None) for one in own):
        return 0.0
    return given.get(sections.WAITS_WITHOUT_CORE) or 0.0


def _messages(problems: Sequence[ProblemEntry], kind: ProblemKind) -> list[str]:
    """What the problems of a kind say, each sentence once."""
    return list(dict.fromkeys(problem["message"] for problem in problems if problem["code"] == kind.code))


def _no_timeline(trace: Trace, memory: Sequence[MemoryEntry] | None) -> str:
    """What files without any timeline are good for instead, and what they hold; empty where that is not so."""
    formats = dict.fromkeys(source.format for source in trace.sources)
    if any(is_timeline(fmt) for fmt in formats):
        return ""
    said = list(dict.fromkeys(files_of(fmt).alone for fmt in formats))
    if (entry := memory_sentences.leading(memory or [])) is not None:
        said.append(memory_sentences.peak_sentence(entry))
    return "; ".join(said)


def _ranks_told(trace: Trace, ranks: Sequence[int]) -> list[int]:
    """Without those that no file tells: a snapshot without a label counts as rank 0 for want of another number."""
    of_files = trace.ranks_by_file()
    told = {
        rank
        for (_, _, own, _), source in zip(of_files, trace.sources, strict=True)
        if source.facts.get("rank_told") is not False
        for rank in own
    }
    return [rank for rank in ranks if rank in told] if of_files else list(ranks)


def _stalls(sums: Mapping[str, int]) -> Stalls:
    stalls: dict[str, dict[str, int]] = {"cpu": {}, "communication": {}, "memory": {}}
    for cause, spent in sums.items():
        class_name = class_of(cause)
        if class_name is not None:
            stalls[class_name][UNATTRIBUTED if cause == UNDIVIDED_COMMUNICATION else cause] = spent
    return {
        "cpu": stalls["cpu"], "communication": stalls["communication"], "memory": stalls["memory"],
        "unattributed": sums.get(UNATTRIBUTED, 0),
    }  # fmt: skip


def _parts(breakdown: Breakdown) -> BreakdownEntry:
    return BreakdownEntry(
        compute=breakdown.compute,
        exposed_communication=breakdown.exposed_communication,
        exposed_memory=breakdown.exposed_memory,
        idle=breakdown.idle,
    )


def _rank(facts: RunFacts, lane: LaneSummary, causes: Causes) -> RankEntry:
    breakdown = facts.steady.breakdown(lane)
    judged = [step.start for step in lane.steps if facts.steady.judged(step.step)]
    return {
        "rank": lane.rank,
        "device": None if lane.device == NA else lane.device,
        "device_name": _device_name(facts.trace, lane),
        "window_ns": breakdown.window,
        "start_ns": judged[0] if judged else lane.window[0],
        "steps": facts.steady.count(lane),
        "recorded_ns": lane.breakdown.window,
        "recorded_breakdown_ns": _parts(lane.breakdown),
        "breakdown_ns": _parts(breakdown),
        "communication_ns": breakdown.communication,
        "overlapped_communication_ns": breakdown.overlapped_communication,
        "overlap_frac": breakdown.overlapped_communication / breakdown.communication
        if breakdown.communication
        else None,
        "stall_ns": _stalls({cause: one.total for cause, one in judged_causes(facts.steady, lane, causes).items()}),
    }


def _device_name(trace: Trace, lane: LaneSummary) -> str | None:
    ranks = trace["ranks"]
    rows = np.flatnonzero((ranks["rank"] == lane.rank) & (ranks["device"] == lane.device))
    code = int(ranks["device_name"][rows[0]]) if len(rows) else NO_NAME
    return trace.names[code] if code != NO_NAME else None


def _steps(steady: SteadyState, lane: LaneSummary, causes: Causes) -> list[StepEntry]:
    entries: list[StepEntry] = []
    for index, (step, breakdown) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        own = {cause: int(attributed.per_step[index]) for cause, attributed in causes.items()}
        top, cause, _ = verdict.bound(own, breakdown.window)
        entries.append({
            "step": None if step.step == NA else step.step, "rank": lane.rank,
            "device": None if lane.device == NA else lane.device, "role": steady.role(step.step).value,
            "start_ns": step.start, "dur_ns": breakdown.window,
            "breakdown_ns": _parts(breakdown), "bound_by": top, "cause": cause,
        })  # fmt: skip
    return entries


def _analyzers(results: Sequence[Result]) -> list[AnalyzerEntry]:
    """What became of each analysis; over several files the worst counts."""
    worst = {"ok": 0, "skipped": 1, "failed": 2}
    entries: dict[str, AnalyzerEntry] = {}
    for result in results:
        entry = entries.get(result.analyzer)
        if entry is None or worst[result.status] > worst[entry["status"]]:
            entries[result.analyzer] = {
                "name": result.analyzer, "status": result.status, "why": result.why, "applicable": result.applicable,
            }  # fmt: skip
    return list(entries.values())
