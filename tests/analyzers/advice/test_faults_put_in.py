"""Advice on generated jobs: a fault is put in, its suggestion comes, and the job without the fault takes what was
predicted. That job, or another one, is where the suggestion must not come."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import simulator.training
from helpers.allocator import events, segment, snapshot
from helpers.nsys import Export
from helpers.ranges import holds
from helpers.trials import IN_BOUND, PREDICTED, SHOWN, UNCHANGED, Shown, Trial
from simulator.catalogue import MS
from simulator.job import MIB, Job
from simulator.judged import Case
from simulator.kineto_rows import Profiler

import gpuscope
from gpuscope.schema.document import Report, SuggestionEntry


def analysed(job: Job, folder: Path, *left_out: int, log: str = "", topology: str = "") -> Report:
    """The report on a job; `log` and `topology`: NCCL's, beside its traces."""
    path = Case(replace(job, name=f"job{len(list(folder.iterdir()))}"), "", Profiler(left_out=left_out)).write(folder)
    if log:
        (path / "nccl.log").write_text(log)
    if topology:
        (path / "topology.xml").write_text(topology)
    return gpuscope.analyze(path).report


def told(report: Report) -> set[str]:
    """Everything that is advised, with a predicted step or without."""
    return {one["code"] for one in (*report["suggestions"], *report["advice"]["unpredicted"])}


def step(report: Report) -> int:
    assert report["step_time"] is not None
    return report["step_time"]["median_ns"]


def suggestion(report: Report, code: str, value: str = "") -> SuggestionEntry:
    found = [one for one in report["suggestions"] if one["code"] == code and value in one["setting"]["value"]]
    assert found, (code, told(report), [finding["code"] for finding in report["findings"]])
    return found[0]


@pytest.mark.parametrize("trial", PREDICTED, ids=str)
def test_the_job_without_the_fault_takes_what_was_predicted(
    trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trial.small:
        monkeypatch.setattr(simulator.training, "SMALL", trial.small)
    one = suggestion(analysed(trial.job, tmp_path, *trial.left_out), trial.code, trial.setting)
    assert all(one[text] for text in ("why", "risk", "verify"))
    mended = analysed(replace(trial.job, **trial.changed), tmp_path, *trial.left_out)
    predicted = one["predicted"]
    assert predicted["step_ns_after"] < predicted["step_ns_before"]
    assert holds(predicted, step(mended)), (predicted, step(mended))
    silent = mended if trial.silent is None else analysed(trial.silent, tmp_path, *trial.left_out)
    assert trial.code not in told(silent)


@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.code)
def test_a_setting_without_a_predicted_step_comes_only_where_it_applies(shown: Shown, tmp_path: Path) -> None:
    report = analysed(shown.job, tmp_path, log=shown.log)
    assert shown.code in told(report), (sorted(told(report)), [finding["code"] for finding in report["findings"]])
    log = shown.log if shown.quiet_log is None else shown.quiet_log
    quiet = analysed(replace(shown.job, **(shown.quiet or {})), tmp_path, log=log)
    assert shown.code not in told(quiet)
    if shown.truth not in (IN_BOUND, UNCHANGED):
        return
    changed = quiet if shown.changed is None else analysed(replace(shown.job, **shown.changed), tmp_path, log=log)
    if shown.truth == UNCHANGED:
        assert step(changed) == pytest.approx(step(report), rel=0.01)
    else:
        (one,) = [one for one in report["advice"]["unpredicted"] if one["code"] == shown.code]
        assert one["bound"]["step_ns_low"] <= step(changed) < step(report)


def in_cpp(folder: Path, *, allocates: bool = False) -> Report:
    """A program that calls CUDA itself: six rounds of a kernel of 1 ms; in each 2 ms of allocating and freeing."""
    export, at = Export(), 1_000_000
    for number in range(6):
        for call in ("cudaMalloc_v3020", "cudaFree_v3020") if allocates else ():
            export.call(at, at + MS, 10 * number + 5 + len(call), call)
            at += MS
        export.call(at, at + 5_000, 10 * number + 1)
        export.kernel(at + 10_000, at + MS, 10 * number + 1, name="stencil")
        at += MS + 20_000
    return gpuscope.analyze(export.write(folder / f"cpp{len(list(folder.iterdir()))}")).report


def test_memory_is_allocated_once_in_cpp(tmp_path: Path) -> None:
    once = in_cpp(tmp_path)
    assert holds(suggestion(in_cpp(tmp_path, allocates=True), "allocate_once")["predicted"], step(once))
    assert "allocate_once" not in told(once)


def short_of_memory(folder: Path, free_on_device: int) -> Report:
    """A snapshot: two segments of 120 MiB, each half in use, and a request of 100 MiB that fails, or does not."""
    first, second = 0x1000_0000, 0x2000_0000
    taken = [
        ("segment_alloc", first, 120 * MIB),
        ("alloc", first, 120 * MIB),
        ("segment_alloc", second, 120 * MIB),
        ("alloc", second, 120 * MIB),
        ("free", first, 120 * MIB),
        ("free", second, 120 * MIB),
        ("alloc", first, 60 * MIB),
        ("alloc", second, 61 * MIB),
    ]
    if free_on_device:
        taken.append(("oom", free_on_device, 100 * MIB))
    halves = [
        segment(first, (60 * MIB, "active_allocated"), (60 * MIB, "inactive")),
        segment(second, (61 * MIB, "active_allocated"), (59 * MIB, "inactive")),
    ]
    return gpuscope.analyze(snapshot(folder / f"s{free_on_device}.pickle", halves, events(*taken))).report


def test_a_request_that_fails(tmp_path: Path) -> None:
    wall = {"smaller_micro_batch", "activation_checkpointing", "shard_states", "cpu_offload", "allocator_setting"}
    assert told(short_of_memory(tmp_path, 50 * MIB)) >= wall
    assert not told(short_of_memory(tmp_path, 0)) & (wall - {"allocator_setting"})
