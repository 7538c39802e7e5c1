"""Findings on compute: work that another setting would make shorter, over all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.analyzers.base.analyzer import EVIDENCE
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.compute import Reducible
from gpuscope.schema.compute_section import ComputeEntry, ReducibleEntry
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


def _sizes(own: Sequence[tuple[ComputeEntry, ReducibleEntry]]) -> list[str]:
    """Where it is these that matter."""
    return list(dict.fromkeys(one["detail"] for _, one in own if one["code"] == "odd_sizes" and one["detail"]))


def _finding(
    code: str, own: Sequence[tuple[ComputeEntry, ReducibleEntry]], cost: int, window: int, steps: int, whole: str
) -> FindingEntry:
    count = sum(one["count"] for _, one in own)
    evidence: list[Evidence] = []
    for entry, one in own[:EVIDENCE]:
        evidence.append({
            "rank": entry["rank"], "start_ns": one["start_ns"], "dur_ns": one["longest_ns"], "name": one["name"],
            "note": "the longest of them",
        })  # fmt: skip
        if "event" in one:
            evidence[-1]["event"] = one["event"]
    return made(
        KINDS[code](round(count / steps), cost / window, _sizes(own), whole),
        ranks={entry["rank"] for entry, _ in own}, share=cost / window, cost_ns=cost, mean_ns=round(cost / steps),
        evidence=evidence,
    )  # fmt: skip
