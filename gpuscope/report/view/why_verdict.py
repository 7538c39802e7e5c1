"""Why this verdict: the largest places that it rests on, and what would tip it."""

from __future__ import annotations

from typing import Literal

from gpuscope.report.view import arrangement, blame
from gpuscope.schema.document import Evidence, Report
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.short_kernels import plain_kernel
from gpuscope.words.vocabulary import BOUND, VERDICT_SHARE

SHOWN = 3
_CLASSES: tuple[Literal["cpu", "communication", "memory"], ...] = ("cpu", "communication", "memory")
_CALLED = {"cpu": "CPU stalls", "communication": "communication stalls", "memory": "memory stalls"}


@dataclass(frozen=True)
class Place:
    """One of the largest places."""

    rank: str
    step: str
    at: str
    lasts: str
    said: str
    """What ran there, and why it is evidence."""
    evidence: Evidence


def largest(report: Report, shown: int = SHOWN) -> list[Place]:
    """The largest places of what the first line says, the longest first; empty where nothing is said."""
    main = blame.main_finding(report)
    if main is None or report["verdict"]["abstained"]:
        return []
    longest = sorted(main["evidence"], key=lambda one: -one["dur_ns"])[:shown]
    return [_place(report, evidence) for evidence in longest]


def _place(report: Report, evidence: Evidence) -> Place:
    number, at = "", arrangement.place_ns(evidence, arrangement.starts(report))
    for step in report["steps"]:
        since = evidence["start_ns"] - step["start_ns"]
        if step["rank"] == evidence["rank"] and step["step"] is not None and 0 <= since < step["dur_ns"]:
            number = str(step["step"])
    note = f": {evidence['note']}" if evidence["note"] else ""
    return Place(
        rank=str(evidence["rank"]),
        step=number,
        at=units.NONE if at is None else units.offset(at),
        lasts=units.duration(evidence["dur_ns"]),
        said=plain_kernel(evidence["name"]) + note,
        evidence=evidence,
    )


def tipping(report: Report) -> str:
    """What would make it another verdict; empty where there is none, or only operations are known."""
    verdict = report["verdict"]
    window = sum(entry["window_ns"] for entry in report["ranks"])
    if verdict["abstained"] or verdict["bound_by"] is None or not window:
        return ""
    taken = {name: sum(sum(entry["stall_ns"][name].values()) for entry in report["ranks"]) for name in _CLASSES}
    line = units.whole_share(VERDICT_SHARE)
    others = [name for name in _CLASSES if name != verdict["bound_by"]]
    following = max(others, key=lambda name: taken[name])
    share = taken[following] / window
    if verdict["bound_by"] == "compute":
        return f"{BOUND[following]} if {_CALLED[following]} took {line} (now {units.share(share)})"
    own = f"if {_CALLED[verdict['bound_by']]} took less than"
    now = f"(now {units.share(verdict['share_frac'])})"
    if share < VERDICT_SHARE:
        return f"compute-bound {own} {line} {now}"
    return f"{BOUND[following]} {own} {units.share(share)} {now}"
