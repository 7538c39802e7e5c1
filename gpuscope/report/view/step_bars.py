"""The step of a rank as one bar by cause, and what the first change makes of it: the same on every page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope.catalogue.cause import UNATTRIBUTED, UNDIVIDED_COMMUNICATION, Look
from gpuscope.catalogue.cause_table import BY_CODE, CAUSES
from gpuscope.report.view import blame
from gpuscope.report.view.headline import LEAST_SUMMAND
from gpuscope.schema.document import RankEntry, Report, SuggestionEntry, UnpredictedEntry
from gpuscope.when_used import dataclass
from gpuscope.words.vocabulary import PARTS, PartKey

COMPUTE = "compute"
SEEN = 0.004
"""Of a bar is a piece that one sees: what is below it on every rank has no place in the legend."""
_ACCUSING = ("slow_worker", "slow_stage")
"""Findings whose ranks are at fault."""


@dataclass(frozen=True)
class Kind:
    """What a piece of a bar is: compute, or a cause."""

    code: str
    label: str
    look: Look
    part: PartKey


@dataclass(frozen=True)
class Changed:
    """The step as it is, and after the first change, ns; of a bound all below `after` is possible."""

    before: int
    after: int
    low: int
    high: int
    bound: bool


KINDS = (
    Kind(COMPUTE, COMPUTE, Look(PARTS[0].colour), "compute"),
    *sorted(
        (Kind(cause.code, cause.label, cause.look, cause.part) for cause in CAUSES),
        key=lambda kind: [part.key for part in PARTS].index(kind.part),
    ),
)
"""In the order of the bars: compute, communication, memory, idle."""


def pieces(entry: RankEntry) -> dict[str, int]:
    """Time by kind, ns: the parts of the judged window, which they sum to. What has no cause, or one that this version
    does not know, is unattributed."""
    stalls = entry["stall_ns"]
    found = {COMPUTE: entry["breakdown_ns"]["compute"]}
    for of_class in (stalls["cpu"], stalls["communication"], stalls["memory"]):
        found |= {code: ns for code, ns in of_class.items() if code in BY_CODE and code != UNATTRIBUTED}
    found[UNDIVIDED_COMMUNICATION] = stalls["communication"].get(UNATTRIBUTED, 0)
    found[UNATTRIBUTED] = max(entry["window_ns"] - sum(found.values()), 0)
    return found


def kinds(entries: Sequence[RankEntry]) -> list[Kind]:
    """Those that any of these ranks has."""
    present = {code for entry in entries for code, ns in pieces(entry).items() if ns}
    return [kind for kind in KINDS if kind.code in present]


def seen(entries: Sequence[RankEntry]) -> set[str]:
    """Codes of the pieces that can be told in any of these ranks' bars."""
    return {code for one in entries for code, ns in pieces(one).items() if ns > SEEN * one["window_ns"]}


def culprits(report: Report) -> list[int]:
    """Ranks at fault, the costliest first: those that the verdict's finding accuses, and those that make the others
    wait, again and again and for a share that is named."""
    step, main = report["step_time"], blame.main_finding(report)
    least = LEAST_SUMMAND * step["median_ns"] if step is not None else 0
    caused = {one["rank"]: one["root_wait_ns"] for one in report["stragglers"]}
    late = [one["rank"] for one in report["stragglers"] if one["recurrent"] and (one["per_step_ns"] or 0) >= least]
    if main is not None and main["code"] in _ACCUSING:
        late += main["ranks"]
    if main is not None and main["code"] == "straggler":
        late += blame.late_ranks(report, main)
    return sorted(set(late), key=lambda rank: (-caused.get(rank, 0), rank))


def changed(told: SuggestionEntry | UnpredictedEntry | None) -> Changed | None:
    """What the change of the first lines makes of the step; None where nothing is predicted."""
    found: Any = told  # which of the two it is, its keys tell
    if found is None:
        return None
    if "bound" in found:
        bound = found["bound"]
        low, before = bound["step_ns_low"], bound["step_ns_before"]
        return Changed(before, low, low, before, True)
    if "predicted" not in found or not found["predicted"]["step_ns_before"]:
        return None
    one = found["predicted"]
    return Changed(one["step_ns_before"], one["step_ns_after"], one["low_ns"], one["high_ns"], False)
