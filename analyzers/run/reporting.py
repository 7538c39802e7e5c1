"""From the facts of a run and the results of its analyses to the report, built once from parts that are complete."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import cast

import numpy as np

from gpuscope.analyzers.advice.suggesting import advise, not_asked
from gpuscope.analyzers.base import lanes as sections
from gpuscope.analyzers.base.analyzer import (
    EVIDENCE,
    Analyzer,
    Attributed,
    FileAnalyzer,
    LaneKey,
    Result,
    analyzers_of,
    attributed,
    self_check,
)
from gpuscope.analyzers.base.analyzer import NAME as CHECK
from gpuscope.analyzers.base.lanes import LaneSummary, Sections, merged
from gpuscope.analyzers.device_time.compute_findings import below_roof_findings, compute_findings, ideal_steps
from gpuscope.analyzers.facts.clocks import by_host
from gpuscope.analyzers.facts.pipeline_facts import computations_alone
from gpuscope.analyzers.facts.process_groups import stacks_recorded
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts, WhatIf, WhatIfAnalyzer
from gpuscope.analyzers.run.set_apart import Causes, judged_causes, rank_entry, set_apart, step_entries
from gpuscope.analyzers.serving.served_steps import (
    batches_of,
    captured_sizes,
    served_steps,
    serving_findings,
    serving_section,
)
from gpuscope.analyzers.verdict import verdict
from gpuscope.analyzers.verdict.cause_findings import Run, findings, unexplained
from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.finding import kinds, made
from gpuscope.catalogue.suggestion import BY_CODE
from gpuscope.problems import job, reading
from gpuscope.problems.problem import ProblemKind
from gpuscope.report.view import call_tree, report_rows
from gpuscope.report.view.report_rows import with_per_step
from gpuscope.schema.document import (
    SCHEMA_VERSION,
    AnalyzerEntry,
    ClockEntry,
    Diagnosis,
    FindingEntry,
    ProblemEntry,
    Report,
    SetupEntry,
    SourceEntry,
    TraceEntry,
)
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.sources.source import files_of, is_timeline
from gpuscope.sources.windows import shown
from gpuscope.trace.frameworks import frameworks, parallelism, program
from gpuscope.trace.intervals import Breakdown
from gpuscope.trace.schema import NA
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.trace import Trace
from gpuscope.version import __version__

# The clock of a run as its report states it: one origin of all places, and how each rank's clock runs.


def clock_entry(facts: RunFacts, compared: bool) -> ClockEntry | None:
    """None without windows. Where nothing ties the clocks, those of each host begin with its first window, unless they
    are `compared` all the same."""
    begun = {lane.rank: lane.window[0] for lane in sorted(facts.lanes, key=lambda lane: -lane.window[0])}
    if not begun:
        return None
    clocks, ranks = facts.clocks, facts.trace.ranks
    if clocks.error is None and not compared:
        first: dict[int, int] = {}
        for rank, start in begun.items():
            lead = clocks.clock.get(rank, rank)
            first[lead] = min(start, first.get(lead, start))
        origin = min(first.values())
        own = {rank: first.get(clocks.clock.get(rank, rank), origin) for rank in ranks}
    else:
        several = np.array(list(begun), np.int64)
        origin = int(clocks.common(several, np.array(list(begun.values()), np.int64)).min())
        of_all = np.array(ranks, np.int64)
        own = dict(zip(ranks, clocks.local(of_all, np.full(len(ranks), origin)).tolist(), strict=True))
    return {
        "origin_ns": origin,
        "offset_ns": {str(rank): start - origin for rank, start in own.items() if start != origin},
        "drift_frac": {str(rank): drift for rank, drift in clocks.drift.items() if drift},
    }


# Findings of single ranks as findings of the run: shares are of all ranks' windows (definitions), and what several
# ranks have alike is one finding.


def of_run(found: Iterable[FindingEntry], windows: Mapping[LaneKey, int]) -> list[FindingEntry]:
    """The findings of each lane's own analyses; `windows` is the judged time of every lane of the run, ns. One of no
    rank or of several, and one that costs no share, stays as it is."""
    alike: dict[str, list[FindingEntry]] = defaultdict(list)
    for one in found:
        facts = {name: value for name, value in one["facts"].items() if name != "share"}
        of_one = len(windows) > 1 and len(one["ranks"]) == 1 and one["share_frac"] > 0
        alike[json.dumps([one["code"], facts] if of_one else len(alike))].append(one)
    return [own[0] if key.isdigit() else _joined(own, windows) for key, own in alike.items()]


def _joined(own: list[FindingEntry], windows: Mapping[LaneKey, int]) -> FindingEntry:
    share = sum(one["share_frac"] * _window(one["ranks"][0], windows) for one in own) / sum(windows.values())
    facts = own[0]["facts"]
    words = kinds()[own[0]["code"]](**facts | ({"share": share} if "share" in facts else {}))
    evidence = sorted((item for one in own for item in one["evidence"]), key=lambda item: -item["dur_ns"])
    entry = made(
        words,
        ranks={one["ranks"][0] for one in own},
        share=share,
        cost_ns=sum(one["cost_ns"] or 0 for one in own),
        mean_ns=round(sum(one["cost_ns_per_step"] or 0 for one in own) / len(windows)),
        evidence=evidence[:EVIDENCE],
    )
    return {**entry, "worst_share_frac": max(one["share_frac"] for one in own)}


def _window(rank: int, windows: Mapping[LaneKey, int]) -> float:
    """Of one of its lanes; they have the same steps."""
    own = [window for (one, _), window in windows.items() if one == rank]
    return sum(own) / len(own)


def build(
    facts: RunFacts,
    results: Sequence[Result],
    what_if: WhatIf | None,
    parallelism: Mapping[str, int] | None = None,
    about: SetupEntry | None = None,
) -> Report:
    """The report of a run from the results of its analyses.

    `what_if` says what a change would bring, None where no advice is asked for; `parallelism` is what the run's
    manifest names, for jobs whose groups don't; `about` what is recorded of its software and hosts.
    """
    causes = attributed(results)
    checked, wrong = self_check(facts.lanes, causes, _unsettled(results))
    results = [*results, checked]
    causes = {key: {} if key in wrong else causes.get(key, {}) for key in (lane.key for lane in facts.lanes)}
    problems = _problems(facts, results)
    thinned = {lane.key for lane in facts.lanes if lane.thinned}
    stands = _class_stands(facts, causes)
    shown = {key: undetermined(own, stands) if key in thinned else own for key, own in causes.items()}
    given = merged(result.sections for result in results)
    weighed = _weigh(facts, causes if stands else shown, problems, results, given, stands)
    diagnosis = _diagnosis(facts, shown, weighed, results, given, parallelism or {})
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
    facts: RunFacts,
    causes: Mapping[LaneKey, Causes],
    weighed: verdict.Evidence,
    results: Sequence[Result],
    given: Sections,
    parallelism: Mapping[str, int],
) -> Diagnosis:
    lanes = facts.lanes
    clock_error = given.get(sections.CLOCK_ERROR)
    basis = next((lane.basis for lane in lanes if lane.basis), None)
    batches = batches_of(facts.trace)
    found: Diagnosis = {
        "schema_version": SCHEMA_VERSION,
        "gpuscope_version": __version__,
        "trace": _trace(facts, given, parallelism, serves=bool(batches)),
        "verdict": verdict.decide(weighed),
        "ranks": [rank_entry(facts, lane, causes[lane.key]) for lane in lanes],
        "steps": [step for lane in lanes for step in step_entries(facts.steady, lane, causes[lane.key], batches)],
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
        "findings": _findings(facts, causes, results, given, clock_error, stands=weighed.stands),
    }
    # What no analysis gave is empty, or left out where the schema says so.
    diagnosis = cast(Diagnosis, {**found, **given.printed()})
    lines = {row["kernel"]: row["place"] for row in facts.trace.rows("compiled_kernels")}
    if sections.SERVING_STEPS in given:
        measured = given[sections.SERVING_STEPS]
        served = served_steps(facts, causes, batches, measured)
        diagnosis["serving"] = serving_section(served, diagnosis["trace"]["frameworks"], captured_sizes(batches))
        of_server = serving_findings(served, diagnosis["serving"])
        diagnosis["findings"] += [with_per_step(one, facts.step_ns) for one in of_server]
    diagnosis["call_tree"] = call_tree.led_to_lines(diagnosis["call_tree"], lines)
    if apart := set_apart(facts):
        diagnosis["set_apart"] = apart
    if ideal := ideal_steps(diagnosis):
        diagnosis["ideal"] = ideal
    return diagnosis


def _class_stands(facts: RunFacts, causes: Mapping[LaneKey, Causes]) -> bool:
    """Whether lanes are thinned, but what was dropped could not change the class."""
    thinned = [lane for lane in facts.lanes if lane.thinned]
    if not thinned:
        return False
    totals = verdict.totals([judged_causes(facts.steady, lane, causes[lane.key]) for lane in facts.lanes])
    judged = {lane.key: facts.steady.breakdown(lane) for lane in facts.lanes}
    left = {
        "idle": sum(judged[lane.key].idle for lane in thinned),
        "exposed_communication": sum(judged[lane.key].exposed_communication for lane in thinned),
    }
    known = [lane.lost_work for lane in thinned if lane.lost_work is not None]
    lost = sum(known) if len(known) == len(thinned) else None
    window, idle = (sum(getattr(one, part) for one in judged.values()) for part in ("window", "idle"))
    return verdict.class_stands(totals, window, left, lost, idle)


def undetermined(causes: Causes, stands: bool = False) -> dict[str, Attributed]:
    """The causes of a thinned recording: what was dropped may be the cause of any idle or exposed time that is left; of
    idle time alone where the class `stands`."""
    found: dict[str, Attributed] = {}
    for cause, one in causes.items():
        part = BY_CODE[cause].part
        code = cause if stands and part != "idle" else _UNDETERMINED.get(part, cause)
        so_far = found.get(code)
        found[code] = (
            Attributed(one.total, one.per_step)
            if so_far is None
            else Attributed(so_far.total + one.total, so_far.per_step + one.per_step)
        )
    return found


_UNDETERMINED = {"idle": UNATTRIBUTED, "exposed_communication": UNDIVIDED_COMMUNICATION}
"""What becomes of the causes of a part of the breakdown where causes can't be determined."""


