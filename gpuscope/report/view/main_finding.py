"""What is wrong with a run above all, and which changes answer that: what the first screen says, and the order of
suggestions."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.suggestion import BY_CODE
from gpuscope.report.view import report_rows
from gpuscope.schema.document import Diagnosis, FindingEntry, Report, SuggestionEntry, UnpredictedEntry, Verdict

EXPLAINED_BY = {
    "pipeline_bubble": ("few_micro_batches", "pipeline_imbalance"),
    "straggler": ("slow_worker", "slow_stage", "slow_operations"),
}
"""Findings that say what makes a cause, where an analysis found it."""
LIE_WITHIN = {
    "host_other": ("graph_break", "waits_for_gil", "recompiling", "scheduler_gap", "debug_checks"),
    "launch": ("graph_break", "uncaptured_batch", "eager_decode", "scheduler_gap"),
    "sync": ("scheduler_gap",),
    "latency": ("small_all_reduces", "debug_checks"),
    "bandwidth": ("small_all_reduces", "debug_checks"),
    "exposed_communication": ("small_all_reduces", "debug_checks"),
}
"""The same of findings that are a part of a cause's time: they make it where they are half of it."""


def startup(report: Diagnosis) -> FindingEntry | None:
    """The finding that the recording is start-up alone."""
    return next((one for one in report["findings"] if one["code"] == "startup" and one["share_frac"] > 0), None)


def main_finding(report: Diagnosis) -> FindingEntry | None:
    """The finding of the verdict's cause, where that is open the costliest of the class: what is named before what is
    not, if both cost as much. Where only operations are known, what explains it, else the costliest."""
    verdict = report["verdict"]
    causes = [verdict["cause"]] if verdict["cause"] else _of_class(verdict) if verdict["cause_abstained"] else []
    codes = [BY_CODE[cause].finding_code if cause in BY_CODE else cause for cause in causes]
    found = [one for code in codes for one in report["findings"] if one["code"] == code]
    if found or report["ranks"]:
        return max(found, key=lambda one: one["share_frac"], default=None)
    return reason(report) or next(iter(report_rows.findings(report)), None)


def is_of_log(report: Diagnosis) -> bool:
    """Whether what a job's own log says is the gravest that is known of it."""
    grave = record_finding(report)
    return grave is None or grave["code"].startswith("log_")


def record_finding(report: Diagnosis) -> FindingEntry | None:
    """Of records without a timeline, which can't have a verdict, the gravest finding; None where all cost little."""
    if report["ranks"] or report["verdict"].get("abstain_reason") != "no_device_events":
        return None
    grave = [one for one in report_rows.findings(report) if one["severity"] != "low"]
    return min(grave, key=lambda one: one["severity"] != "high", default=None)


def _of_class(verdict: Verdict) -> list[str]:
    """Codes of the causes of the verdict's class, what has no name behind all others."""
    own = [cause.code for cause in BY_CODE.values() if cause.class_name == verdict["bound_by"]]
    return sorted(own, key=lambda code: code == UNDIVIDED_COMMUNICATION)


def below_roof(report: Diagnosis) -> list[FindingEntry]:
    """Operators far below what their device could do, those that leave most first."""
    found = [one for one in report["findings"] if one["code"] == "below_roof"]
    return sorted(found, key=lambda one: -one["share_frac"])


def leads_by_roof(report: Report) -> FindingEntry | None:
    """The operator below its roof that the first lines name: where compute takes the time, and no change against
    something else gains more than that operator leaves. None where something else leads."""
    first = next(iter(below_roof(report)), None)
    if first is None or report["verdict"]["bound_by"] != "compute" or main_finding(report) is not None:
        return None
    best = first_answer(report)
    if best is None or best["finding"] == first["code"] or not best["predicted"]["step_ns_before"]:
        return first
    predicted = best["predicted"]
    gain = 1 - predicted["step_ns_after"] / predicted["step_ns_before"]
    return first if first["share_frac"] >= gain else None


def late_ranks(report: Diagnosis, finding: FindingEntry) -> list[int]:
    """Of the finding that ranks wait for late ones those to name: if they are few, and late again and again (of one
    step nobody can tell). Else nobody: ranks take turns."""
    ranks = finding["ranks"]
    few = 0 < len(ranks) <= max(len(report["trace"]["ranks_present"]) // 2, 1)
    by_chance = [not one["recurrent"] for one in report["stragglers"] if one["rank"] in ranks]
    several_steps = any(entry["steps"] > 1 for entry in report["ranks"])
    return [] if not few or (several_steps and by_chance and all(by_chance)) else ranks


def reason(report: Diagnosis) -> FindingEntry | None:
    """The costliest finding that says what makes the verdict's cause; None where none does."""
    cause = report["verdict"]["cause"] or ""
    shares = {one["code"]: one["share_frac"] for one in report["findings"]}
    within = [code for code in LIE_WITHIN.get(cause, ()) if shares.get(code, 0) > shares.get(cause, 0) / 2]
    codes = (*EXPLAINED_BY.get(cause, ()), *within)
    reasons = [one for one in report["findings"] if one["code"] in codes]
    return max(reasons, key=lambda one: one["share_frac"], default=None)


def in_order(report: Diagnosis, suggestions: Sequence[SuggestionEntry]) -> list[SuggestionEntry]:
    """First the one that the first screen names: what answers the reason of the trouble before what answers the trouble
    before what gains more elsewhere, and certain gains before others; the rest as they come."""
    certain = [one for one in suggestions if one.get("certain", True)]
    first = min(certain or suggestions, key=lambda one: -answers(report, one), default=None)
    return [one for one in suggestions if one is first] + [one for one in suggestions if one is not first]


def first_answer(report: Report) -> SuggestionEntry | None:
    """The change that the first lines name: what answers what is wrong, a certain gain if there is one; where compute
    alone takes the time, the first. None where no change with a figure answers it."""
    suggestions = report["suggestions"]
    if main_finding(report) is None:
        return suggestions[0] if suggestions else None
    answering = [one for one in suggestions if answers(report, one)]
    certain = [one for one in answering if one.get("certain", True)]
    return max(certain or answering, key=lambda one: answers(report, one), default=None)


def answering_first(report: Diagnosis, unpredicted: Sequence[UnpredictedEntry]) -> list[UnpredictedEntry]:
    """Changes whose gain is not estimated: first what answers the trouble most closely, of it what costs most."""
    costs = {one["code"]: one["share_frac"] for one in report["findings"]}
    return sorted(unpredicted, key=lambda one: (-answers(report, one), -costs.get(one["finding"], 0.0)))


def answers(report: Diagnosis, one: SuggestionEntry | UnpredictedEntry) -> int:
    """How closely a change answers what is wrong: 2 what makes it most, 1 the finding itself or what else makes it, 0
    something else."""
    why, main = reason(report), main_finding(report)
    if why is not None and one["finding"] == why["code"]:
        return 2
    makes = EXPLAINED_BY.get(report["verdict"]["cause"] or "", ()) if why is not None else ()
    late = _why_late(report, main) if main is not None and main["code"] == "straggler" else set()
    return int((main is not None and one["finding"] == main["code"]) or one["finding"] in {*makes, *late})


def _why_late(report: Diagnosis, straggler: FindingEntry) -> set[str]:
    """Findings of the causes for which the hosts of late ranks are late."""
    causes = {
        one["host_cause"] for one in report["stragglers"] if "host_cause" in one and one["rank"] in straggler["ranks"]
    }
    return {BY_CODE[cause].finding_code for cause in causes if cause in BY_CODE}
