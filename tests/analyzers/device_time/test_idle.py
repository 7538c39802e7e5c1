"""Why the device was idle: one small trace per cause, host work, threads that launch; by hand (µs)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import Event, call, copy, kernel, note, op, python, write

import gpuscope
from gpuscope.analyzers.base.lanes import views
from gpuscope.analyzers.device_time.launching_threads import Turns, blocking_calls, launching_threads
from gpuscope.schema.document import Evidence


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
    # Of two steps the first begins with its annotation and runs to 105, where the first kernel of step 5 starts.
    assert [(s["step"], s["start_ns"], s["dur_ns"]) for s in report["steps"]] == [
        (4, 0, 105_000),
        (5, 105_000, 95_000),
    ]
    assert report["steps"][1]["bound_by"] == "cpu"
    assert report["steps"][1]["cause"] == "input"
    assert report["steps"][0]["bound_by"] == "compute"
    assert report["ranks"][0]["stall_ns"]["cpu"]["input"] == 30_000


def shown(tmp_path: Path, *during: tuple[int, int, str]) -> list[Evidence]:
    """Six steps of 10 ms, each with 3.05 ms in which the device idles and the host is in these ranges, (from, µs,
    name); a range of the whole program goes on."""
    events: list[Any] = [note(0, 60_000, "distributed_training")]
    for number in range(6):
        at, first = 10_000 * number, 10 * number
        events += [
            note(at, 9_990, f"ProfilerStep#{number}"),
            op(at + 10, 20, "aten::zero_"),
            call(at + 12, 5, first + 1),
            kernel(at + 20, 50, first + 1, name="fill"),
            note(at + 3_100, 1_000, "DistributedDataParallel.forward"),
            op(at + 3_110, 20, "aten::mm"),
            call(at + 3_112, 5, first + 2),
            kernel(at + 3_120, 6_800, first + 2),
            *(note(at + since, lasts, name) for since, lasts, name in during),
        ]
    report = gpuscope.analyze(write(tmp_path / "r.json", *events)).report
    finding = next(one for one in report["findings"] if one["code"] == "host_other")
    return list(finding["evidence"])


@pytest.mark.parametrize(
    ("during", "named"),
    [
        # Nothing is recorded for 3.07 ms: not the call after it is to blame.
        ([], "between aten::zero_ and DistributedDataParallel.forward"),
        ([(60, 3_000, "save")], "save"),
        ([(60, 3_000, "callbacks"), (100, 2_900, "metrics")], "metrics"),
        # A range of all of the step is no place in it.
        ([(1, 9_980, "one_iteration_of_training"), (60, 3_000, "save")], "save"),
        ([(1, 9_980, "all_of_it")], "between aten::zero_ and DistributedDataParallel.forward"),
    ],
)
def test_the_place_is_what_the_thread_did(tmp_path: Path, during: list[tuple[int, int, str]], named: str) -> None:
    assert {one["name"] for one in shown(tmp_path, *during)} == {named}


def test_what_lies_between_two_events_is_said_to(tmp_path: Path) -> None:
    for one in shown(tmp_path):
        assert one.get("between")
        assert "covered_frac" not in one


def turns(path: Path, *events: Event) -> list[Turns]:
    trace = gpuscope.open_trace(write(path / "rank0.json", *events))
    (view,) = views(trace)
    return launching_threads(trace, view, blocking_calls(trace, view))


@pytest.mark.parametrize(
    ("inside", "sequences"),
    [
        ([], 1),  # main and autograd take turns
        ([3], 1),  # one of ten blocking calls with a launch of the other thread inside is no more than a tenth
        ([3, 7], 2),
    ],
)
def test_threads_that_run_at_once(tmp_path: Path, inside: list[int], sequences: int) -> None:
    """Thread 1 blocks ten times, at 100, 200, …, for 50; thread 2 launches inside some of these calls."""
    events: list[Event] = [call(0, 2, 1), kernel(5, 10, 1), call(10, 2, 2, tid=2), kernel(20, 10, 2)]
    for number in range(1, 11):
        events.append(call(100 * number, 50, 100 + number, name="cudaStreamSynchronize"))
        if number in inside:
            at = 100 * number + 20
            events += [call(at, 2, 10 + number, tid=2), kernel(at + 10, 5, 10 + number)]
    found = turns(tmp_path, *events)
    assert len(found) == sequences
    assert [len(own.threads) for own in found] == ([2] if sequences == 1 else [1, 1])


@pytest.mark.parametrize(("launches", "waited"), [(601, 99_000), (400, 0)])
def test_a_full_queue_holds_the_launch_up(tmp_path: Path, launches: int, waited: int) -> None:
    """One launch per µs into kernels of 100 that begin at 1000; the last call takes 100, of which a launch takes 1.
    600 pending ones are a queue that can be full, 399 are not."""
    events: list[Event] = []
    for number in range(launches):
        last = number == launches - 1
        events += [call(number, 100 if last else 1, number), kernel(1000 + 100 * number, 100, number)]
    (own,) = turns(tmp_path, *events)
    assert int((own.queue_waits.end - own.queue_waits.start).sum()) == waited


def test_idle_before_what_was_queued_is_launch_latency_and_then_unattributed(tmp_path: Path) -> None:
    """Both are launched by 4; the second could begin at 20 and does at 50: 10 of launch latency, 20 without a cause."""
    path = write(tmp_path / "r.json", call(0, 1, 1), call(3, 1, 2), kernel(10, 10, 1), kernel(50, 10, 2))
    (rank,) = gpuscope.analyze(path).report["ranks"]
    assert (rank["stall_ns"]["cpu"], rank["stall_ns"]["unattributed"]) == ({"launch": 10_000}, 20_000)
