"""Findings on compute: work that another setting would make shorter, over all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.compute import BelowRoof, Reducible
from gpuscope.schema.compute_section import BelowRoofEntry, ComputeEntry, ReducibleEntry
from gpuscope.schema.document import Evidence, FindingEntry

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
