"""Which gradients a bucket holds, from a trace written by hand (µs there, ns here); what a batch does not change."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import Event, call, kernel, op, write

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.facts.message_sizes import gradient_hooks
from gpuscope.analyzers.replay.graph import Call, Gradient
from gpuscope.analyzers.replay.graph_builder import not_before, with_gradients
from gpuscope.analyzers.replay.training_thread import fixed_shares, fixed_shares_on_device, own_times
from gpuscope.trace.intervals import Spans
from gpuscope.trace.schema import SCHEMAS
from gpuscope.trace.table import Table
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
        (),
        (Gradient(256, 27_000), Gradient(128, 0)),
        (),
        (Gradient(64, 0),),
    ]


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


def forward(trace: Trace, end: int) -> Table:
    """The table of one forward from 0 on."""
    columns = {"rank": [0], "dp_rank": [0], "stage": [0], "step": [0], "seq": [0], "start": [0], "end": [end]}
    columns |= {"op": trace.names.codes(["forward-compute"]), "micro_batch": [0], "chunk": [0], "global_chunk": [0]}
    return Table.build(SCHEMAS["operations"], 1, columns)


def test_own_times() -> None:
    """0–100 holds 10–40 (which holds 20–30) and 50–60; 100–120 stands alone."""
    start, end = np.array([0, 10, 20, 50, 100]), np.array([100, 40, 30, 60, 120])
    assert own_times(start, end).tolist() == [60, 20, 10, 10, 20]


def test_pythons_and_the_operators_share(tmp_path: Path) -> None:
    """A forward of 100: operators of 40 (10 of it within another), 4 and 6, so 50 are Python; of 30, 10, 4 and 6 by
    themselves the median is 8, so 8 + 8 + 4 + 6 are dispatch."""
    found = gpuscope.open_trace(
        write(
            tmp_path / "rank0.json",
            op(10, 40, "aten::linear"),
            op(20, 10, "aten::mm"),
            op(60, 4, "aten::t"),
            op(70, 6, "aten::t"),
        )
    )
    table = forward(found, 100_000)
    assert fixed_shares(found, 0, table) == {"F": 0.76}
    assert fixed_shares(found, 1, table) == {}


def test_the_pauses_and_the_kernels_of_a_gpu(tmp_path: Path) -> None:
    """Three kernels of 20, 20 and 40 us in 100 us, so pauses of 20, and 1 us of each kernel."""
    times = ((0, 20), (25, 20), (60, 40))
    events = [row for n, (at, dur) in enumerate(times, 1) for row in (call(at, 1, n), kernel(at, dur, n))]
    found = gpuscope.open_trace(write(tmp_path / "rank0.json", *events))
    [view] = views(found)
    assert fixed_shares_on_device(found, view, forward(found, 100_000)) == {"F": 0.23}
    assert fixed_shares_on_device(found, view, forward(found, 100_000).take(np.empty(0, np.int64))) == {}
