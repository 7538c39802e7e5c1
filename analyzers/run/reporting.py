"""From lane summaries and results to the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from gpuscope.analyzers.frame import verdict
from gpuscope.analyzers.frame.analyzer import Attributed, LaneKey, Result
from gpuscope.analyzers.frame.cause_findings import Run, findings
from gpuscope.analyzers.frame.causes import CLASS_OF, UNATTRIBUTED, UNTOLD_COMMUNICATION
from gpuscope.analyzers.frame.lanes import LaneSummary, count_steps
from gpuscope.report.schema.document import (
    SCHEMA_VERSION,
    AnalyzerEntry,
    BreakdownEntry,
    KernelEntry,
    ProblemEntry,
    RankEntry,
    Report,
    SourceEntry,
    Stalls,
    StepEntry,
    TraceEntry,
)
from gpuscope.sources.records import ALLOCATOR_SNAPSHOT, FLIGHT_RECORDER, RECORDS
from gpuscope.trace.breakdown import Breakdown
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming.frameworks import frameworks, parallelism
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.version import __version__

Causes = Mapping[str, Attributed]


def build(trace: Trace, lanes: Sequence[LaneSummary], results: Sequence[Result]) -> Report:
    """The report of a run, from its merged (reduced) trace and the results of each file."""
    sections = {key: value for result in results for key, value in result.sections.items()}
    if efficiency := [entry for result in results for entry in result.sections.get("efficiency", [])]:
        sections["efficiency"] = efficiency  # each file tells of its own ranks
    causes = _causes(results)
    problems = [problem for result in results for problem in result.problems]
    problems += [
        ProblemEntry(severity=p.severity, code=p.code, count=p.count, message=p.message) for p in trace.problems
    ]
    measure = Run(
        windows={lane.key: lane.breakdown.window for lane in lanes},
        steps={lane.key: count_steps(lane.steps) for lane in lanes},
        stragglers=sections.get("stragglers", []),
        could_tell=sections.get("stragglers_told", True),
        clock_error=sections.get("clock_error_ns"),
    )
    found = findings({lane.key: causes[lane.key] for lane in lanes}, measure)
    found += [finding for result in results for finding in result.findings]
    report: Report = {
        "schema_version": SCHEMA_VERSION,
        "gpuscope_version": __version__,
        "trace": _trace(trace, sections.get("clock_error_ns")),
        "verdict": verdict.decide(_weigh(trace, lanes, causes, problems, results)),
        "ranks": [_rank(trace, lane, causes[lane.key]) for lane in lanes],
        "steps": [step for lane in lanes for step in _steps(lane, causes[lane.key])],
        "steps_basis": next((lane.basis for lane in lanes if lane.basis), None),
        "collectives": sections.get("collectives", []),
        "stragglers": sections.get("stragglers", []),
        "rank_steps": sections.get("rank_steps", []),
        "kernels": _kernels(results),
        "findings": found,
        "suggestions": [],
        "advice": {"why": "", "unpredicted": []},
        "problems": problems,
        "analyzers": _analyzers(results),
    }
    if "slowdown" in sections:
        report["verdict"]["why"] += verdict.besides(sections["slowdown"], report["verdict"])
    # Only where an analysis gave them, in the order that the report declares.
    given = {key: sections[key] for key in Report.__annotations__ if key in sections and key not in report}
    report.update(cast(Report, given))
    return report


def _causes(results: Sequence[Result]) -> dict[LaneKey, dict[str, Attributed]]:
    merged: dict[LaneKey, dict[str, Attributed]] = defaultdict(dict)
    for result in results:
        for key, causes in result.causes.items():
            merged[key].update(causes)
    return merged


def _trace(trace: Trace, clock_error: int | None) -> TraceEntry:
    files = trace.ranks_by_file()
    table = trace["groups"]
    groups = [
        (trace.names[int(code)], int(size)) for code, size in zip(table["description"], table["size"], strict=True)
    ]
    sources: list[SourceEntry] = [
        {"path": str(path), "format": fmt, "format_version": source.format_version,
         "rank": ranks[0] if len(ranks) == 1 else None, "ranks": ranks, "events": source.events}
        for (path, fmt, ranks, _), source in zip(files, trace.sources, strict=True)
    ]  # fmt: skip
    return {
        "sources": sources,
        "world_size": _world_size(trace),
        "ranks_present": trace.ranks,
        "clock_error_ns": clock_error,
        "frameworks": frameworks(trace.names.names, {description for description, _ in groups}),
        "parallelism": parallelism(groups),
    }


def _world_size(trace: Trace) -> int | None:
    ranks = trace["ranks"]
    known = ranks["world_size"][ranks.known("world_size")]
    return int(known.max()) if len(known) else None


def _weigh(
    trace: Trace, lanes: Sequence[LaneSummary], causes: Mapping[LaneKey, Causes], problems: Sequence[ProblemEntry],
    results: Sequence[Result],
) -> verdict.Evidence:  # fmt: skip
    events = sum(lane.events for lane in lanes)
    lost = verdict.count_problem(problems, "kernel_missing")
    losses = [p for p in problems if p["severity"] == "data_loss" and p["code"] not in ("kernel_missing", "truncated")]
    # Kernels that went missing tell more than that there are none.
    reasons = _messages(problems, "kernels_not_recorded") or _messages(problems, "no_device_events")
    totals = verdict.totals([causes[lane.key] for lane in lanes])
    return verdict.Evidence(
        window=sum(lane.breakdown.window for lane in lanes),
        causes=totals,
        idle=sum(lane.breakdown.idle for lane in lanes),
        ranks_present=len(trace.ranks),
        world_size=_world_size(trace),
        launches=events + lost,
        kernels_lost=lost,
        events=events,
        launch_missing=verdict.count_problem(problems, "launch_missing"),
        events_lost=sum(p["count"] for p in losses),
        steps=min((count_steps(lane.steps) for lane in lanes), default=0),
        assumed=[cause for result in results for cause in result.assumed],
        why_no_device="; ".join(reasons) or _no_timeline(trace),
        hung=any(finding["code"] == "hang" for result in results for finding in result.findings),
        waits_matched=bool({"straggler", "pipeline_bubble"} & set(totals)),
    )


def _messages(problems: Sequence[ProblemEntry], code: str) -> list[str]:
    """What the problems of a code say, each sentence once."""
    return list(dict.fromkeys(problem["message"] for problem in problems if problem["code"] == code))


def _no_timeline(trace: Trace) -> str:
    """What files without any timeline are good for instead; empty where that is not so."""
    formats = {source.format for source in trace.sources}
    if formats == {FLIGHT_RECORDER}:
        return "Flight Recorder dumps tell where a job hangs, not where its time goes"
    if formats == {ALLOCATOR_SNAPSHOT}:
        return "allocator snapshots tell how memory is used, not where time goes: add a trace of the ranks"
    if formats <= RECORDS:
        return "these files tell how NCCL communicates, not where the time of a step goes: add a trace of the ranks"
    return ""


def _stalls(sums: Mapping[str, int]) -> Stalls:
    stalls: dict[str, dict[str, int]] = {"cpu": {}, "communication": {}, "memory": {}}
    for cause, spent in sums.items():
        if cause in CLASS_OF:
            stalls[CLASS_OF[cause]][cause] = spent
        elif cause == UNTOLD_COMMUNICATION:
            stalls["communication"][UNATTRIBUTED] = spent
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


def _rank(trace: Trace, lane: LaneSummary, causes: Causes) -> RankEntry:
    breakdown = lane.breakdown
    return {
        "rank": lane.rank,
        "device": None if lane.device == NA else lane.device,
        "device_name": _device_name(trace, lane),
        "window_ns": breakdown.window,
        "start_ns": lane.window[0],
        "steps": count_steps(lane.steps),
        "breakdown_ns": _parts(breakdown),
        "communication_ns": breakdown.communication,
        "overlapped_communication_ns": breakdown.overlapped_communication,
        "overlap_frac": breakdown.overlapped_communication / breakdown.communication
        if breakdown.communication
        else None,
        "stall_ns": _stalls({cause: attributed.total for cause, attributed in causes.items()}),
    }


def _device_name(trace: Trace, lane: LaneSummary) -> str | None:
    ranks = trace["ranks"]
    rows = np.flatnonzero((ranks["rank"] == lane.rank) & (ranks["device"] == lane.device))
    code = int(ranks["device_name"][rows[0]]) if len(rows) else NO_NAME
    return trace.names[code] if code != NO_NAME else None


def _steps(lane: LaneSummary, causes: Causes) -> list[StepEntry]:
    entries: list[StepEntry] = []
    for index, (step, breakdown) in enumerate(zip(lane.steps, lane.step_breakdowns, strict=True)):
        own = {cause: int(attributed.per_step[index]) for cause, attributed in causes.items()}
        top, cause, _ = verdict.bound(own, breakdown.window)
        entries.append({
            "step": None if step.step == NA else step.step, "rank": lane.rank,
            "device": None if lane.device == NA else lane.device, "start_ns": step.start, "dur_ns": breakdown.window,
            "breakdown_ns": _parts(breakdown), "bound_by": top, "cause": cause,
        })  # fmt: skip
    return entries


def _kernels(results: Sequence[Result]) -> list[KernelEntry]:
    """Kernels of all files, added up by name and category."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for entry in (entry for result in results for entry in result.sections.get("kernels", [])):
        own = rows.setdefault((entry["name"], entry["category"]), {"count": 0, "dur_ns": 0, "rates": [], "peaks": []})
        own["count"] += entry["count"]
        own["dur_ns"] += entry["dur_ns"]
        if entry["flops_per_s"] is not None:
            own["rates"].append((entry["flops_per_s"], entry["dur_ns"]))
            own["peaks"].append((entry["precision"], entry["peak_frac"], entry["dur_ns"]))
    everything = sum(own["dur_ns"] for own in rows.values())
    merged = [
        KernelEntry(
            name=name,
            category=category,
            count=own["count"],
            dur_ns=own["dur_ns"],
            mean_ns=own["dur_ns"] // own["count"],
            share_frac=own["dur_ns"] / everything if everything else 0.0,
            flops_per_s=_mean_rate(own["rates"]),
            precision=_one_precision(own["peaks"]),
            peak_frac=_mean_share(own["peaks"]),
        )
        for (name, category), own in rows.items()
    ]
    return sorted(merged, key=lambda kernel: -kernel["dur_ns"])


