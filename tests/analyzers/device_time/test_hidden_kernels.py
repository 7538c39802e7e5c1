"""Kernels worth a finding although stalls hide them: by their part of what the device computes."""

from __future__ import annotations

import pytest

from gpuscope.analyzers.device_time.kernels.compute_findings import compute_findings
from gpuscope.schema.compute_section import ComputeEntry


@pytest.mark.parametrize(
    ("code", "spent", "kernels", "found"),
    [
        ("layout_conversion", 40, 1_000, True),  # 4 % of the time
        ("layout_conversion", 20, 120, True),  # 2 %, but a sixth of the kernels
        ("layout_conversion", 20, 400, False),
        ("layout_conversion", 5, 20, False),  # half a percent is nothing, whatever part of the kernels it is
        ("half_precision_products", 20, 40, False),  # FP8 asks for most of a step
    ],
)
def test_a_tenth_of_the_kernels_counts_too(code: str, spent: int, kernels: int, found: bool) -> None:
    entry: ComputeEntry = {
        "rank": 0, "device": 0, "device_name": None, "generation": None, "steps": 2, "window_ns": 1_000, "why": "",
        "parts": [{"category": "other", "dur_ns": kernels // 2, "known_ns": 0, "floor_ns": 0}],
        "reducible": [{"code": code, "dur_ns": spent, "count": 2, "detail": "", "name": "k", "start_ns": 0,
                       "longest_ns": 1}],
    }  # fmt: skip
    assert bool(list(compute_findings([entry]))) == found
