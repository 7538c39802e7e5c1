"""Findings on compute: work that another setting would make shorter, over all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.compute import BelowRoof, Reducible
from gpuscope.schema.call_tree_section import BelowRoofEntry, ComputeEntry, IdealEntry, IdealPart, ReducibleEntry
from gpuscope.schema.document import Diagnosis, Evidence, FindingEntry, RankEntry

# What an ideal step would take: every kernel at the device's peak, collectives at the speed of their link beside them,
# no idle time. No run reaches it; how far off it is, and where, shows what is left to gain.

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


LEAST = 3 * MIN_SHARE
"""Share of the judged time from which such work is worth a line, as stalls are worth advice…"""
OF_COMPUTE = 0.1
"""… or share of what the kernels take: it counts once the stalls that hide it are gone."""
_LEAST = {"half_precision_products": 0.4}
"""FP8 is worth its casts and scales only where such products are most of a step."""
KINDS = {kind.code: kind for kind in Reducible.__subclasses__()}


def compute_findings(entries: Sequence[ComputeEntry], whole: str = "step") -> Iterator[FindingEntry]:
    """One per code, the costliest first; of severity low, since nothing in it is a fault. `whole` is what is judged: a
    `step` or the `window`."""
    window = sum(entry["window_ns"] for entry in entries)
    steps = sum(entry["steps"] for entry in entries)
    kernels = sum(part["dur_ns"] * entry["steps"] for entry in entries for part in entry["parts"])
    found: dict[str, list[tuple[ComputeEntry, ReducibleEntry]]] = {}
    for entry in entries:
        for one in entry["reducible"]:
            found.setdefault(one["code"], []).append((entry, one))
    costs = {code: sum(one["dur_ns"] for _, one in own) for code, own in found.items()}
    for code in sorted(found, key=lambda code: -costs[code]):
        share = costs[code] / window if window else 0.0
        hidden = code not in _LEAST and share >= MIN_SHARE and costs[code] >= OF_COMPUTE * kernels
        if share >= _LEAST.get(code, LEAST) or hidden:
            yield _finding(code, found[code], costs[code], window, steps, whole)


def below_roof_findings(entries: Sequence[ComputeEntry], whole: str = "step") -> Iterator[FindingEntry]:
    """One per operator that runs below half of its roof, about the inputs with which it leaves most, the costliest
    operator first."""
    window = sum(entry["window_ns"] for entry in entries)
    steps = sum(entry["steps"] for entry in entries)
    found: dict[str, dict[str, list[tuple[ComputeEntry, BelowRoofEntry]]]] = {}
    for entry in entries:
        for one in entry.get("below_roof", []):
            found.setdefault(one["operator"], {}).setdefault(one["shapes"], []).append((entry, one))
    if not window:
        return
    costs = {name: sum(map(_leaves, shapes.values())) for name, shapes in found.items()}
    for name in sorted(found, key=lambda name: -costs[name]):
        own = max(found[name].values(), key=_leaves)
        yield _below_roof(own, window, steps, whole, len(found[name]) - 1)


def _leaves(own: Sequence[tuple[ComputeEntry, BelowRoofEntry]]) -> int:
    return sum(one["dur_ns"] - one["floor_ns"] for _, one in own)


def _below_roof(
    own: Sequence[tuple[ComputeEntry, BelowRoofEntry]], window: int, steps: int, whole: str, others: int
) -> FindingEntry:
    _, most = max(own, key=lambda pair: pair[1]["dur_ns"] - pair[1]["floor_ns"])
    spent, floor = sum(one["dur_ns"] for _, one in own), sum(one["floor_ns"] for _, one in own)
    calls = sum(one["calls"] * entry["steps"] for entry, one in own)
    left = spent - floor
    evidence: list[Evidence] = []
    for one_entry, one in own[:EVIDENCE]:
        evidence.append(
            {
                "rank": one_entry["rank"],
                "start_ns": one["start_ns"],
                "dur_ns": one["longest_ns"],
                "name": one["kernel"],
                "note": "the longest of them",
            }
        )
        if "event" in one:
            evidence[-1]["event"] = one["event"]
    words = BelowRoof(
        most["operator"],
        most["shapes"],
        whole,
        min(spent / window, 1.0),
        floor / spent,
        most["roof"],
        most["precision"],
        most["device_name"],
        most["device_assumed"],
        most["peak_per_s"] * floor / spent,
        most["peak_per_s"],
        spent / calls,
        floor / calls,
        round(left / steps),
        most["reason"] or "",
        most["reaches"],
        most["figures"],
        others,
    )
    share = min(left / window, 1.0)
    ranks = {entry["rank"] for entry, _ in own}
    return made(words, ranks=ranks, share=share, cost_ns=left, mean_ns=round(left / steps), evidence=evidence)


def _sizes(own: Sequence[tuple[ComputeEntry, ReducibleEntry]]) -> list[str]:
    """Where it is these that matter."""
    return list(dict.fromkeys(one["detail"] for _, one in own if one["code"] == "odd_sizes" and one["detail"]))


def _finding(
    code: str, own: Sequence[tuple[ComputeEntry, ReducibleEntry]], cost: int, window: int, steps: int, whole: str
) -> FindingEntry:
    count = sum(one["count"] for _, one in own)
    evidence: list[Evidence] = []
    for entry, one in own[:EVIDENCE]:
        evidence.append(
            {
                "rank": entry["rank"],
                "start_ns": one["start_ns"],
                "dur_ns": one["longest_ns"],
                "name": one["name"],
                "note": "the longest of them",
            }
        )
        if "event" in one:
            evidence[-1]["event"] = one["event"]
    return made(
        KINDS[code](round(count / steps), cost / window, _sizes(own), whole),
        ranks={entry["rank"] for entry, _ in own},
        share=cost / window,
        cost_ns=cost,
        mean_ns=round(cost / steps),
        evidence=evidence,
    )
