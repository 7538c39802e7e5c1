"""The tables that users of other profilers look up: by hand, and beside independent counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from helpers.kineto import Event, call, copy, kernel, note, op, python, write
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from gpuscope.analyzers.profile.launch_queue import BINS, _queue
from gpuscope.analyzers.profile.recorded_ranks import parents
from gpuscope.analyzers.run.analysis import Analysis
from gpuscope.trace.schema import NA
from gpuscope.trace.table import grouped

US = 1_000


def analysed(tmp_path: Path, *events: Event, **options: Any) -> Analysis:
    analysis = gpuscope.analyze(write(tmp_path / "rank0.json", *events), **options)
    assert analysis.failed == []
    return analysis


def row(analysis: Analysis, table: str, **key: object) -> dict[str, Any]:
    """The one row of a table with these values."""
    frame = analysis.tables[table]
    for column, value in key.items():
        frame = frame[frame[column] == value]
    assert len(frame) == 1, frame
    return {str(column): value for column, value in frame.iloc[0].items()}


def step() -> list[Event]:
    """Forward on thread 1, backward asked for there and run by autograd's thread 2; µs.

    linear 100–200 holds addmm 120–180, which launches a kernel of 50 at 300. backward 200–400 on thread 1; on thread 2
    MmBackward 220–380 holds mm 240–300 with a kernel of 30 at 400, and launches a copy of 20 at 440 itself.
    """
    return [
        note(90, 400, "## forward ##"),
        op(100, 100, "aten::linear"),
        op(120, 60, "aten::addmm"),
        call(130, 10, 1),
        kernel(300, 50, 1, "gemm"),
        note(500, 200, "## backward ##"),
        op(520, 160, "autograd::engine::evaluate_function: MmBackward0", tid=2),
        op(540, 60, "aten::mm", tid=2),
        call(550, 10, 2, tid=2),
        kernel(700, 30, 2, "gemm"),
        call(610, 10, 3, "cudaMemcpyAsync", tid=2),
        copy(740, 20, 3, bytes=8_192),
    ]


def test_operators_on_host_and_device(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, *step())
    linear, addmm = (row(analysis, "operators", name=f"aten::{name}") for name in ("linear", "addmm"))
    assert (linear["host_ns"], linear["host_self_ns"]) == (100 * US, 40 * US)
    assert (linear["device_ns"], linear["device_self_ns"], linear["kernels"]) == (50 * US, 0, 1)
    assert (addmm["device_ns"], addmm["device_self_ns"]) == (50 * US, 50 * US)
    outer = row(analysis, "operators", name="autograd::engine::evaluate_function: MmBackward0")
    assert (outer["host_self_ns"], outer["device_ns"], outer["device_self_ns"]) == (100 * US, 50 * US, 20 * US)


def test_a_range_has_what_autograd_launches_while_it_is_open(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, *step())
    forward, backward = (row(analysis, "ranges", name=f"## {name} ##") for name in ("forward", "backward"))
    assert (forward["phase"], forward["host_ns"], forward["device_ns"]) == ("forward", 400 * US, 50 * US)
    assert (backward["compute_ns"], backward["memory_ns"], backward["kernels"]) == (30 * US, 20 * US, 2)
    assert backward["device_span_ns"] == 60 * US  # from 700 to 760
    by_phase = analysis.tables["phases"].set_index("phase")["device_ns"].to_dict()
    assert by_phase == {"forward": 50 * US, "backward": 50 * US}


def test_modules_of_the_recorded_stacks(tmp_path: Path) -> None:
    events = [
        python(0, 100, "nn.Module: Block_0"),
        python(10, 50, "nn.Module: Linear_3"),
        call(20, 5, 1),
        kernel(200, 40, 1),
        call(80, 5, 2),
        kernel(240, 5, 2),
    ]
    analysis = analysed(tmp_path, *events)
    block, linear = (row(analysis, "ranges", name=name) for name in ("Block_0", "Linear_3"))
    assert (block["kind"], block["host_ns"], block["device_ns"]) == ("module", 100 * US, 45 * US)
    assert (linear["host_ns"], linear["device_ns"], linear["kernels"]) == (50 * US, 40 * US, 1)


def test_kernels_by_rank_with_the_operator_that_launches_most_of_their_time(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, *step())
    gemm = row(analysis, "kernel_ranks", name="gemm")
    assert (gemm["count"], gemm["median_ns"], gemm["min_ns"], gemm["max_ns"]) == (2, 40 * US, 30 * US, 50 * US)
    assert gemm["operator"] == row(analysis, "kernels", name="gemm")["operator"] == "aten::addmm"
    assert gemm["share_frac"] == pytest.approx(0.8)


def test_calls_by_function(tmp_path: Path) -> None:
    lengths = (5, 1, 9, 3)
    events = [call(100 * i, length, i + 1) for i, length in enumerate(lengths)]
    events += [kernel(100 * i + 20, 10, i + 1) for i in range(4)]
    calls = row(analysed(tmp_path, *events), "api_calls", name="cudaLaunchKernel")
    assert (calls["count"], calls["dur_ns"], calls["median_ns"], calls["max_ns"]) == (4, 18 * US, 4 * US, 9 * US)
    assert calls["share_frac"] == 1


def test_copies_by_size(tmp_path: Path) -> None:
    sizes = (4_095, 4_096, 10_000, 20 << 20)
    events = [call(100 * i, 5, i + 1, "cudaMemcpyAsync") for i in range(4)]
    events += [copy(100 * i + 10, 10 * (i + 1), i + 1, bytes=size) for i, size in enumerate(sizes)]
    copies = analysed(tmp_path, *events).tables["copies"].set_index("least_bytes")
    assert copies["count"].to_dict() == {0: 1, 4_096: 2, 16 << 20: 1}
    assert copies.loc[4_096, "bytes"] == 14_096
    assert copies.loc[4_096, "bandwidth_gbps"] == pytest.approx(14_096 / 50_000)
    assert pd.isna(copies.loc[16 << 20, "below_bytes"])


def test_launches_and_their_queue(tmp_path: Path) -> None:
    """Twelve calls of 5 µs every 10 µs from 0; kernels of 100 µs, one after the other from 5 µs on.

    Kernel i is issued at 10 i + 5 and starts at 5 + 100 i: it waits 90 i.
    That is 5,940 µs in all, over the 1,100 from the first issue to the last start.
    """
    events = [call(10 * i, 5, i + 1) for i in range(12)]
    events += [kernel(5 + 100 * i, 100, i + 1) for i in range(12)]
    analysis = analysed(tmp_path, *events)
    launches, queue = row(analysis, "launches"), row(analysis, "queues")
    assert (launches["launches"], launches["call_median_ns"], launches["delay_max_ns"]) == (12, 5 * US, 990 * US)
    assert (launches["short_kernels"], launches["slow_calls"], launches["late_starts"]) == (0, 0, 10)
    assert queue["mean"] == pytest.approx(5_940 / 1_100)
    # At 115 µs the last is issued: then kernel 0 and 1 have started.
    assert queue["max"] == max(queue["max_by_bin"]) == 10
    assert sum(queue["mean_by_bin"]) * queue["bin_ns"] == pytest.approx(5_940 * US, rel=1e-3)
    assert queue["empty_frac"] == pytest.approx(10 / 1_100)  # from 5 to 15 µs nothing is queued


def test_streams_wait_for_the_host_or_for_others(tmp_path: Path) -> None:
    """Stream 7: 0–10 and 100–110, issued at 65: 55 µs for want of work, 35 queued."""
    events = [
        call(-10, 5, 1),
        kernel(0, 10, 1),
        call(60, 5, 2),
        kernel(100, 10, 2),
        call(70, 5, 3),
        kernel(80, 4, 3, stream=9),
    ]
    stream = row(analysed(tmp_path, *events), "streams", stream=7)
    assert (stream["span_ns"], stream["busy_ns"], stream["idle_ns"]) == (110 * US, 20 * US, 90 * US)
    assert (stream["host_wait_ns"], stream["queued_wait_ns"]) == (55 * US, 35 * US)


def test_the_longest_gap_says_what_lies_around_it(tmp_path: Path) -> None:
    events = [
        call(0, 5, 1),
        kernel(10, 10, 1, "first"),
        op(30, 900, "aten::nonzero"),
        call(940, 5, 2),
        kernel(950, 10, 2, "second"),
    ]
    gap = row(analysed(tmp_path, *events), "gaps")
    assert (gap["dur_ns"], gap["before"], gap["after"], gap["host"]) == (930 * US, "first", "second", "aten::nonzero")
    assert gap["cause"] == "launch"


def test_steps_asked_for_cut_every_table(tmp_path: Path) -> None:
    events = [
        event
        for i in range(4)
        for event in (
            note(1_000 * i, 990, f"ProfilerStep#{i}"),
            op(1_000 * i, 50),
            call(1_000 * i + 10, 5, i + 1),
            kernel(1_000 * i + 100, 50, i + 1),
        )
    ]
    analysis = analysed(tmp_path, *events, steps=(1, 2))
    assert row(analysis, "operators", name="aten::mm")["count"] == 2
    assert row(analysis, "api_calls")["count"] == 2
    assert row(analysis, "launches")["launches"] == 2
    assert not len(analysis.tables["ranges"])  # the steps themselves have a table of their own


def test_a_cpu_run_has_operators_and_no_device_columns(samples: Path) -> None:
    analysis = gpuscope.analyze(samples / "ddp_healthy")
    assert analysis.tables["operators"]["device_ns"].isna().all()
    assert not len(analysis.tables["launches"])
    assert {"forward", "backward"} <= set(analysis.tables["phases"]["phase"])


def test_parents_of_random_nested_spans() -> None:
    """Beside the quadratic definition: the shortest span of the thread that encloses it."""
    random = np.random.default_rng(3)
    spans: list[tuple[int, int, int]] = []

    def grow(low: int, high: int, thread: int, depth: int) -> None:
        while low + 4 < high and depth < 5:
            start = int(random.integers(low, high - 2))
            end = int(random.integers(start + 1, high))
            spans.append((start, end, thread))
            grow(start, end, thread, depth + 1)
            low = end

    for thread in (1, 2):
        grow(0, 100_000, thread, 0)
    spans = [spans[i] for i in random.permutation(len(spans))]
    start, end, thread = (np.array(values) for values in zip(*spans, strict=True))
    found = parents(start, end, thread)
    assert len(spans) > 50
    for i, (low, high, own) in enumerate(spans):
        around = [
            j for j, (a, b, t) in enumerate(spans) if t == own and a <= low and b >= high and (a, b) != (low, high)
        ]
        parent = found[i]
        assert (parent != NA) == bool(around)
        if around:
            assert end[parent] - start[parent] == min(end[j] - start[j] for j in around)


def test_grouped_durations_by_either_way() -> None:
    durations, group = np.array([5, 1, 9, 3, 7]), np.array([0, 2, 0, 2, 2])
    for factor in (1, 1 << 59):  # the second does not fit into one number with its group
        stats = grouped(durations * factor, group, 3)
        assert stats.number.tolist() == [2, 0, 3]
        assert (stats.median // factor).tolist() == [7, 0, 3]
        assert (stats.least // factor).tolist() == [5, 0, 1]
        assert (stats.largest // factor).tolist() == [9, 0, 7]


OPERATIONS = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 40)), min_size=2, max_size=40)


def walked(issue: list[int], start: list[int], begin: int, width: int) -> tuple[int, int, list[int]]:
    """The most that is queued, for how long nothing is, and the most in each bin."""
    events = sorted([(at, 1) for at in issue] + [(at, 0) for at in start])
    most = empty = length = 0
    bins = [0] * BINS
    last = events[0][0]
    edges = [begin + width * place for place in range(BINS + 1)]
    states: list[tuple[int, int]] = []
    for at, issued in events:
        empty += (at - last) * (length == 0)
        length += 1 if issued else -1
        most, last = max(most, length), at
        states.append((at, length))
    for place in range(BINS):
        before = [length for at, length in states if at <= edges[place]]
        inside = [length for at, length in states if edges[place] < at <= edges[place + 1]]
        bins[place] = max([before[-1] if before else 0, *inside])
    return most, empty, bins


@given(OPERATIONS)
def test_longest_and_empty(operations: list[tuple[int, int]]) -> None:
    start = sorted(at + waits for at, waits in operations)
    issue = sorted(at for at, _ in operations)
    window = (min(issue), max(start) + 1)
    view: Any = SimpleNamespace(window=window, lane=SimpleNamespace(rank=0, device=0))
    found = _queue(view, 7, np.array(issue, np.int64), np.array(start, np.int64))
    most, empty, bins = walked(issue, start, window[0], found["bin_ns"])
    assert found["max"] == most
    assert found["empty_frac"] == pytest.approx(empty / max(start[-1] - issue[0], 1))
    assert found["max_by_bin"] == bins
