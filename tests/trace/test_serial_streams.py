"""Work on one stream is serial: ends that can't be right are cut where the successor begins (times in µs)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.kineto import Event, call, copy, kernel, node, write
from helpers.nsys import Export
from hypothesis import given
from hypothesis import strategies as st

import gpuscope
from gpuscope.trace.trace import Trace

HIP = "hipLaunchKernel"


def ends(trace: Trace) -> list[float]:
    """Ends of the device events in order of start, µs since the first one's start."""
    device = trace["device_events"]
    return [(int(end) - int(device["start"][0])) / 1000 for end in device["end"]]


def cut(trace: Trace) -> int:
    return sum(problem.count for problem in trace.problems if problem.code == "overruns_stream")


def opened(folder: Path, *events: Event) -> Trace:
    return gpuscope.open_trace(write(folder / "rank0.json", *events))


def row_of(lasts: float, number: int = 5, first: str = "late", **told: object) -> list[Event]:
    """Kernels of 80 every 100 on one stream, of which the first is written to last longer."""
    return [
        kernel(100 * place, lasts if place == 0 else 80, place, name=first if place == 0 else "gemm", **told)
        for place in range(number)
    ]


@pytest.mark.parametrize(
    ("lasts", "ends_at"),
    [
        (181, 181),  # runs into its successor (100 to 180), and ends 1 µs after it: clocks
        (182, 182),  # 2 µs
        (183, 100),  # 3 µs
        (6000, 100),
    ],
)
def test_an_end_after_the_successor_s(tmp_path: Path, lasts: float, ends_at: float) -> None:
    trace = opened(tmp_path, *row_of(lasts))
    assert ends(trace) == [ends_at, 180, 280, 380, 480]
    assert cut(trace) == (ends_at == 100)


def test_read_from_the_last_one_back(tmp_path: Path) -> None:
    """The second one is late as well: the first, which ends within its recorded time, ends after it as cut."""
    events = [kernel(0, 195, 0), kernel(100, 500, 1), kernel(190, 80, 2), kernel(300, 80, 3)]
    trace = opened(tmp_path, *events)
    assert ends(trace) == [100, 190, 270, 380]
    assert cut(trace) == 2


def test_what_a_problem_says(tmp_path: Path) -> None:
    trace = opened(tmp_path, *row_of(6000), *row_of(90, first="good", stream=9))
    problem = next(one for one in trace.problems if one.code == "overruns_stream")
    assert problem.count == 1
    assert "5.9 ms too late in all, at most 5.9 ms (late)" in problem.message


def test_other_streams_and_contexts_are_no_successors(tmp_path: Path) -> None:
    """Streams are numbered within a context of a device."""
    other_stream = opened(tmp_path / "a", kernel(0, 6000, 0), *row_of(80, stream=9))
    other_context = opened(tmp_path / "b", kernel(0, 6000, 0, context=1), *row_of(80, context=2))
    other_device = opened(tmp_path / "c", kernel(0, 6000, 0), *row_of(80, device=1))
    assert [cut(trace) for trace in (other_stream, other_context, other_device)] == [0, 0, 0]
    assert cut(opened(tmp_path / "d", kernel(0, 6000, 0, context=1), *row_of(80, context=1))) == 1


def test_without_a_stream_nothing_is_cut(tmp_path: Path) -> None:
    events = [kernel(100 * place, 6000 if place == 0 else 80, place) for place in range(5)]
    for event in events:
        event["tid"] = "kernels"
        del event["args"]["stream"]
    assert cut(opened(tmp_path, *events)) == 0


def test_nodes_of_one_launch_of_a_graph(tmp_path: Path) -> None:
    """Branches of a graph run beside each other, on whatever stream they are written to; its next launch does not."""
    branches = [node(0, 300, 1, 1), node(10, 50, 1, 2), node(70, 50, 1, 3)]
    assert cut(opened(tmp_path / "a", *branches)) == 0
    trace = opened(tmp_path / "b", *branches, node(200, 50, 2, 1))
    assert ends(trace) == [200, 60, 120, 250]


def test_a_row_twice_in_the_file(tmp_path: Path) -> None:
    trace = opened(tmp_path, *row_of(6000), *row_of(6000)[:1])
    assert ends(trace) == [100, 100, 180, 280, 380, 480]


