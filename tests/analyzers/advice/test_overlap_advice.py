"""Advice on DDP's options, DataParallel, exchanges through the host, flushed caches and free memory: where each rule
fires, with what the job takes once it is followed, and where it must be silent."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.kineto import call, copy, kernel, note, write
from helpers.nsys import Export
from simulator.catalogue import COMPUTE, NARROW, SMALL
from simulator.job import Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.schema.document import Report

MICRO = replace(COMPUTE, steps=6, layers=3, accumulate=3, rate=6.0)
"""Three micro-batches a step, over a slow link."""


def analysed(job: Job, folder: Path, profiler: Profiler | None = None) -> Report:
    job = replace(job, name=f"{job.name}{len(list(folder.iterdir()))}")
    return gpuscope.analyze(Case(job, "", profiler or Profiler()).write(folder)).report


def suggested(report: Report) -> dict[str, tuple[int, int]]:
    return {one["code"]: (one["predicted"]["low_ns"], one["predicted"]["high_ns"]) for one in report["suggestions"]}


def step(report: Report) -> int:
    assert report["step_time"] is not None
    return report["step_time"]["median_ns"]


@pytest.mark.parametrize("profiler", [Profiler(), Profiler(left_out=(1,))], ids=["all ranks", "one rank of two"])
def test_gradients_reduced_in_each_micro_batch(profiler: Profiler, tmp_path: Path) -> None:
    low, high = suggested(analysed(MICRO, tmp_path, profiler))["no_sync"]
    after = analysed(replace(MICRO, no_sync=True), tmp_path, profiler)
    assert low <= step(after) <= high
    assert "no_sync" not in suggested(after)


@pytest.mark.parametrize(
    ("fsdp1", "name"),
    [
        (False, "FSDPModule.set_requires_gradient_sync"),
        (True, "FullyShardedDataParallel.no_sync"),
    ],
)
def test_shards_reduced_in_each_micro_batch(fsdp1: bool, name: str, tmp_path: Path) -> None:
    job = replace(MICRO, parallel="fsdp", fsdp1=fsdp1, rate=12.0)
    report = analysed(job, tmp_path)
    (one,) = [one for one in report["suggestions"] if one["code"] == "no_sync"]
    assert one["setting"]["name"] == name
    after = analysed(replace(job, no_sync=True), tmp_path)
    assert one["predicted"]["low_ns"] <= step(after) <= one["predicted"]["high_ns"]
    assert "no_sync" not in suggested(after)
    assert "no_sync" not in suggested(analysed(replace(job, accumulate=1), tmp_path))


def test_gradients_that_hide_behind_the_next_micro_batch(tmp_path: Path) -> None:
    assert "no_sync" not in suggested(analysed(replace(MICRO, rate=20.0), tmp_path))


def test_one_micro_batch_is_reduced_once(tmp_path: Path) -> None:
    assert "no_sync" not in suggested(analysed(replace(MICRO, accumulate=1), tmp_path))


def test_a_search_for_unused_parameters(tmp_path: Path) -> None:
    searching = analysed(replace(NARROW, search_ns=800_000), tmp_path)
    assert {one["code"] for one in searching["advice"]["unpredicted"]} >= {"static_graph"}
    hidden = analysed(replace(COMPUTE, search_ns=100_000), tmp_path)  # the device is busy meanwhile
    assert "unused_parameter_search" not in {finding["code"] for finding in hidden["findings"]}


def test_a_cache_that_is_flushed_in_every_step(tmp_path: Path) -> None:
    job = replace(SMALL, parallel="single", ranks=1, empty_cache=4, allocation_ns=300_000)
    before, after = analysed(job, tmp_path), analysed(replace(job, empty_cache=0), tmp_path)
    low, high = suggested(before)["no_empty_cache"]
    assert low <= step(after) <= high
    assert "expandable_segments" not in suggested(before)
    assert "no_empty_cache" not in suggested(after)
    retried = analysed(replace(job, empty_cache=0, allocations=2), tmp_path)  # inside operators
    assert "no_empty_cache" not in suggested(retried)


def data_parallel(path: Path, forward: str = "DataParallel.forward") -> Report:
    """Four steps of 10 ms: two devices compute for 4 ms each, the first one then gathers for 3 ms."""
    events = []
    for number in range(4):
        at = 10_000 * number
        events += [note(at, 9_900, f"ProfilerStep#{number}"), note(at, 2_000, forward)]
        for device in (0, 1):
            events += [
                call(at + 10 + device, 1, 10 * number + device),
                kernel(at + 100, 4_000, 10 * number + device, device=device),
            ]
        events += [
            call(at + 20, 1, 10 * number + 5),
            kernel(at + 4_100, 1_000, 10 * number + 5, name="gather", stream=9),
        ]
    return gpuscope.analyze(write(path / "rank0.json", *events)).report


def test_data_parallel_in_one_process(tmp_path: Path) -> None:
    report = data_parallel(tmp_path)
    (one,) = [one for one in report["suggestions"] if one["code"] == "distributed_data_parallel"]
    # Per process 4 ms of products and an all-reduce of, say, 1 ms that is half hidden.
    assert one["predicted"]["low_ns"] <= 4_500_000 <= one["predicted"]["high_ns"] < one["predicted"]["step_ns_before"]


def test_a_pipeline_in_one_process_is_no_data_parallel(tmp_path: Path) -> None:
    report = data_parallel(tmp_path, "forward")
    assert "single_process" not in {finding["code"] for finding in report["findings"]}


def exchanging(path: Path, staged: bool, check: int = 0) -> Report:
    """Six iterations: a kernel of 5 ms, then 2 ms of copy, 3 ms of MPI, `check` ns of host work, 2 ms of copy."""
    export, at = Export(), 1_000_000
    for number in range(6):
        export.call(at - 10_000, at - 5_000, 10 * number + 1)
        export.kernel(at, at + 5_000_000, 10 * number + 1, name="stencil")
        at += 5_000_000
        if staged:
            export.call(at, at + 2_000_000, 10 * number + 2, "cudaMemcpy_v3020")
            export.copy(at, at + 2_000_000, 10 * number + 2, kind=2)
            at += 2_000_000
        export.range(at, at + 3_000_000, "MPI_Sendrecv")
        at += 3_000_000 + check
        if staged:
            export.call(at, at + 2_000_000, 10 * number + 3, "cudaMemcpy_v3020")
            export.copy(at, at + 2_000_000, 10 * number + 3, kind=1)
            at += 2_000_000
        at += 20_000
    return gpuscope.analyze(export.write(path)).report


def test_an_exchange_through_host_memory(tmp_path: Path) -> None:
    report = exchanging(tmp_path / "staged.sqlite", staged=True)
    assert "host_staged_exchange" in {finding["code"] for finding in report["findings"]}
    (one,) = [one for one in report["suggestions"] if one["code"] == "gpu_aware_exchange"]
    direct = exchanging(tmp_path / "direct.sqlite", staged=False)
    assert one["predicted"]["low_ns"] <= step(direct) <= one["predicted"]["high_ns"]
    assert "host_staged_exchange" not in {finding["code"] for finding in direct["findings"]}


def test_what_the_host_computes_between_copies_needs_its_data(tmp_path: Path) -> None:
    report = exchanging(tmp_path / "checked.sqlite", staged=True, check=30_000_000)
    assert "host_staged_exchange" not in {finding["code"] for finding in report["findings"]}


def with_memory(folder: Path, job: Job, reserved: int, name: str = "CheckpointFunctionBackward") -> Report:
    """The job with the allocator's samples, of 80 GB."""
    path = Case(job, "").write(folder) / "rank0.json"
    document = json.loads(path.read_text())
    steps = [event for event in document["traceEvents"] if event.get("name", "").startswith("ProfilerStep")]
    for event in steps:
        at = event["ts"] + 1
        document["traceEvents"] += [
            {
                "ph": "i",
                "s": "t",
                "name": "[memory]",
                "pid": event["pid"],
                "tid": event["tid"],
                "ts": at,
                "args": {
                    "Device Type": 1,
                    "Device Id": 0,
                    "Addr": 1,
                    "Bytes": 1 << 20,
                    "Total Allocated": reserved // 2,
                    "Total Reserved": reserved,
                },
            },
            {
                "ph": "X",
                "cat": "cpu_op",
                "name": name,
                "pid": event["pid"],
                "tid": event["tid"],
                "ts": at,
                "dur": 0.1,
                "args": {},
            },
        ]
    path.write_text(json.dumps(document))
    return gpuscope.analyze(path).report


