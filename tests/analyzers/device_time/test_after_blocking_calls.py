"""Idle time behind a blocking call that has returned. Times in µs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, call, copy, kernel, note, op, python, write

import gpuscope
from gpuscope.schema.document import Report

STEP = 40_000


def worker(
    folder: Path,
    *,
    layers: int = 10,
    step: int = STEP,
    steps: int = 6,
    around: str = "",
    frame: str = "",
    trains: bool = False,
    ops_between: int = 0,
) -> Report:
    """A server's worker: in each step `layers` kernels of 1.9 ms launched at once, a copy of the token, a synchronise,
    then nothing until the next step."""
    events: list[Event] = []
    for number in range(steps):
        at, first = number * step, number * 100 + 1
        events.append(note(at, 1000 + 1910 * layers, "execute_model"))
        if around:
            events.append(note(at, step - 1, around))
        if frame:
            events.append(python(at + 900, step - 901, frame))
        for layer in range(layers):
            launched = at + 20 + 30 * layer
            name = "aten::mm" if not trains else "autograd::engine::evaluate_function: MmBackward0"
            events += [op(launched - 5, 15, name), call(launched, 5, first + layer)]
            events.append(kernel(at + 100 + 1910 * layer, 1900, first + layer, f"gemm_{layer}" if layer else "embed"))
        done = at + 100 + 1910 * layers
        events += [
            call(at + 800, 8, first + layers, "cudaMemcpyAsync"),
            copy(done, 3, first + layers, "Memcpy DtoH (Device -> Pinned)"),
            call(at + 830, done + 10 - at - 830, first + layers + 1, "cudaStreamSynchronize"),
        ]
        gap = (step - (done + 10 - at)) // (ops_between + 1)
        events += [op(done + 10 + gap * place, gap - 20, "aten::topk") for place in range(ops_between)]
    return gpuscope.analyze(write(folder / "rank0.json", *events)).report


def causes(report: Report) -> dict[str, int]:
    """ns by cause of class cpu."""
    return report["ranks"][0]["stall_ns"]["cpu"]


@pytest.mark.parametrize(("layers", "step"), [(10, STEP), (4, 12_000), (1, 9_000)])
def test_a_worker_that_waits_for_work_is_not_blocked(tmp_path: Path, layers: int, step: int) -> None:
    report = worker(tmp_path, layers=layers, step=step)
    assert report["verdict"]["cause"] == "host_other"
    assert causes(report).get("sync", 0) < 0.1 * causes(report)["host_other"]
    (found,) = (one for one in report["findings"] if one["code"] == "host_other")
    assert all(one.get("awaits") for one in found["evidence"])
    assert not report["suggestions"]
    assert "other_process" in {one["code"] for one in report["advice"]["unpredicted"]}


def test_its_own_operators_are_work_that_could_run_earlier(tmp_path: Path) -> None:
    """Recorded work behind the call is no wait for another process: without blocking it would begin earlier."""
    report = worker(tmp_path, ops_between=3)
    assert causes(report)["sync"] > 0.8 * sum(causes(report).values())
    assert "other_process" not in {one["code"] for one in report["advice"]["unpredicted"]}


@pytest.mark.parametrize("how", [{"around": "step_loop"}, {"frame": "engine.py(10): run"}, {"trains": True}])
def test_a_range_around_it_or_training_says_whose_time_it_is(tmp_path: Path, how: dict[str, object]) -> None:
    report = worker(tmp_path, **how)  # type: ignore[arg-type]
    assert "other_process" not in {one["code"] for one in report["advice"]["unpredicted"]}
    assert causes(report)["sync"] > 0
