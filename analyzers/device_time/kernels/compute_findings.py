"""Findings on compute: work that another setting would make shorter, over all ranks together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuscope.analyzers.frame.analyzer import EVIDENCE
from gpuscope.analyzers.frame.cause_findings import MIN_SHARE
from gpuscope.report.schema.compute_section import ComputeEntry, ReducibleEntry
from gpuscope.report.schema.document import FindingEntry
from gpuscope.report.view import units

LEAST = 3 * MIN_SHARE
"""Share of the judged time from which such work is worth a line, as stalls are worth advice."""
_LEAST = {"half_precision_products": 0.4}
"""FP8 is worth its casts and scales only where such products are most of a step."""
MESSAGES = {
    "single_precision": "Matrix products, convolutions and attention run in FP32, without tensor cores",
    "tf32_products": "Matrix products and convolutions run at TF32, half the rate of 16 bits and on twice the bytes",
    "unfused_kernels": "Memory-bound kernels follow each other, each reading what the one before it wrote",
    "layout_conversion": "Kernels convert tensors between NCHW and NHWC around convolutions",
    "unfused_attention": "Attention is computed as two products with a softmax between them, which write and read the "
    "whole score matrix",
    "flash_attention_2": "Attention runs in FlashAttention 2, which does not use what Hopper added",
    "odd_sizes": "Matrix products have sizes that tensor cores handle badly, no multiples of 16 bytes",
    "half_precision_products": "Matrix products in 16 bits run near their peak, on a device that also has FP8",
    "optimizer_passes": "The optimizer passes over parameters and states several times",
}


def compute_findings(entries: Sequence[ComputeEntry]) -> Iterator[FindingEntry]:
    """One per code, the costliest first; of severity low, since nothing in it is a fault."""
    window = sum(entry["window_ns"] for entry in entries)
    steps = sum(entry["steps"] for entry in entries)
    found: dict[str, list[tuple[ComputeEntry, ReducibleEntry]]] = {}
    for entry in entries:
        for one in entry["reducible"]:
            found.setdefault(one["code"], []).append((entry, one))
    costs = {code: sum(one["dur_ns"] for _, one in own) for code, own in found.items()}
    for code in sorted(found, key=lambda code: -costs[code]):
        if window and costs[code] >= _LEAST.get(code, LEAST) * window:
            yield _finding(code, found[code], costs[code], window, steps)


def _detail(own: Sequence[tuple[ComputeEntry, ReducibleEntry]]) -> str:
    """The sizes, where it is these that matter."""
    sizes = dict.fromkeys(one["detail"] for _, one in own if one["code"] == "odd_sizes" and one["detail"])
    return f" ({', '.join(sizes)})" if sizes else ""


def _finding(
    code: str, own: Sequence[tuple[ComputeEntry, ReducibleEntry]], cost: int, window: int, steps: int
) -> FindingEntry:
    count = sum(one["count"] for _, one in own)
    return {
        "code": code,
        "severity": "low",
        "message": f"{MESSAGES[code]}{_detail(own)}: {units.plural(round(count / steps), 'kernel')} per step take "
        f"{units.share(cost / window)} of the time",
        "ranks": sorted({entry["rank"] for entry, _ in own}),
        "cost_ns_per_step": round(cost / steps),
        "cost_ns": cost,
        "share_frac": cost / window,
        "evidence": [
            {"rank": entry["rank"], "start_ns": one["start_ns"], "dur_ns": one["longest_ns"], "name": one["name"],
             "note": "the longest of them"}
            for entry, one in own[:EVIDENCE]
        ],
    }  # fmt: skip
