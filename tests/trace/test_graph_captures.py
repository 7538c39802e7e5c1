"""Captures of CUDA graphs: set-up, and no launch whose kernel is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.kineto import call, kernel, note, write

import gpuscope


def capture(at: int, count: int, first: int) -> list[Any]:
    """`count` launches, one every 10 µs, while the thread captures."""
    return [
        call(at, 2, 0, name="cudaStreamBeginCapture"),
        *(call(at + 5 + 10 * k, 5, first + k) for k in range(count)),
        call(at + 10 + 10 * count, 2, 0, name="cudaStreamEndCapture"),
    ]


def step(number: int, at: int, correlation: int) -> list[Any]:
    return [
        note(at, 990, f"ProfilerStep#{number}"), call(at + 5, 5, correlation),
        kernel(at + 10, 900, correlation, name="gemm"),
    ]  # fmt: skip


def test_a_step_that_captures_is_warm_up(tmp_path: Path) -> None:
    """70 of 1000 µs of the first step, which takes as long as the others."""
    events = [one for k in range(5) for one in step(k, 1000 * k, k + 1)]
    report = gpuscope.analyze(write(tmp_path / "r.json", *events, *capture(20, 6, 100))).report
    assert [one["role"] for one in report["steps"]] == ["warmup", "steady", "steady", "steady", "partial"]
    assert "kernel_missing" not in {one["code"] for one in report["problems"]}


def test_idle_time_in_a_capture_is_no_launch_overhead(tmp_path: Path) -> None:
    """A kernel, 2 ms of capturing, a kernel: the capture's 2,010 µs are the host's own work."""
    events = [
        call(0, 5, 1), kernel(10, 90, 1), *capture(200, 200, 100), call(2300, 5, 2), kernel(2310, 90, 2),
    ]  # fmt: skip
    report = gpuscope.analyze(write(tmp_path / "r.json", *events)).report
    causes = report["ranks"][0]["stall_ns"]["cpu"]
    assert causes["host_other"] == 2_012_000
    finding = next(one for one in report["findings"] if one["code"] == "host_other")
    assert "CUDA graph capture" in {one["name"] for one in finding["evidence"]}
