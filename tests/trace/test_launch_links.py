"""Launches found by a list of ids, and by sorting where ids are shared or lie far apart; captures of CUDA graphs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.kineto import call, kernel, note, write
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from gpuscope.trace import launch_links
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind
from gpuscope.trace.table import Table, order_rows

IDS = st.one_of(st.integers(1, 12), st.just(NA))
CALLS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), IDS, st.booleans()), max_size=20)
KERNELS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40), IDS), max_size=20)


def tables(
    calls: list[tuple[int, int, int, bool]], kernels: list[tuple[int, int, int]], scale: int
) -> tuple[Table, Table]:
    data = {name: Table.empty(schema) for name, schema in SCHEMAS.items()}

    def spread(ids: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([one if one == NA else one * scale for one in ids], np.int64)

    start = [own[1] for own in calls]
    data["host_events"] = Table.build(
        SCHEMAS["host_events"],
        len(calls),
        {
            "rank": [own[0] for own in calls],
            "thread": 0,
            "start": start,
            "end": start,
            "name": 0,
            "category": [Category.RUNTIME if own[3] else Category.OP for own in calls],
            "correlation": spread([own[2] for own in calls]),
        },
    )
    start = [own[1] for own in kernels]
    data["device_events"] = Table.build(
        SCHEMAS["device_events"],
        len(kernels),
        {
            "rank": [own[0] for own in kernels],
            "start": start,
            "end": start,
            "kind": Kind.COMPUTE,
            "name": 0,
            "correlation": spread([own[2] for own in kernels]),
        },
    )
    order_rows(data, "host_events")
    order_rows(data, "device_events")
    return data["device_events"], data["host_events"]


@given(CALLS, KERNELS, st.sampled_from([1, 2**20, 2**40]))
def test_both_ways_find_the_same(
    calls: list[tuple[int, int, int, bool]], kernels: list[tuple[int, int, int]], scale: int
) -> None:
    device, host = tables(calls, kernels, scale)
    found, shared = launch_links.launches(device, host)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch_links, "_listed_launches", lambda *_: None)
        sorted_found, sorted_shared = launch_links.launches(device, host)
    assert found.tolist() == sorted_found.tolist()
    assert shared == sorted_shared


def test_ids_of_one_recording_are_listed() -> None:
    device, host = tables([(0, at, at, True) for at in range(1, 9)], [(0, at, 9 - at) for at in range(1, 9)], 1)
    assert launch_links._listed_launches(device, host) is not None
    assert launch_links.launches(device, host)[0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]


def capture(at: int, count: int, first: int) -> list[Any]:
    """`count` launches, one every 10 µs, while the thread captures."""
    return [
        call(at, 2, 0, name="cudaStreamBeginCapture"),
        *(call(at + 5 + 10 * k, 5, first + k) for k in range(count)),
        call(at + 10 + 10 * count, 2, 0, name="cudaStreamEndCapture"),
    ]


def step(number: int, at: int, correlation: int) -> list[Any]:
    return [
        note(at, 990, f"ProfilerStep#{number}"),
        call(at + 5, 5, correlation),
        kernel(at + 10, 900, correlation, name="gemm"),
    ]


def test_a_step_that_captures_is_warm_up(tmp_path: Path) -> None:
    """70 of 1000 µs of the first step, which takes as long as the others."""
    events = [one for k in range(5) for one in step(k, 1000 * k, k + 1)]
    report = gpuscope.analyze(write(tmp_path / "r.json", *events, *capture(20, 6, 100))).report
    assert [one["role"] for one in report["steps"]] == ["warmup", "steady", "steady", "steady", "partial"]
    assert "kernel_missing" not in {one["code"] for one in report["problems"]}


def test_idle_time_in_a_capture_is_no_launch_overhead(tmp_path: Path) -> None:
    """A kernel, 2 ms of capturing, a kernel: the capture's 2,010 µs are the host's own work."""
    events = [
        call(0, 5, 1),
        kernel(10, 90, 1),
        *capture(200, 200, 100),
        call(2300, 5, 2),
        kernel(2310, 90, 2),
    ]
    report = gpuscope.analyze(write(tmp_path / "r.json", *events)).report
    causes = report["ranks"][0]["stall_ns"]["cpu"]
    assert causes["host_other"] == 2_012_000
    finding = next(one for one in report["findings"] if one["code"] == "host_other")
    assert "CUDA graph capture" in {one["name"] for one in finding["evidence"]}
