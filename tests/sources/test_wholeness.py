"""The table `recording`: what shows whether a file holds all that happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, op, write
from helpers.nsys import Export

import gpuscope
from gpuscope.sources.kineto.event_arguments import dropped_in
from gpuscope.trace.schema import Category
from gpuscope.trace.trace import Trace


def recording(trace: Trace) -> dict[str, Any]:
    (row,) = trace.rows("recording")
    return dict(row)


@pytest.mark.parametrize("key", ["External id", "external id"])
def test_external_ids_of_operators_are_trimmed_at_both_ends(tmp_path: Path, key: str) -> None:
    """200 operators with every second id from 1000 on, then two ids far off: 1 % of 202 is two at each end."""
    ids = [1000 + 2 * place for place in range(200)] + [7, 90_000]
    events = [op(at, 1, **{key: number}) for at, number in enumerate(ids)]
    found = recording(gpuscope.open_trace(write(tmp_path / "t.json", *events, kernel(500, 1))))
    # Sorted: 7, 1000, 1002, …, 1398, 90000; without two at each end: 1002, …, 1396.
    assert (found["operator_ids"], found["operator_id_span"]) == (198, 395)


def test_blocks_of_ids_that_other_threads_took_are_not_missing(tmp_path: Path) -> None:
    """Ids 1–512 and 1,537–2,048, as in small recordings of torch; then every fourth of the same, which is a loss."""
    ids = [*range(1, 513), *range(1537, 2049)]
    for name, kept, density in (("whole", ids, 1.0), ("sampled", ids[::4], 0.25)):
        events = [op(at, 1, **{"External id": number}) for at, number in enumerate(kept)]
        found = recording(gpuscope.open_trace(write(tmp_path / f"{name}.json", *events)))
        assert found["operator_ids"] / found["operator_id_span"] == pytest.approx(density, rel=0.02)


def test_kernels_and_launches_that_lack_each_other(tmp_path: Path) -> None:
    """Launch 3 lost its kernel; launch 4 came after the last kernel had begun; the kernel of 9 lost its launch."""
    path = write(
        tmp_path / "t.json",
        call(0, 1, 1),
        call(2, 1, 2),
        call(4, 1, 3),
        call(90, 1, 4),
        kernel(10, 5, 1),
        kernel(20, 5, 2),
        kernel(50, 5, 9),
    )
    trace = gpuscope.open_trace(path)
    found = recording(trace)
    assert (found["kernels"], found["kernels_without_launch"]) == (3, 1)
    assert (found["launches"], found["launches_without_kernel"]) == (3, 1)
    assert [(p.severity, p.count) for p in trace.problems if p.code == "kernel_missing"] == [("data_loss", 1)]


def test_training_on_the_cpu_has_no_kernels_to_miss(tmp_path: Path) -> None:
    path = write(tmp_path / "t.json", op(0, 10), op(20, 10), rank=None)
    found = recording(gpuscope.open_trace(path))
    assert (found["kernels"], found["launches"], found["operator_ids"]) == (0, 0, None)


def test_kineto_says_what_it_dropped(tmp_path: Path) -> None:
    """As `CuptiActivityApi` logs it, and the file keeps it behind the events."""
    warnings = ["WARNING:2024-05-22 17:15:22 1:1 CuptiActivityApi.cpp:320] Dropped 37 activity records", "slow"]
    trace = gpuscope.open_trace(write(tmp_path / "t.json", kernel(0, 1), WARNING=warnings, ERROR="not a list"))
    assert recording(trace)["dropped"] == 37
    assert [(p.severity, p.count) for p in trace.problems if p.code == "records_dropped"] == [("data_loss", 37)]


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("Dropped 12 activity records", 12),
        ("Number of CUPTI events dropped: 5", 5),
        ("Number of dropped CUPTI events: 0", 0),
        ("1200 CUDA events were lost", 1200),
        ("Some events were dropped.", 1),
        ("Lost connection to 10.0.0.1", 0),
        ("Number of CUPTI events produced: \t2024, CUPTI buffers: 50.", 0),
    ],
)
def test_lines_about_lost_records(line: str, count: int) -> None:
    assert dropped_in([line]) == count


def test_nsys_diagnostics(tmp_path: Path) -> None:
    export = Export()
    export.kernel(0, 10, 1)
    for severity, text in (
        (1, "Number of CUDA events collected: \t1."),
        (2, "Not all CUDA events might have been collected."),
        (2, "40 CUPTI records were dropped"),
    ):
        export.add("DIAGNOSTIC_EVENT", timestamp=0, severity=severity, text=text)
    trace = gpuscope.open_trace(export.write(tmp_path))
    found = recording(trace)
    assert (found["dropped"], found["incomplete"]) == (40, 1)
    assert {(p.code, p.severity, p.count) for p in trace.problems} >= {
        ("records_dropped", "data_loss", 40),
        ("nsys_diagnostic", "info", 1),
    }


def test_the_profilers_own_work_is_a_host_event_of_its_kind(tmp_path: Path) -> None:
    export = Export()
    export.call(0, 5, 1)
    export.kernel(10, 20, 1)
    export.add(
        "PROFILER_OVERHEAD",
        start=6,
        end=9,
        globalTid=1 << 48 | 10 << 24 | 10,
        nameId=export.string("CUPTI Buffer flush"),
    )
    host = gpuscope.open_trace(export.write(tmp_path))["host_events"]
    own = host.take(host["category"] == Category.OVERHEAD)
    assert (own["start"].tolist(), own["end"].tolist()) == ([6], [9])


def test_files_keep_their_own_rows_when_merged(tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [kernel(at, 1) for at in range(0, 10 * (rank + 1), 10)]
        write(tmp_path / f"rank{rank}.json", *events, rank=rank, world_size=2)
    trace = gpuscope.open_trace(tmp_path)
    assert [(row["source"], row["kernels"]) for row in trace.rows("recording")] == [(0, 1), (1, 2)]