def _findings(
    facts: RunFacts,
    causes: Mapping[LaneKey, Causes],
    results: Sequence[Result],
    given: Sections,
    clock_error: int | None,
    *,
    stands: bool,
) -> list[FindingEntry]:
    """Those of causes, the costliest first, then those of each analysis; `stands` as in `verdict.Evidence`."""
    late = given.get(sections.STRAGGLERS)
    measure = Run(
        windows={lane.key: facts.steady.breakdown(lane).window for lane in facts.lanes},
        steps={lane.key: facts.steady.count(lane) for lane in facts.lanes},
        stragglers=late or [],
        testable=given.get(sections.STRAGGLERS_TESTABLE) is not False,
        clock_error=clock_error,
    )
    judged = {lane.key: judged_causes(facts.steady, lane, causes[lane.key]) for lane in facts.lanes}
    of_files = {analyzer.name for analyzer in analyzers_of(FileAnalyzer)}
    of_ranks = (finding for result in results if result.analyzer in of_files for finding in result.findings)
    of_whole = (finding for result in results if result.analyzer not in of_files for finding in result.findings)
    thinned = any(lane.thinned for lane in facts.lanes) and not stands
    compute = given.get(sections.COMPUTE)
    whole = "step" if facts.steady.steps else "window"
    of_compute = compute_findings(compute, whole) if compute and not thinned else ()
    roofs = below_roof_findings(compute, whole) if compute else ()
    found = [*findings(judged, measure), *of_run(of_ranks, measure.windows), *of_whole, *of_compute, *roofs]
    step_time = facts.step_time
    return [with_per_step(one, step_time["median_ns"] if step_time else None) for one in found]


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


