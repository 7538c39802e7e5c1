"""Why the device was idle: one small trace per cause, worked out by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, copy, kernel, note, op, python, write

import gpuscope


def stalls(path: Path) -> dict[str, int]:
    """Causes of the only rank, flat, in µs."""
    (rank,) = gpuscope.analyze(path).report["ranks"]
    told: dict[str, Any] = rank["stall_ns"]
    flat = {cause: ns for part in ("cpu", "communication", "memory") for cause, ns in told[part].items()}
    if told["unattributed"]:
        flat["unattributed"] = told["unattributed"]
    idle_and_exposed = rank["window_ns"] - rank["breakdown_ns"]["compute"]
    assert sum(flat.values()) == idle_and_exposed
    return {cause: ns // 1000 for cause, ns in flat.items()}


def between(*host: Any) -> list[Any]:
    """Two kernels, 0–10 and 100–110: a gap of 90 µs in which the host does what the test says."""
    return [call(-5, 2, 1), kernel(0, 10, 1), *host, call(95, 2, 2), kernel(100, 10, 2)]


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        # Nothing but Python between two launches.
        ([], {"launch": 90}),
        # A loader waits 40 µs of the gap; what it does not cover is launching.
        ([note(20, 40, "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__")], {"input": 40, "launch": 50}),
        # A stack frame of the loader tells the same.
        ([python(20, 40, "torch/utils/data/dataloader.py(700): __next__")], {"input": 40, "launch": 50}),
        # The loader of another thread (a worker) blocks nobody.
        ([note(20, 40, "enumerate(DataLoader)#x", tid=9)], {"launch": 90}),
        # Without the 25 of a blocking call the next launch would end 25 sooner; what is left is the host's own pace.
        ([call(5, 25, 7, name="cudaStreamSynchronize")], {"sync": 25, "launch": 65}),
        # The same with a launch in between, whose kernel starts late for no reason that is recorded: still 25.
        (
            [call(5, 25, 7, name="cudaStreamSynchronize"), call(40, 2, 3), kernel(105, 2, 3, stream=9)],
            {"sync": 25, "launch": 65},
        ),
        # A copy from pageable memory blocks too, 5–35: without it the copy begins at 10, not 12 (2 lost), ends at 13,
        # and the kernel is launched at 67, not 97: 84 − 54 − 2 = 28 lost. 12–15 is the copy itself.
        (
            [call(5, 30, 8, name="cudaMemcpyAsync"), copy(12, 3, 8, name="Memcpy DtoH (Device -> Pageable)")],
            {"launch": 57, "copy": 3, "sync": 30},
        ),
        # cudaMalloc wins where it covers the gap; of the other 50, the 15 of the blocking call.
        (
            [call(5, 15, 7, name="cudaDeviceSynchronize"), call(30, 40, 9, name="cudaMalloc")],
            {"allocator": 40, "sync": 15, "launch": 35},
        ),
        # Garbage collection inside the gap.
        ([note(30, 20, "Python GC")], {"gc": 20, "launch": 70}),
        # A checkpoint is being written.
        ([note(30, 50, "save_checkpoint")], {"host_other": 50, "launch": 40}),
        # Activation checkpointing is no checkpoint.
        ([python(30, 50, "torch/utils/checkpoint.py(450): forward")], {"launch": 90}),
    ],
)
def test_cause(tmp_path: Path, host: list[Any], expected: dict[str, int]) -> None:
    assert stalls(write(tmp_path / "r.json", *between(*host))) == expected


def test_without_host_events_nothing_is_guessed(tmp_path: Path) -> None:
    assert stalls(write(tmp_path / "r.json", kernel(0, 10), kernel(100, 10))) == {"unattributed": 90}


def test_before_the_host_was_recorded_nothing_is_guessed(tmp_path: Path) -> None:
    """The host's record begins at 60: of the gap 10–100 only 60–100 can be explained."""
    path = write(tmp_path / "r.json", kernel(0, 10), op(60, 10), call(95, 2, 2), kernel(100, 10, 2))
    assert stalls(path) == {"unattributed": 50, "launch": 40}


def test_the_thread_that_ends_the_gap_is_judged(tmp_path: Path) -> None:
    """The main thread waits in the loader while backward's thread (2) launches: the gap is backward's."""
    path = write(
        tmp_path / "r.json",
        call(-5, 2, 1),
        kernel(0, 10, 1),
        note(10, 80, "enumerate(DataLoader)#x", tid=1),
        op(20, 70, tid=2, name="autograd::engine::evaluate_function: MmBackward0"),
        call(95, 2, 2, tid=2),
        kernel(100, 10, 2),
    )
    assert stalls(path) == {"launch": 90}


def test_gap_is_split_by_step(tmp_path: Path) -> None:
    """Two steps of 100 µs; the loader stalls only the second, by 30."""
    steps = [note(0, 100, "ProfilerStep#4"), note(100, 100, "ProfilerStep#5")]
    first = [call(1, 1, 1), kernel(5, 95, 1)]
    second = [
        note(110, 30, "enumerate(DataLoader)#x"),
        call(101, 1, 2),
        kernel(105, 5, 2),
        call(145, 1, 3),
        kernel(150, 45, 3),
    ]
    report = gpuscope.analyze(write(tmp_path / "r.json", *steps, *first, *second)).report
    # The device's step 4 runs from 5 to 105, where the first kernel launched in step 5 starts.
    assert [(s["step"], s["start_ns"], s["dur_ns"]) for s in report["steps"]] == [
        (4, 5000, 100_000),
        (5, 105_000, 90_000),
    ]
    assert report["steps"][1]["bound_by"] == "cpu"
    assert report["steps"][1]["cause"] == "input"
    assert report["steps"][0]["bound_by"] == "compute"
    assert report["ranks"][0]["stall_ns"]["cpu"]["input"] == 30_000
