"""What launching threads call per step: blocking calls by place, allocations, whether steps repeat, work done once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import Event, call, copy, kernel, note, op, python, write

import gpuscope
from gpuscope.schema.call_tree_section import HostCallsEntry
from gpuscope.schema.document import Report

STEPS = 4
"""The last one is partial: three steady steps of 1,000 µs."""


def job(tmp_path: Path, *extra: Event, kernels: Sequence[str] = ("gemm", "add"), **header: Any) -> Report:
    """Steps that run these kernels, 100 µs each, and whatever else is given."""
    events = list(extra)
    for step in range(STEPS):
        begin = 1_000 * step
        events.append(note(begin, 999, f"ProfilerStep#{step}"))
        for place, name in enumerate(kernels):
            at, correlation = begin + 10 + 200 * place, 100 * step + place + 1
            events += [call(at, 5, correlation), kernel(at + 10, 100, correlation, name)]
    return gpuscope.analyze(write(tmp_path / "rank0.json", *events, **header)).report


def host_calls(report: Report) -> HostCallsEntry:
    [entry] = report["host_calls"]
    return entry


def small_copies(step: int) -> Iterator[Event]:
    """`x.to(device)` of 8 bytes from pageable memory, and the wait that PyTorch makes for it."""
    at, correlation = 1_000 * step + 500, 100 * step + 50
    yield op(at, 100, "aten::to")
    yield op(at + 5, 90, "aten::copy_")
    yield call(at + 10, 8, correlation, "cudaMemcpyAsync")
    yield copy(at + 20, 2, correlation, "Memcpy HtoD (Pageable -> Device)", bytes=8)
    yield call(at + 20, 60, correlation + 1, "cudaStreamSynchronize")


def test_a_copy_and_the_wait_for_it_are_one_place(tmp_path: Path) -> None:
    entry = host_calls(job(tmp_path, *(event for step in range(STEPS) for event in small_copies(step))))
    assert (entry["steps"], entry["steady"], entry["kernels_per_step"], entry["runtime"]) == (3, True, 2.0, "cuda")
    assert entry["blocking_calls"] == [
        {
            "call": "cudaStreamSynchronize",
            "operator": "aten::copy_",
            "within": "aten::to",
            "copy": "HtoD pageable",
            "bytes": 8,
            "count": 3,
            "per_step": 1.0,
            "dur_ns": 3 * (8_000 + 60_000),
        }
    ]


def test_a_wait_that_finds_nothing_to_wait_for_is_no_place(tmp_path: Path) -> None:
    waits = [
        call(1_000 * step + 700, length, 100 * step + 60, "cudaEventSynchronize")
        for step, length in enumerate((5, 6, 5, 5))
    ]
    [place] = host_calls(job(tmp_path, *waits))["blocking_calls"]
    assert (place["call"], place["copy"], place["count"]) == ("cudaEventSynchronize", None, 1)


def test_steps_that_repeat_and_steps_that_do_not(tmp_path: Path) -> None:
    assert host_calls(job(tmp_path))["repeated_frac"] == 1.0
    # One more kernel of another name in the second step: 2 of 3 are those of the first, and 2 of 3 of the third's.
    other = [call(1_600, 5, 160), kernel(1_610, 100, 160, "other")]
    assert host_calls(job(tmp_path, *other))["repeated_frac"] == pytest.approx(2 / 3)


def test_allocations_of_the_step_that_has_fewest(tmp_path: Path) -> None:
    counts = {0: 2, 1: 3, 2: 4}
    calls = [
        call(1_000 * step + 600 + 20 * n, 5, 0, name)
        for step, count in counts.items()
        for n in range(count)
        for name in ("hipMalloc", "hipFree")
    ]
    entry = host_calls(job(tmp_path, *calls))
    assert (entry["allocations_per_step"], entry["least_allocations"], entry["least_frees"]) == (3.0, 2, 2)
    assert entry["caches"] is None
    assert not entry["maps_segments"]


def test_pinned_allocations_are_not_of_the_device(tmp_path: Path) -> None:
    entry = host_calls(job(tmp_path, call(600, 5, 0, "cudaHostAlloc"), call(700, 5, 0, "cudaFreeHost")))
    assert (entry["allocations_per_step"], entry["frees_per_step"]) == (0.0, 0.0)


def startup(tmp_path: Path, compiling: int) -> Report:
    """One launch, `compiling` µs in NVRTC, another launch; no step."""
    return gpuscope.analyze(
        write(
            tmp_path / "rank0.json",
            call(0, 5, 1),
            kernel(10, 10, 1),
            python(30, compiling, "Nvrtc::CompileProgram"),
            op(30 + compiling, 8_000, "aten::sleep"),
            call(9_000, 5, 2),
            kernel(9_010, 10, 2),
        )
    ).report


def test_start_up_names_what_covers_most_of_it(tmp_path: Path) -> None:
    """Of 9,010 µs, from 10 to 9,020, the device idles 8,990; 6,307 µs of them, 70 % of the window, are compilation."""
    [found] = [one for one in startup(tmp_path, 6_307)["findings"] if one["code"] == "startup"]
    assert found["cost_ns"] == 6_307_000
    assert found["share_frac"] == pytest.approx(0.7)
    assert "Nvrtc::CompileProgram 70.0 %" in found["message"]
    assert found["evidence"][0]["name"] == "Nvrtc::CompileProgram"


def test_a_little_compilation_is_no_start_up(tmp_path: Path) -> None:
    assert not [one for one in startup(tmp_path, 1_000)["findings"] if one["code"] == "startup"]


def test_a_warm_up_step_names_what_it_waits_for(tmp_path: Path) -> None:
    """Step 0 takes 9 ms more than the others, 8 of them in the first launch of a kernel."""
    events = [
        note(0, 9_990, "ProfilerStep#0"),
        call(10, 5, 1),
        kernel(20, 100, 1),
        call(200, 8_000, 2),
        kernel(8_300, 100, 2),
    ]
    for step in range(1, 5):
        begin = 9_000 + 1_000 * step
        events += [
            note(begin, 999, f"ProfilerStep#{step}"),
            call(begin + 10, 5, 100 * step),
            kernel(begin + 20, 100, 100 * step),
        ]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events)).report
    [found] = [one for one in report["findings"] if one["code"] == "warmup"]
    assert found["cost_ns"] == 9_000_000
    # The launch covers the idle time from the first kernel's end at 120 µs to its own return at 8,200.
    assert found["evidence"][0]["note"] == "the device idles longest in: cudaLaunchKernel 8.000 ms"
