"""What a report says of a run, beside what was injected into it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.faults.cases import Case

BLAMING = ("slow_rank", "even_data", "own_work", "late_host")
"""Suggestions about one rank."""
ORDERED = (*BLAMING, "micro_batches", "pipeline_schedule", "even_stages")


@dataclass(frozen=True)
class Row:
    """One run: truth beside verdict."""

    case: str
    truth: str
    verdict: str
    named: list[int]
    """Ranks that the report calls late beyond chance, or advises to change."""
    cost: str
    advice: list[str]
    without_core: float | None
    """Share of the time in which training threads had no core."""
    wrong: list[str]
    """What is wrong, in words; empty where all is right."""


def judge(case: Case, folder: Path, report: Mapping[str, Any]) -> Row:
    """Compare a report with the ground truth in the run's manifest."""
    faults = json.loads((folder / "manifest.json").read_text())["faults"]
    ranks = sorted({rank for fault in faults for rank in fault["ranks"] or ()}) if case.blames else []
    verdict = report["verdict"]
    named = _named(report)
    advice = [one["code"] for one in report["suggestions"]]
    wrong = _healthy(report, named) if case.healthy else _faulty(case, report, ranks, named, advice)
    injected = _injected_ms(faults)
    told = _told_ms(report, ranks)
    cost = f"{injected:.0f}" if injected is not None else "–"
    return Row(
        case.name,
        _truth(case, ranks),
        f"{verdict['bound_by']}/{verdict['cause'] or '–'} {100 * verdict['share_frac']:.0f} %",
        named,
        f"{cost} / {told:.0f}" if told is not None else cost,
        advice[:3],
        next((one["share_frac"] for one in report["findings"] if one["code"] == "waits_for_core"), None),
        wrong,
    )


def _truth(case: Case, ranks: Sequence[int]) -> str:
    if case.healthy:
        return "healthy"
    return " or ".join(case.causes) + (f", rank {', '.join(map(str, ranks))}" if ranks else "")


def _named(report: Mapping[str, Any]) -> list[int]:
    """Ranks that are accused: late beyond chance for a reason of their own, or with advice of their own."""
    found = {
        one["rank"]
        for one in report["stragglers"]
        if one["recurrent"] and one["root_wait_ns"] and one["reason"] != "cores"
    }
    found |= {
        rank
        for one in report["suggestions"]
        if one["code"] in BLAMING and "rank" in one.get("facts", {})
        for rank in one["facts"].get("ranks") or [one["facts"]["rank"]]
    }
    for one in report["findings"]:
        if one["code"] in ("slow_worker", "work_outside_pipeline"):
            found |= set(one["ranks"])
    return sorted(found)


def _healthy(report: Mapping[str, Any], named: Sequence[int]) -> list[str]:
    wrong = [f"rank {rank} accused" for rank in named]
    if report["verdict"]["cause"] == "straggler":
        wrong.append("verdict straggler")
    wrong += [f"finding {code}" for code in _codes(report) & {"slow_stage", "slow_worker"}]
    # The last stage of the tiny model also holds the head, a third of a block's products: more work there is true.
    last = {one["rank"] for one in report.get("pipeline", {}).get("stages", ()) if one["stage"] == _stages(report) - 1}
    wrong += [
        "finding pipeline_imbalance"
        for one in report["findings"]
        if one["code"] == "pipeline_imbalance" and not set(one["ranks"]) <= last
    ]
    return wrong


def _stages(report: Mapping[str, Any]) -> int:
    return max((one["stage"] for one in report["pipeline"]["stages"]), default=0) + 1


def _faulty(
    case: Case, report: Mapping[str, Any], ranks: Sequence[int], named: Sequence[int], advice: Sequence[str]
) -> list[str]:
    wrong = []
    if case.causes and report["verdict"]["cause"] not in case.causes:
        wrong.append("cause")
    if case.findings and not _codes(report) & set(case.findings):
        wrong.append(f"no finding {' or '.join(case.findings)}")
    if list(named) != list(ranks):
        wrong.append("rank")
    first = next((code for code in advice if code in ORDERED), None)
    if case.first_advice and first is not None and first not in case.first_advice:
        wrong.append(f"{first} advised first")
    return wrong


def _codes(report: Mapping[str, Any]) -> set[str]:
    return {one["code"] for one in report["findings"]}


def _injected_ms(faults: Sequence[Mapping[str, Any]]) -> float | None:
    """What was injected into the slowest rank, ms per step (mean over all steps); None where no time is known."""
    means = [
        sum(ns or 0 for ns in own["ns"]) / (fault["steps"]["last"] + 1)
        for fault in faults
        for own in fault.get("injected", ())
        if any(own["ns"])
    ]
    return max(means) / 1e6 if means else None


def _told_ms(report: Mapping[str, Any], ranks: Sequence[int]) -> float | None:
    """What the report says that the ranks at fault cost, per waiting rank and step, ms."""
    told = [one["caused_wait_ns_per_step"] for one in report["stragglers"] if one["rank"] in ranks]
    told = [ns for ns in told if ns is not None]
    return fmean(told) / 1e6 if told else None