def _trace(facts: RunFacts, given: Sections, named: Mapping[str, int], *, serves: bool) -> TraceEntry:
    trace, clock_error = facts.trace, given.get(sections.CLOCK_ERROR)
    compared = sections.SLOWDOWN in given  # which takes the word of the ranks' recorder for one clock
    files = trace.ranks_by_file()
    table = trace["groups"]
    groups = [
        (trace.names[int(code)], int(size)) for code, size in zip(table["description"], table["size"], strict=True)
    ]
    formats = {source.format for source in trace.sources}
    sources: list[SourceEntry] = [
        {
            "path": shown(path),
            "format": fmt,
            "format_version": source.format_version,
            "rank": ranks[0] if len(ranks) == 1 else None,
            "ranks": ranks,
            "events": source.events,
        }
        for (path, fmt, found, _), source in zip(files, trace.sources, strict=True)
        for ranks in ([] if source.facts.get("rank_told") is False else found,)
    ]
    return {
        "sources": sources,
        "world_size": facts.world.size,
        "world_basis": facts.world.provenance,
        "ranks_present": _ranks_told(trace, trace.ranks),
        "clock_error_ns": clock_error,
        "clock_provenance": "measured" if clock_error is not None else "assumed" if compared else None,
        "clock": clock_entry(facts, compared),
        "frameworks": frameworks(trace.names.names, {description for description, _ in groups}, formats),
        "program": "server" if serves else program(trace.names.names, formats, bool(facts.lanes)),
        "parallelism": parallelism(groups) or dict(named),  # one group of all ranks says nothing of its purpose
    }


