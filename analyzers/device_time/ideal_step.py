"""What an ideal step would take: every kernel at the device's peak, collectives at the speed of their link beside them,
no idle time. No run reaches it; how far off it is, and where, shows what is left to gain."""

from __future__ import annotations

from gpuscope.schema.compute_section import ComputeEntry, IdealEntry, IdealPart
from gpuscope.schema.document import Diagnosis, RankEntry

_STALLS = (("exposed_communication", "exposed communication"), ("exposed_memory", "exposed copies"), ("idle", "idle"))


KNOWN = 0.5
"""Share of the kernels' time whose work must be known, and set a floor, for an ideal step to be told."""
MOST_NAMED = 3
"""Operators of unknown work that are named…"""
LEAST_UNKNOWN = 0.02
"""…if they take this share of the kernels' time."""


def ideal_steps(report: Diagnosis) -> list[IdealEntry]:
    """One entry per rank with compute kernels."""
    ranks = {(rank["rank"], rank["device"]): rank for rank in report["ranks"]}
    steps: dict[int, set[int]] = {}
    for step in report["steps"]:
        if step["step"] is not None:
            steps.setdefault(step["rank"], set()).add(step["step"])
    found: list[IdealEntry] = []
    for entry in report.get("compute", []):
        rank = ranks.get((entry["rank"], entry["device"]))
        if rank is not None and rank["window_ns"]:
            found.append(_of_rank(report, rank, entry, len(steps.get(entry["rank"], ()))))
    return found


def _of_rank(report: Diagnosis, rank: RankEntry, entry: ComputeEntry, recorded: int) -> IdealEntry:
    """Of a rank with so many recorded steps."""
    steps = max(rank["steps"], 1)
    step = rank["window_ns"] // steps
    spent = sum(part["dur_ns"] for part in entry["parts"])
    parts = [
        IdealPart(
            name=part["category"], dur_ns=part["dur_ns"], ideal_ns=part["dur_ns"] - part["known_ns"] + part["floor_ns"]
        )
        for part in entry["parts"]
    ]
    # Kernels beside each other count once: the step holds the time that any of them ran.
    busy = rank["breakdown_ns"]["compute"] / steps
    compute = round(min(sum(part["ideal_ns"] for part in parts), busy))
    communication = _communication(report, rank, recorded)
    known = sum(part["known_ns"] for part in entry["parts"]) / spent if spent else 0.0
    bounded = sum(part.get("bounded_ns", part["known_ns"]) for part in entry["parts"]) / spent if spent else 0.0
    if min(known, bounded) < KNOWN:
        return {
            "rank": rank["rank"],
            "step_ns": step,
            "compute_ns": None,
            "known_frac": known,
            "bounded_frac": bounded,
            "unknown": _unknown(report),
            "communication_ns": communication,
            "ideal_ns": None,
            "parts": [],
        }
    ideal = min(max(compute, communication or 0), step)
    for key, name in _STALLS:
        lost = rank["breakdown_ns"][key] // steps  # type: ignore[literal-required]
        left = ideal - compute if key == "exposed_communication" else 0
        parts.append(IdealPart(name=name, dur_ns=lost, ideal_ns=min(left, lost)))
    return {
        "rank": rank["rank"],
        "step_ns": step,
        "compute_ns": compute,
        "known_frac": known,
        "bounded_frac": bounded,
        "unknown": _unknown(report),
        "communication_ns": communication,
        "ideal_ns": ideal,
        "parts": sorted((part for part in parts if part["dur_ns"]), key=lambda one: one["ideal_ns"] - one["dur_ns"]),
    }


def _unknown(report: Diagnosis) -> list[str]:
    """Operators (kernels without one) with most of the time whose work is not known."""
    spent: dict[str, int] = {}
    for row in report.get("operator_work", []):
        name = row["operator"] or row["kernel"]
        spent[name] = spent.get(name, 0) + row["dur_ns"] - row.get("known_ns", 0)
    least = LEAST_UNKNOWN * sum(row["dur_ns"] for row in report.get("operator_work", []))
    return [name for name in sorted(spent, key=lambda name: -spent[name]) if spent[name] > least][:MOST_NAMED]


def _communication(report: Diagnosis, rank: RankEntry, steps: int) -> int | None:
    """ns per step and rank at the line rate of each group's link; None where that is not known of all of them."""
    if not rank["communication_ns"]:
        return 0
    timed = [entry for entry in report.get("bandwidth", []) if entry["tool"] == "trace"]
    world = report["trace"]["world_size"]
    if (
        not timed
        or not steps
        or not world
        or any(one["peak_gbps"] is None or one["busbw_gbps"] is None for one in timed)
    ):
        return None
    total = sum(
        one["count"] * one["group_size"] * one["dur_ns"] * (one["busbw_gbps"] or 0) / (one["peak_gbps"] or 1)
        for one in timed
    )
    return round(total / world / steps)
