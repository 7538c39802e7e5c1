"""What is wrong with a run above all, and which changes answer that: what the first screen says, and the order of
suggestions."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.catalogue.cause import UNDIVIDED_COMMUNICATION
from gpuscope.catalogue.cause_table import BY_CODE
from gpuscope.report.view import arrangement
from gpuscope.schema.document import Diagnosis, FindingEntry, Report, SuggestionEntry, UnpredictedEntry

EXPLAINED_BY = {
    "pipeline_bubble": ("few_micro_batches", "pipeline_imbalance"),
    "straggler": ("slow_worker", "slow_stage", "slow_operations"),
}
"""Findings that say what makes a cause, where an analysis found it."""


def startup(report: Diagnosis) -> FindingEntry | None:
    """The finding that the recording is start-up alone."""
    return next((one for one in report["findings"] if one["code"] == "startup" and one["share_frac"] > 0), None)


def main_finding(report: Diagnosis) -> FindingEntry | None:
    """The finding of the verdict's cause; where only operations are known, what explains it, else the costliest."""
    verdict = report["verdict"]
    cause = verdict["cause"] or (UNDIVIDED_COMMUNICATION if verdict["cause_abstained"] else "")
    code = BY_CODE[cause].finding_code if cause in BY_CODE else cause
    found = next((one for one in report["findings"] if one["code"] == code), None)
    if found is not None or report["ranks"]:
        return found
    return reason(report) or next(iter(arrangement.findings(report)), None)


def reason(report: Diagnosis) -> FindingEntry | None:
    """The costliest finding that says what makes the verdict's cause; None where none does."""
    codes = EXPLAINED_BY.get(report["verdict"]["cause"] or "", ())
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
    """Changes whose gain is not estimated, those first that answer what is wrong."""
    return sorted(unpredicted, key=lambda one: not answers(report, one))


def answers(report: Diagnosis, one: SuggestionEntry | UnpredictedEntry) -> int:
    """How closely a change answers what is wrong: 2 what makes it most, 1 the finding itself or what else makes it, 0
    something else."""
    why, main = reason(report), main_finding(report)
    if why is not None and one["finding"] == why["code"]:
        return 2
    makes = EXPLAINED_BY.get(report["verdict"]["cause"] or "", ()) if why is not None else ()
    return int((main is not None and one["finding"] == main["code"]) or one["finding"] in makes)