def _weigh(
    facts: RunFacts,
    causes: Mapping[LaneKey, Causes],
    problems: Sequence[ProblemEntry],
    results: Sequence[Result],
    given: Sections,
    stands: bool,
) -> verdict.Evidence:
    trace, lanes = facts.trace, facts.lanes
    events = sum(lane.events for lane in lanes)
    lost = verdict.count_problem(problems, reading.KERNEL_MISSING)
    counted_apart = (reading.KERNEL_MISSING.code, reading.TRUNCATED.code, reading.OVERRUNS_STREAM.code)
    dropped = [p for p in problems if p["code"] in _DROPPED]
    losses = [p for p in problems if p["severity"] == "data_loss" and p["code"] not in counted_apart]
    # That kernels were lost says more than that there are none.
    reasons = (
        _messages(problems, reading.RECORDER_DELIVERED_NOTHING)
        or _messages(problems, reading.CUDA_NOT_TRACED)
        or _messages(problems, job.RECORDING_LOST)
    )
    totals = verdict.totals([judged_causes(facts.steady, lane, causes[lane.key]) for lane in lanes])
    judged = [facts.steady.breakdown(lane) for lane in lanes]
    return verdict.Evidence(
        window=sum(breakdown.window for breakdown in judged),
        causes=totals,
        idle=sum(breakdown.idle for breakdown in judged),
        ranks=trace.ranks,
        killed=facts.killed,
        world_size=facts.world.size,
        world_assumed=facts.world.assumed,
        launches=events + lost,
        kernels_lost=lost,
        events=events,
        launch_missing=verdict.count_problem(problems, reading.LAUNCH_MISSING),
        events_lost=sum(p["count"] for p in losses),
        totals_differ=verdict.count_problem(problems, reading.TOTALS_DIFFER) > 0,
        unknown_communication=verdict.count_problem(problems, reading.LOOKS_LIKE_COMMUNICATION) > 0,
        members_unknown=verdict.count_problem(problems, job.GROUP_UNKNOWN) > 0,
        peers_unknown=verdict.count_problem(problems, job.PEER_UNKNOWN) > 0,
        by_host=bool(len(trace["collectives"])) and bool(by_host(trace).all()),
        why_whole=facts.steady.why_whole,
        thinned=next((lane.thinned for lane in lanes if lane.thinned), ""),
        stands=stands,
        exposed=sum(breakdown.exposed_communication for breakdown in judged),
        assumed=[cause for result in results for cause in result.assumed],
        sizes_estimated=verdict.count_problem(problems, job.SIZES_ESTIMATED) > 0,
        totals_contradict="; ".join(
            _messages(problems, reading.TOTALS_CONTRADICT) and _messages(problems, reading.TOTALS_DIFFER)
        ),
        nothing_delivered=_nothing_delivered(problems),
        why_no_device="; ".join(reasons) or _no_timeline(trace, given.get(sections.MEMORY)),
        hung=any(finding["code"] == "hang" for result in results for finding in result.findings),
        slowdown=given.get(sections.SLOWDOWN),
        bubble=_bubble(facts, given),
        waits_without_core=_without_core(given),
        worked=_worked(judged, lanes),
        copies_alone=all(
            not (one.compute or one.exposed_communication) and one.idle > one.exposed_memory for one in judged
        ),
        unjudged=sorted({lane.rank for lane, part in zip(lanes, judged, strict=True) if not part.window}),
        unexplained=unexplained(given.get(sections.GAPS) or [], stacks_recorded(trace)),
        contradiction="; ".join(one.why for one in results if one.analyzer == CHECK and one.status == "failed"),
        timelines_cut=_timelines_cut(trace, problems),
        overruns=verdict.count_problem(problems, reading.OVERRUNS_STREAM),
        dropped=sum(p["count"] for p in dropped),
        why_dropped=max(dropped, key=lambda p: p["count"])["message"] if dropped else "",
        recorded=sum(source.events for source in trace.sources),
    )