_Peaks = Sequence[tuple[str | None, float | None, int]]
"""Precision, share of the peak and time of one kernel in each file."""


def _one_precision(peaks: _Peaks) -> str | None:
    """The precision of all of them; None where they differ."""
    kinds = {precision for precision, _, _ in peaks}
    return kinds.pop() if len(kinds) == 1 else None


def _mean_share(peaks: _Peaks) -> float | None:
    """The mean share of the peak by time; None where one is not known, or precisions differ."""
    shares = [(share, weight) for _, share, weight in peaks if share is not None]
    return _mean_rate(shares) if len(shares) == len(peaks) and _one_precision(peaks) else None


def _mean_rate(rates: Sequence[tuple[float, int]]) -> float | None:
    time = sum(weight for _, weight in rates)
    return sum(rate * weight for rate, weight in rates) / time if time else None


def _analyzers(results: Sequence[Result]) -> list[AnalyzerEntry]:
    """What became of each analysis; over several files the worst counts."""
    worst = {"ok": 0, "skipped": 1, "failed": 2}
    entries: dict[str, AnalyzerEntry] = {}
    for result in results:
        entry = entries.get(result.analyzer)
        if entry is None or worst[result.status] > worst[entry["status"]]:
            entries[result.analyzer] = {"name": result.analyzer, "status": result.status, "why": result.why}
    return list(entries.values())
