"""Which gradients a bucket holds, from a trace written by hand; times in µs there, in ns here."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import Event, op, write

import gpuscope
from gpuscope.analyzers.facts.message_sizes.accumulated_gradients import gradient_hooks
from gpuscope.analyzers.replay.from_trace.gradients import with_gradients
from gpuscope.analyzers.replay.from_trace.graph_builder import not_before
from gpuscope.analyzers.replay.graph import Call, Gradient
from gpuscope.trace.intervals import Spans
from gpuscope.trace.trace import Trace

HOOK = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"


def accumulated(ts: int, dims: list[int], dur: int = 10) -> list[Event]:
    told = {"Input Dims": [dims], "Input type": ["float"]}
    return [op(ts, dur, HOOK), op(ts + 1, 2, "torch::autograd::AccumulateGrad", **told)]


def trace(tmp_path: Path, *events: list[Event]) -> Trace:
    return gpuscope.open_trace(write(tmp_path / "rank0.json", *chain.from_iterable(events)))


def bucket(size: int, op: str = "all_reduce") -> Call:
    return Call(0, op, 0, 0, size, "0", 2, True)


def held(found: Trace, *calls: tuple[int, Call]) -> list[tuple[Gradient, ...]]:
    issued = np.array([at * 1000 for at, _ in calls], np.int64)
    hooks = gradient_hooks(found, np.arange(len(found["host_events"])))
    return [
        call.gradients
        for call in with_gradients(found, 0, hooks, [call for _, call in calls], issued, np.zeros(1, np.int64))
    ]


def test_two_buckets_of_three_gradients(tmp_path: Path) -> None:
    """64 and 32 floats in one all-reduce at 128, issued by the second's hook; 16 in the next one."""
    found = trace(tmp_path, accumulated(100, [8, 8]), accumulated(120, [32]), accumulated(150, [16]))
    assert held(found, (128, bucket(384)), (155, bucket(64))) == [
        (Gradient(256, 27_000), Gradient(128, 0)),
        (Gradient(64, 0),),
    ]


def test_what_is_sent_behind_the_backward_holds_all_together(tmp_path: Path) -> None:
    """64 and 32 floats, sent at 200 and 210 as 40 and 56, in order."""
    found = trace(tmp_path, accumulated(100, [8, 8]), accumulated(120, [32]))
    behind = [replace(bucket(size, "reduce_scatter"), backward=False) for size in (160, 224)]
    assert held(found, (200, behind[0]), (210, behind[1])) == [
        (Gradient(160, 99_000),),
        (Gradient(96, 109_000), Gradient(128, 89_000)),
    ]


def test_what_tensor_parallelism_reduces_in_between_holds_none(tmp_path: Path) -> None:
    found = trace(tmp_path, accumulated(100, [8, 8]), accumulated(120, [32]), accumulated(150, [16]))
    between = replace(bucket(4096), group="tp")
    assert held(found, (115, between), (128, bucket(384)), (140, between), (155, bucket(64))) == [
        (), (Gradient(256, 27_000), Gradient(128, 0)), (), (Gradient(64, 0),),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("at", "call"),
    [(128, bucket(500)), (128, bucket(384, "all_gather")), (115, bucket(384))],
    ids=["other bytes", "no reduction", "before the second"],
)
def test_what_is_not_these_gradients_holds_none(tmp_path: Path, at: int, call: Call) -> None:
    found = trace(tmp_path, accumulated(100, [8, 8]), accumulated(120, [32]))
    assert held(found, (at, call)) == [()]


def test_gradients_without_shapes(tmp_path: Path) -> None:
    found = trace(tmp_path, [op(100, 10, HOOK), op(101, 2, "torch::autograd::AccumulateGrad")])
    assert held(found, (105, bucket(256))) == [()]


def test_a_host_steps_ahead_is_waited_for_in_each_collectives_own_step() -> None:
    """Hooks issue four at 0, 10, 20 and 30, all before the device's first step ends; two are part of each step."""
    hooks = Spans(np.array([0, 10, 20, 30]), np.array([1, 11, 21, 31]))
    found = not_before(hooks, np.array([0, 10, 20, 30]), np.array([0, 0, 1, 1]))
    assert found.tolist() == [10, 10, 30, 30]
