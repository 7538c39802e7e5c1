"""Bounds of exposed transfers, and the settings that reach for them, on jobs that no framework marks."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from communication_jobs.engine import at_best, run, step_ns
from communication_jobs.jobs import MIB, Job, draw
from communication_jobs.recordings import write

from gpuscope.analyzers.advice.transfer_bounds import of_part
from gpuscope.analyzers.run.runner import analyze
from gpuscope.report.view.first_lines import first_lines
from gpuscope.report.view.transfer_sentences import in_words
from gpuscope.schema.document import Report

LOOSE = 0.02
SLOW = Job(
    name="slow",
    structure="behind",
    layers=4,
    kernels=2,
    kernel_ns=150_000,
    layer_bytes=16 * MIB,
    message_bytes=32 * MIB,
    rate=10.0,
    marks="iteration {}",
)


def report_of(job: Job, folder: Path) -> Report:
    return analyze(write(folder, job, run(job))).report


def bounds(report: Report) -> dict[str, Any]:
    return {one["finding"]: one["bound"] for one in report["advice"].get("at_best", [])}


@pytest.mark.parametrize(
    "job",
    [SLOW, replace(SLOW, recorder="nsys"), replace(SLOW, structure="tensor", ranks=4, marks="")],
    ids=("kineto", "nsys", "tensor"),
)
def test_no_part_lies_above_what_is_possible_and_hidden_is_what_is_left(job: Job, tmp_path: Path):
    bound = bounds(report_of(job, tmp_path))["bandwidth"]
    truth, before = at_best(job), step_ns(job)
    assert set(bound["parts"]) == set(truth)
    for part, told in bound["parts"].items():
        assert told is not None
        assert told <= truth[part] + LOOSE * before, part
    assert bound["parts"]["double_bandwidth_ns"] == pytest.approx(truth["double_bandwidth_ns"], rel=0.05)
    assert bound["step_ns_low"] == min(bound["parts"].values())


def test_the_first_screen_has_the_bound_in_a_line(tmp_path: Path):
    report = report_of(SLOW, tmp_path)
    lines = dict(first_lines(report).below())
    assert lines["bound"].startswith("at best: ")
    assert "if hidden" in lines["bound"]
    assert "at twice the bandwidth or with half the bytes" in lines["bound"]


def test_a_job_that_hides_its_transfers_has_no_bound(tmp_path: Path):
    hidden = replace(SLOW, name="hidden", structure="buckets", rate=400.0)
    report = report_of(hidden, tmp_path)
    assert report["verdict"]["bound_by"] == "compute"
    assert not first_lines(report).bound


def test_with_ranks_missing_the_cause_is_open_and_the_bound_is_told(tmp_path: Path):
    path = write(tmp_path, replace(SLOW, name="alone", ranks=4), run(replace(SLOW, ranks=4)))
    report = analyze(path / "trace_0.json").report
    lines = dict(first_lines(report).below())
    assert report["verdict"]["cause_abstained"]
    assert "if hidden" in lines["bound"]
    assert lines["try"]
    assert "ranks 1-3" in lines["next"]


def test_without_sizes_only_what_is_hidden_is_known(tmp_path: Path):
    job = replace(SLOW, name="sizeless", recorder="nsys")
    path = write(tmp_path, job, run(job))
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM NVTX_EVENTS WHERE domainId = 1")
    bound = next(iter(bounds(analyze(path).report).values()))
    assert {key for key, value in bound["parts"].items() if value is None} == {
        "no_fixed_cost_ns",
        "half_bytes_ns",
        "double_bandwidth_ns",
    }
    assert bound["parts"]["hidden_ns"] < bound["step_ns_before"]


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_gradients_known_by_structure_have_figures(seed: int, tmp_path: Path):
    report = report_of(draw(seed), tmp_path)
    told = {one["code"]: one for one in report["suggestions"]}
    assert {"bucket_size", "fsdp_prefetch"} & set(told)


def test_frameworks_that_could_have_made_them_are_all_named(tmp_path: Path):
    report = report_of(draw(0), tmp_path)
    action = next(one["action"] for one in report["suggestions"] if one["code"] == "bucket_size")
    for name in ("DDP bucket_cap_mb=", "Megatron --ddp-bucket-size", "DeepSpeed reduce_bucket_size", "own code"):
        assert name in action


def test_those_that_scatter_gradients_are_not_told_of_ddp(tmp_path: Path):
    report = report_of(draw(2), tmp_path)
    action = next(one["action"] for one in report["suggestions"] if one["code"] == "bucket_size")
    assert "DDP" not in action


def test_gradients_of_16_bits_are_not_to_be_sent_in_16_bits(tmp_path: Path):
    for element, told in ((2, False), (4, True)):
        report = report_of(replace(SLOW, name=f"bits_{element}", element=element), tmp_path)
        assert ("wire_bytes" in {one["code"] for one in report["suggestions"]}) is told


def test_what_reaches_for_each_part_is_named(tmp_path: Path):
    small = replace(draw(4), name="small")  # all-reduces of activations, a few hundred KiB each
    for job, codes in (
        (
            replace(SLOW, name="tensor", structure="tensor", ranks=4),
            {"hide_transfers", "fewer_bytes", "faster_transfers"},
        ),
        (small, {"fewer_messages"}),
    ):
        told = {one["code"]: one for one in report_of(job, tmp_path)["advice"]["unpredicted"]}
        truth, before = at_best(job), step_ns(job)
        assert codes <= set(told)
        for code in codes:
            bound = told[code]["bound"]
            assert bound["step_ns_low"] <= bound["step_ns_before"]
        if "hide_transfers" in told:
            low = told["hide_transfers"]["bound"]["step_ns_low"]
            assert low <= truth["hidden_ns"] + LOOSE * before


def test_words_leave_out_what_saves_nothing():
    parts = {"no_fixed_cost_ns": 9_990, "half_bytes_ns": 7_000, "double_bandwidth_ns": 7_010, "hidden_ns": 8_000}
    bound: Any = {"step_ns_before": 10_000, "step_ns_low": 7_000, "basis": "", "parts": parts}
    said = "at best: 10.00 → 8.000 µs if hidden, 7.010 µs at twice the bandwidth or with half the bytes"
    assert in_words(bound) == said
    assert of_part(bound, ("half_bytes_ns",))["step_ns_low"] == 7_000
    nothing: Any = {"step_ns_before": 10_000, "step_ns_low": 10_000, "basis": "", "parts": dict.fromkeys(parts, 10_000)}
    assert in_words(nothing) == ""
