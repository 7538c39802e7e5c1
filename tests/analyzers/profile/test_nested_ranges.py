"""Ranges and operators that hold others: counted once by name, and an optimizer's less its closure. Times in µs."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, note, op, write

import gpuscope
from gpuscope.schema.document import Report


def report(path: Path, events: list[Event]) -> Report:
    """Of a trace of these events."""
    if any(one["cat"] == "kernel" for one in events):
        return gpuscope.analyze(write(path / "rank0.json", *events)).report
    info = {"backend": "gloo", "rank": 0, "world_size": 1}
    return gpuscope.analyze(write(path / "rank0.json", *events, rank=None, distributedInfo=info)).report


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_an_operator_within_its_like_is_counted_once(tmp_path: Path, depth: int) -> None:
    """`aten::cudnn_convolution` calls itself, here up to three times; another lies between."""
    events: list[Event] = []
    for number in range(6):
        at = 1000 * number
        for level in range(depth):
            events.append(op(at + 10 * level, 500 - 20 * level, "aten::cudnn_convolution"))
            events.append(op(at + 10 * level + 2, 490 - 20 * level, "aten::convolution"))
        events += [call(at + 100, 5, number + 1), kernel(at + 110, 300, number + 1)]
    found = {one["name"]: one for one in report(tmp_path, events)["operators"]}["aten::cudnn_convolution"]
    assert (found["count"], found["host_ns"], found["device_ns"]) == (6, 6 * 500_000, 6 * 300_000)
    # Own time: what neither its like nor the other covers, at every level.
    assert found["host_self_ns"] == 6 * 10_000 * depth


def test_of_ranges_too_and_siblings_stay_two(tmp_path: Path) -> None:
    events = [
        note(0, 900, "block"),
        note(100, 300, "block"),
        note(500, 300, "block"),
        note(1000, 100, "block"),
        op(10, 20),
        call(12, 5, 1),
        kernel(20, 50, 1),
    ]
    (found,) = (one for one in report(tmp_path, events)["ranges"] if one["name"] == "block")
    assert (found["count"], found["host_ns"]) == (2, 1_000_000)


def closures(folder: Path, *, evaluations: int = 1, named: bool = True, on_gpu: bool = True) -> Report:
    """Steps of `optimizer.step(closure)`: forward 2 ms and backward 4 ms, so often, then 1 ms of updating by four
    operators 200 µs apart, 1.5 ms behind the backward."""
    events: list[Event] = []
    number = 0

    def launch(at: int, name: str, like: str) -> None:
        nonlocal number
        number += 1
        events.append(op(at, 10, name))
        if on_gpu:
            events.extend([call(at + 2, 5, number), kernel(at + 20, 50, number, like)])

    for step in range(5):
        begin, at = 30_000 * step, 30_000 * step + 100
        for _ in range(evaluations):
            if named:
                events.extend([note(at, 2000, "training_step"), note(at + 2000, 4000, "Strategy.backward")])
            for place in range(4):
                launch(at + 500 * place + 5, "aten::mm", "gemm")
            for place in range(4):
                node = "autograd::engine::evaluate_function: MmBackward0"
                events.append(op(at + 2000 + 990 * place, 980, node))
                launch(at + 2005 + 990 * place, "aten::mm", "gemm")
            at += 6100
        for place in range(4):
            launch(at + 1500 + 200 * place, "aten::_foreach_add_", "multi_tensor_apply_kernel<Adam>")
        end = at + 2500
        events += [
            note(begin + 50, end - begin - 50, "Optimizer.step#AdamW.step"),
            note(begin, 29_990, f"ProfilerStep#{step}"),
            note(begin + 10, end - begin, "run_training_batch"),
        ]
    return report(folder, events)


@pytest.mark.parametrize("evaluations", [1, 2, 3])
@pytest.mark.parametrize("named", [True, False])
def test_a_closure_s_forward_and_backward_are_no_optimizer_time(tmp_path: Path, evaluations: int, named: bool) -> None:
    found = closures(tmp_path, evaluations=evaluations, named=named)
    phases = {one["phase"]: one for one in found["phases"]}
    assert 5 * 2_400_000 <= phases["optimizer"]["host_ns"] <= 5 * 2_800_000
    assert phases["optimizer"]["device_ns"] == 5 * 4 * 50_000
    assert phases["forward"]["device_ns"] == phases["backward"]["device_ns"] == 5 * 4 * 50_000 * evaluations
    (parts,) = found["compute"]
    assert next(one["dur_ns"] for one in parts["parts"] if one["category"] == "optimizer") == 4 * 50_000


def test_a_fused_optimizer_saves_no_more_than_its_kernels_and_their_gaps(tmp_path: Path) -> None:
    """Four kernels of 50 µs, three gaps of at most 200 µs: the 1.5 ms before them stay."""
    found = closures(tmp_path)
    for one in found["suggestions"]:
        if one["code"] == "fused_optimizer":
            told = one["predicted"]
            assert told["step_ns_before"] - told["step_ns_after"] <= 800_000
    moved = [one["setting"]["name"] for one in (*found["suggestions"], *found["advice"]["unpredicted"])]
    assert not any("run_training_batch" in name or "training_step" in name for name in moved)


def test_on_a_cpu_it_saves_no_more_than_the_update_takes(tmp_path: Path) -> None:
    found = closures(tmp_path, on_gpu=False)
    (steps,) = (one for one in found["ranges"] if one["name"] == "Optimizer.step#AdamW.step")
    assert 5 * 2_400_000 <= steps["update_ns"] <= 5 * 2_800_000
    for one in found["advice"]["unpredicted"]:
        if "fused" in one["setting"]["name"]:
            assert one["bound"]["step_ns_before"] - one["bound"]["step_ns_low"] <= 2_800_000


def test_an_optimizer_without_a_closure_keeps_its_time(tmp_path: Path) -> None:
    events = [
        one
        for step in range(4)
        for one in (
            note(1000 * step, 990, f"ProfilerStep#{step}"),
            op(1000 * step + 10, 300, "aten::mm"),
            op(1000 * step + 320, 300, "autograd::engine::evaluate_function: MmBackward0"),
            note(1000 * step + 650, 300, "Optimizer.step#SGD.step"),
            op(1000 * step + 660, 280, "aten::add_"),
        )
    ]
    phases = {one["phase"]: one["host_ns"] for one in report(tmp_path, events)["phases"]}
    assert phases["optimizer"] == 4 * 300_000