@pytest.mark.parametrize(
    ("covered", "times", "is_cut"),
    [(2, 20, False), (3, 9, False), (3, 20, True)],  # three successors, and ten times the median of its name
)
def test_a_stream_that_is_a_hardware_queue(tmp_path: Path, covered: int, times: int, is_cut: bool) -> None:
    """ROCm's streams share hardware queues: kernels of the same queue may run beside each other."""
    lasts = times * 10
    events = [call(0, 1, 0, HIP)]
    events += [kernel(1000 + 20 * place, 10, name="late") for place in range(9)]
    events.append(kernel(5000, lasts, name="late"))
    events += [kernel(5001 + place, 0.5, name="small") for place in range(covered)]
    events.append(kernel(9000, 10, name="small"))
    assert cut(opened(tmp_path, *events)) == is_cut


def test_copies_in_tables(tmp_path: Path) -> None:
    """A copy of 9.7 MB in 400 that is written to last 3 s: its rate in the table of copies is that of 400."""
    events: list[Event] = []
    for place in range(6):
        at = 2000 * place
        events += [
            call(at, 5, 3 * place),
            call(at + 5, 5, 3 * place + 1, "cudaMemcpyAsync"),
            call(at + 10, 5, 3 * place + 2),
            kernel(at + 20, 900, 3 * place),
            copy(at + 920, 3_000_000 if place == 2 else 400, 3 * place + 1, bytes=9_700_000),
            kernel(at + 1320, 600, 3 * place + 2),
        ]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events), advice=False).report
    assert sum(row["dur_ns"] for row in report["copies"]) == 6 * 400_000
    assert report["ranks"][0]["recorded_ns"] == 11_900_000
    assert sum(row["dur_ns"] for row in report["kernels"]) == 6 * 1_900_000
    limits = report["verdict"]["limits"]
    assert limits[0].startswith("1 device event of 18 can't have ended as recorded")


def test_confidence_falls(tmp_path: Path) -> None:
    launches = [call(100 * place - 50, 5, place) for place in range(5)]
    whole, late = (
        gpuscope.analyze(write(tmp_path / name / "rank0.json", *launches, *row_of(lasts)), advice=False).report
        for name, lasts in (("whole", 80), ("late", 9000))
    )
    assert whole["verdict"]["bound_by"] == late["verdict"]["bound_by"]
    assert late["verdict"]["confidence"] < whole["verdict"]["confidence"]


@pytest.mark.parametrize("backend", ["SQLite", "parquetdir"])
def test_nsys(tmp_path: Path, backend: str) -> None:
    """One kernel outlasts its successors; beside it runs another context's, and a graph that is one row."""
    export = Export()
    for place in range(6):
        at = 1_000_000 * place
        export.call(at, at + 5_000, place + 1)
        export.kernel(at + 10_000, at + (7_000_000 if place == 1 else 900_000), place + 1, contextId=1)
    export.kernel(20_000, 7_500_000, 50, contextId=2)
    export.add(
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
        start=30_000,
        end=5_500_000,
        deviceId=0,
        streamId=7,
        correlationId=60,
        globalPid=1 << 48 | 10 << 24,
        graphId=3,
        contextId=1,
    )
    trace = gpuscope.open_trace(export.write(tmp_path, backend))
    assert cut(trace) == 1
    device = trace["device_events"]
    row = int(np.flatnonzero(device["start"] == 1_010_000)[0])
    assert int(device["end"][row]) == 2_010_000


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 400)), min_size=1, max_size=12))
def test_no_end_is_left_that_is_too_late(tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[int, int]]) -> None:
    """Whatever was written: afterwards no event ends more than 2 µs after its successor, nothing became longer, and no
    time in which any of them ran is lost up to the last end that stands."""
    events, at = [], 0
    for place, (pause, lasts) in enumerate(rows):
        at += pause
        events.append(kernel(at, lasts, place))
    path = write(tmp_path_factory.mktemp("streams") / "rank0.json", *events)
    trace = gpuscope.open_trace(path)
    device = trace["device_events"]
    order = np.lexsort((device["end"], device["start"]))
    start, end = device["start"][order], device["end"][order]
    ties = start[1:] == start[:-1]
    assert ((end[:-1] <= end[1:] + 2_000) | ties).all()
    recorded = sorted((one["ts"], one["ts"] + one["dur"]) for one in json.loads(path.read_text())["traceEvents"])
    assert (end >= start).all()
    assert sum(end - start) <= 1000 * sum(last - first for first, last in recorded)
