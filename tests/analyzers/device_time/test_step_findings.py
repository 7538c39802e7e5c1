"""What is paid once and not in every step, and what is judged: small runs of one rank, worked by hand (µs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.kineto import Event, call, kernel, note, write
from simulator.catalogue import COMPUTE, MS
from simulator.judged import Case

import gpuscope
from gpuscope.schema.document import FindingEntry, Report

BEGIN = 10_000


def run(path: Path, durations: Sequence[int], setup: int = 0) -> Path:
    """Steps of these lengths on the device, each one kernel that leaves 50 idle; `setup` before the first one."""
    events: list[Event] = [call(BEGIN - setup - 20, 2, 1000), kernel(BEGIN - setup, setup, 1000)] if setup else []
    at = BEGIN
    for step, duration in enumerate(durations):
        events += [
            note(at - 5, duration, f"ProfilerStep#{step}"),
            call(at - 4, 2, step),
            kernel(at, duration - 50, step),
        ]
        at += duration
    return write(path / "rank0.json", *events)


def found(report: Report, code: str) -> FindingEntry:
    (one,) = [finding for finding in report["findings"] if finding["code"] == code]
    return one


def test_what_is_paid_once(tmp_path: Path) -> None:
    """500 of set-up; a first step of 2200 and a fourth of 3000 among steps of 1000; the last lacks its successor."""
    report = gpuscope.analyze(run(tmp_path, [2200, 1000, 1000, 3000, 1000, 1000, 1000, 1000], setup=500)).report
    roles = ["setup", "warmup", "steady", "steady", "outlier", "steady", "steady", "steady", "partial"]
    assert [step["role"] for step in report["steps"]] == roles
    costs = {code: found(report, code)["cost_ns"] for code in ("startup", "warmup", "outlier_steps")}
    assert costs == {"startup": 500_000, "warmup": 1_200_000, "outlier_steps": 2_000_000}
    assert {found(report, code)["cost_ns_per_step"] for code in costs} == {None}
    (rank,) = report["ranks"]
    assert (rank["steps"], rank["window_ns"]) == (5, 5_000_000)
    # Set-up and all steps; the last one ends with its kernel, 950 after it began.
    assert rank["recorded_ns"] == 1000 * (500 + 2200 + 1000 + 1000 + 3000 + 3 * 1000 + 950)
    assert report["step_time"] == {
        "median_ns": 1_000_000, "p90_ns": 1_000_000, "min_ns": 1_000_000, "max_ns": 1_000_000, "steps": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "shape", "words"),
    [
        (None, ("pause", []), "in the longest all devices pause: evaluate"),
        ((0,), ("alone", [0]), "in the longest rank 0 works alone while the others wait: evaluate"),
    ],
)
def test_the_longest_outlier_is_told_with_its_place(
    tmp_path: Path, ranks: tuple[int, ...] | None, shape: tuple[str, list[int]], words: str
) -> None:
    """3 s on all ranks, or on rank 0 while the others wait for it in their first all-reduce."""
    job = replace(
        COMPUTE, name="paused", ranks=4, layers=2, steps=14, items=1, outlier_step=4, outlier_ns=3_000 * MS,
        outlier_work="evaluate", outlier_ranks=ranks,
    )  # fmt: skip
    report = gpuscope.analyze(Case(job, "").write(tmp_path)).report
    outlier = found(report, "outlier_steps")
    assert (outlier["facts"]["shape"], outlier["facts"]["ranks"]) == shape
    assert words in outlier["message"]
    assert report["verdict"]["bound_by"] == "compute"


def test_a_step_time_that_shifts(tmp_path: Path) -> None:
    """Two steps of 100, then 1000 each: faster is steady, and 3 judged steps cost 900 more than before."""
    report = gpuscope.analyze(run(tmp_path, [100, 100, 1000, 1000, 1000, 1000])).report
    assert [step["role"] for step in report["steps"]] == [*["steady"] * 5, "partial"]
    shift = found(report, "step_time_shift")
    assert (shift["cost_ns"], shift["severity"]) == (2_700_000, "medium")
    assert shift["message"].startswith("Steps take 10.0 times as long after the first 2: ")
    assert shift["evidence"][0]["name"].startswith("step 2,")


def test_a_steady_run_pays_nothing_once(tmp_path: Path) -> None:
    codes = {one["code"] for one in gpuscope.analyze(run(tmp_path, [1000] * 6)).report["findings"]}
    assert not codes & {"startup", "warmup", "outlier_steps", "step_time_shift"}


def test_steps_that_are_asked_for_are_judged_whatever_they_are(tmp_path: Path) -> None:
    """The outlier alone: 2950 of 3000 compute."""
    path = run(tmp_path, [2200, 1000, 1000, 3000, 1000, 1000, 1000, 1000], setup=500)
    report = gpuscope.analyze(path, steps=(3, 3)).report
    (rank,) = report["ranks"]
    assert (rank["steps"], rank["window_ns"], rank["breakdown_ns"]["compute"]) == (1, 3_000_000, 2_950_000)
    assert [(step["step"], step["role"]) for step in report["steps"]] == [(3, "steady")]
    assert "outlier_steps" not in {one["code"] for one in report["findings"]}
    assert "judged" not in report["verdict"]["why"]


def test_too_few_steady_steps_judge_the_window_without_its_setup(tmp_path: Path) -> None:
    """One step: 950 of compute, for its end is its kernel's; the 500 of set-up are recorded and not judged."""
    report = gpuscope.analyze(run(tmp_path, [1000], setup=500)).report
    (rank,) = report["ranks"]
    assert (rank["window_ns"], rank["recorded_ns"], rank["steps"]) == (950_000, 1_450_000, 1)
    assert report["verdict"]["why"].endswith("only 1 steady step, so the whole window except set-up is judged")
    assert report["verdict"]["confidence"] == 0.8  # nothing else speaks against it


def test_without_steps_the_whole_window_is_judged(tmp_path: Path) -> None:
    report = gpuscope.analyze(write(tmp_path / "r.json", call(0, 2, 1), kernel(5, 95, 1))).report
    (rank,) = report["ranks"]
    assert (rank["window_ns"], rank["recorded_ns"], rank["steps"], report["step_time"]) == (95_000, 95_000, 0, None)
    assert report["verdict"]["why"].endswith("no steps were found, so the whole window is judged")
