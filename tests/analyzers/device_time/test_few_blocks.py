"""Kernels worth a finding: of few blocks, by their launch; hidden by stalls, by their part of the device's work."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import call, kernel, write
from helpers.nsys import Export

import gpuscope
from gpuscope.analyzers.device_time.compute_findings import compute_findings
from gpuscope.schema.call_tree_section import ComputeEntry
from gpuscope.schema.document import Report

MS = 1_000_000


def native(
    folder: Path, grid: int = 1, block: int = 1, name: str = "add(int*)", lasts: int = 2 * MS, beside: bool = False
) -> Report:
    """Six rounds of this kernel and of one of 1 ms that fills the device, `beside` it or behind it."""
    export, at = Export(), MS
    for number in range(0, 60, 10):
        small = {"gridX": grid, "gridY": 1, "gridZ": 1, "blockX": block, "blockY": 1, "blockZ": 1}
        export.call(at - 9_000, at - 5_000, number + 1)
        export.kernel(at, at + lasts, number + 1, name=name, **small)
        start = at if beside else at + lasts
        export.call(at - 4_000, at - 1_000, number + 2)
        whole = small | {"gridX": 4_096, "blockX": 256}
        export.kernel(start, start + max(MS, lasts), number + 2, name="stencil", **whole)
        at = start + max(MS, lasts) + 10_000
    return gpuscope.analyze(export.write(folder / "small.sqlite")).report


def codes(report: Report) -> set[str]:
    return {one["code"] for one in report["findings"]}


def test_one_thread_of_one_block(tmp_path: Path) -> None:
    report = native(tmp_path)
    (found,) = [one for one in report["findings"] if one["code"] == "few_blocks"]
    assert found["message"].startswith(
        "add(int*) runs on 1 block of 1 thread, which occupy 1 multiprocessor of the device at most: 49."
    )
    (one,) = [one for one in report["advice"]["unpredicted"] if one["code"] == "more_blocks"]
    assert "add(int*)" in one["action"]
    bound = one["bound"]
    assert 1 - bound["step_ns_low"] / bound["step_ns_before"] == pytest.approx(found["share_frac"], rel=0.02)


@pytest.mark.parametrize(
    "given",
    [
        {"grid": 64},
        {"grid": 8, "lasts": 100_000},
        {"beside": True},
    ],
    ids=["enough blocks", "short", "beside others"],
)
def test_kernels_that_leave_little_idle(given: dict[str, int], tmp_path: Path) -> None:
    assert "few_blocks" not in codes(native(tmp_path, **given))  # type: ignore[arg-type]


def test_a_library_chooses_its_own_grid(tmp_path: Path) -> None:
    report = native(tmp_path, name="void cub::DeviceScanKernel<int>(int*)")
    assert "few_blocks" in codes(report)
    assert "more_blocks" not in {one["code"] for one in report["advice"]["unpredicted"]}


@pytest.mark.parametrize(("grid", "expected"), [([2, 2, 1], True), ([64, 1, 1], False), ("2", False), ([2, 2], False)])
def test_torch_profilers_grids(grid: object, expected: bool, tmp_path: Path) -> None:
    events = [
        event
        for n in range(4)
        for event in (
            call(2_000 * n, 2, 2 * n),
            kernel(2_000 * n + 10, 900, 2 * n, "my_scan", grid=grid, block=[32, 1, 1]),
            call(2_000 * n + 5, 2, 2 * n + 1),
            kernel(2_000 * n + 910, 900, 2 * n + 1, "gemm", grid=[512, 1, 1], block=[128, 1, 1]),
        )
    ]
    assert ("few_blocks" in codes(gpuscope.analyze(write(tmp_path / "rank0.json", *events)).report)) is expected


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
        "rank": 0,
        "device": 0,
        "device_name": None,
        "generation": None,
        "steps": 2,
        "window_ns": 1_000,
        "why": "",
        "parts": [{"category": "other", "dur_ns": kernels // 2, "known_ns": 0, "floor_ns": 0}],
        "reducible": [
            {"code": code, "dur_ns": spent, "count": 2, "detail": "", "name": "k", "start_ns": 0, "longest_ns": 1}
        ],
    }
    assert bool(list(compute_findings([entry]))) == found