@pytest.mark.parametrize(
    ("reserved", "name", "expected"),
    [
        (20 << 30, "CheckpointFunctionBackward", {"larger_batch", "no_checkpointing"}),
        (20 << 30, "AddBackward0", {"larger_batch"}),
        (70 << 30, "CheckpointFunctionBackward", set()),
    ],
)
def test_free_memory(reserved: int, name: str, expected: set[str], tmp_path: Path) -> None:
    launched = replace(SMALL, name="launched", gemm_ns=9_000, small_ns=4_000, parallel="single", ranks=1)
    told = {one["code"] for one in with_memory(tmp_path, launched, reserved, name)["advice"]["unpredicted"]}
    assert told & {"larger_batch", "no_checkpointing"} == expected


def test_a_full_step_gets_no_larger_batch(tmp_path: Path) -> None:
    busy = replace(COMPUTE, name="busy", parallel="single", ranks=1)
    told = {one["code"] for one in with_memory(tmp_path, busy, 20 << 30, "AddBackward0")["advice"]["unpredicted"]}
    assert "larger_batch" not in told


def test_copies_outside_the_exchange_are_left_alone(tmp_path: Path) -> None:
    events = [
        event
        for n in range(4)
        for event in (
            call(1_000 * n, 2, n),
            copy(1_000 * n + 5, 50, n),
            call(1_000 * n + 60, 2, n + 50),
            kernel(1_000 * n + 70, 800, n + 50),
        )
    ]
    report = gpuscope.analyze(write(tmp_path / "rank0.json", *events)).report
    assert "host_staged_exchange" not in {finding["code"] for finding in report["findings"]}