_DROPPED = {
    kind.code
    for kind in (reading.BAD_TIME, reading.NEGATIVE_DURATION, reading.IMPOSSIBLE_TIME, reading.UNDECODABLE_EVENT)
}
"""Problems whose count is of events that were left out."""


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


def _nothing_delivered(problems: Sequence[ProblemEntry]) -> str:
    """That launches were recorded without one kernel, and what the hosts did; empty where that is not so."""
    lost = [problem["count"] for problem in problems if problem["code"] == reading.KERNELS_NOT_RECORDED.code]
    if not lost:
        return ""
    ranks = f" on {len(lost)} ranks" if len(lost) > 1 else ""
    hosts = _messages(problems, reading.HOST_ALONE)[:1]
    return "; ".join([f"{sum(lost):,} launches were recorded{ranks} and none of their kernels", *hosts])


def _messages(problems: Sequence[ProblemEntry], kind: ProblemKind) -> list[str]:
    """What the problems of a kind say, each sentence once."""
    return list(dict.fromkeys(problem["message"] for problem in problems if problem["code"] == kind.code))


def _no_timeline(trace: Trace, memory: Sequence[MemoryEntry] | None) -> str:
    """What files without any timeline are good for instead, and what they hold; empty where that is not so."""
    formats = dict.fromkeys(source.format for source in trace.sources)
    if any(is_timeline(fmt) for fmt in formats):
        return ""
    said = list(dict.fromkeys(files_of(fmt).alone for fmt in formats))
    if (entry := report_rows.leading(memory or [])) is not None:
        said.append(report_rows.peak_sentence(entry))
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


def _analyzers(results: Sequence[Result]) -> list[AnalyzerEntry]:
    """What became of each analysis; over several files the worst counts."""
    worst = {"ok": 0, "skipped": 1, "failed": 2}
    entries: dict[str, AnalyzerEntry] = {}
    for result in results:
        entry = entries.get(result.analyzer)
        if entry is None or worst[result.status] > worst[entry["status"]]:
            entries[result.analyzer] = {
                "name": result.analyzer,
                "status": result.status,
                "why": result.why,
                "applicable": result.applicable,
            }
    return list(entries.values())
