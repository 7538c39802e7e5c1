"""What is paid once and not in every step, and what is judged: small runs of one rank, worked by hand (µs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.collectives import collective, run_of
from helpers.kineto import Event, call, kernel, note, write
from simulator.catalogue import COMPUTE, MS
from simulator.judged import Case

import gpuscope
from gpuscope.report.view.first_lines import first_lines
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
        "median_ns": 1_000_000,
        "p90_ns": 1_000_000,
        "min_ns": 1_000_000,
        "max_ns": 1_000_000,
        "steps": 5,
    }


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
        COMPUTE,
        name="paused",
        ranks=4,
        layers=2,
        steps=14,
        items=1,
        outlier_step=4,
        outlier_ns=3_000 * MS,
        outlier_work="evaluate",
        outlier_ranks=ranks,
    )
    report = gpuscope.analyze(Case(job, "").write(tmp_path)).report
    outlier = found(report, "outlier_steps")
    assert (outlier["facts"]["shape"], outlier["facts"]["ranks"]) == shape
    assert words in outlier["message"]
    assert report["verdict"]["bound_by"] == "compute"


def test_a_step_time_that_shifts_for_good(tmp_path: Path) -> None:
    """Two steps of 100, then 1000 each: only these are judged; three of them cost 900 more than before. The device
    computes all of it but 50 of each step."""
    report = gpuscope.analyze(run(tmp_path, [100, 100, 1000, 1000, 1000, 1000])).report
    assert [step["role"] for step in report["steps"]] == [*["before_shift"] * 2, *["steady"] * 3, "partial"]
    shift = found(report, "step_time_shift")
    assert (shift["cost_ns"], shift["severity"]) == (2_700_000, "medium")
    told = (
        "From step 2 on a step takes 1.000 ms, in the 2 steps before it took 100.0 µs: "
        "the device computes 900.0 µs longer"
    )
    assert shift["message"] == told
    assert shift["evidence"][0]["name"] == "step 2"
    assert first_lines(report).shift == "f" + told[1:]
    assert report["step_time"] is not None
    assert (report["step_time"]["median_ns"], report["step_time"]["min_ns"]) == (1_000_000, 1_000_000)


def test_a_shift_to_faster_steps(tmp_path: Path) -> None:
    """Seven steps of 1000, then 600 each: what the slow ones cost is told, and nothing of them is judged."""
    report = gpuscope.analyze(run(tmp_path, [1000] * 7 + [600] * 3)).report
    shift = found(report, "step_time_shift")
    assert (shift["facts"]["first"], shift["facts"]["part_ns"], shift["cost_ns"]) == (7, -400_000, 7 * 400_000)
    assert shift["message"].endswith("the device computes 400.0 µs less")
    assert report["ranks"][0]["window_ns"] == 2 * 600_000


def test_a_smaller_jump_leaves_all_steps_steady(tmp_path: Path) -> None:
    """Two steps of 800, then 1000 each: all are judged, and three cost 200 more than before."""
    report = gpuscope.analyze(run(tmp_path, [800, 800, 1000, 1000, 1000, 1000])).report
    assert [step["role"] for step in report["steps"]] == [*["steady"] * 5, "partial"]
    shift = found(report, "step_time_shift")
    assert (shift["cost_ns"], shift["severity"]) == (600_000, "medium")
    assert shift["message"].startswith("Steps take 1.2 times as long after the first 2: ")
    assert shift["evidence"][0]["name"].startswith("step 2,")
    assert first_lines(report).shift == ""


def test_set_up_longer_than_what_is_judged_is_told_first(tmp_path: Path) -> None:
    report = gpuscope.analyze(run(tmp_path, [1000] * 5, setup=9_000)).report
    assert report["set_apart"]["startup"]
    assert first_lines(report).apart.startswith("start-up: set-up of 9.000 ms (the device computes 9.000 ms); 4.000 ms")
    assert "set_apart" not in gpuscope.analyze(run(tmp_path, [1000] * 5, setup=900)).report


def test_what_is_not_judged_is_told_where_it_is_much(tmp_path: Path) -> None:
    """The steady and partial steps are 8 of 14: a warm-up of 4 and a checkpoint of 2 are set apart."""
    path = run(tmp_path, [4000, 1000, 1000, 1000, 2000, 1000, 1000, 1000, 1000, 1000])
    report = gpuscope.analyze(path).report
    assert report["set_apart"]["covered_frac"] == pytest.approx((8_000 - 50) / (14_000 - 50))
    assert first_lines(report).apart == (
        "1 warm-up step of 4.000 ms (the device computes 3.950 ms); 1 long step of 2.000 ms (the device computes "
        "1.950 ms); 7.000 ms is judged, 57.0 % of the recording after set-up is steady"
    )
    assert "set_apart" not in gpuscope.analyze(path, steps=(2, 3)).report
    few = run(tmp_path / "few", [1800, *[1000] * 9])
    assert "set_apart" not in gpuscope.analyze(few).report


def test_two_ranks_that_start_apart(tmp_path: Path) -> None:
    """The first all-reduce waits 30 ms for rank 1, later ones last 0.9 each: the recording's start is told."""
    ranks = [
        [collective(start, 31_000 - start, 4_096, 0)]
        + [collective(31_100 + 1_000 * k, 900, 4_096, k + 1) for k in range(8)]
        for start in (0, 30_000)
    ]
    report = gpuscope.analyze(run_of(tmp_path, *ranks, compute=False)).report
    (part,) = report["set_apart"]["parts"]
    assert (part["role"], part["op"], part["late_rank"], part["wait_ns"]) == ("warmup", "all_reduce", 1, 30_000_000)
    assert first_lines(report).apart.startswith(
        "start-up: 1 warm-up step of 31.10 ms (all_reduce waits 30.00 ms for rank 1)"
    )


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
    """One step: 950 of compute, the rest of its annotation idle; the 500 of set-up are recorded and not judged."""
    report = gpuscope.analyze(run(tmp_path, [1000], setup=500)).report
    (rank,) = report["ranks"]
    assert (rank["window_ns"], rank["recorded_ns"], rank["steps"]) == (1_000_000, 1_495_000, 1)
    assert report["verdict"]["why"].endswith("only 1 steady step, so the whole window except set-up is judged")
    # Nothing else speaks against it but 45 behind the kernel in which the host is not recorded, of 100 at least.
    assert report["verdict"]["confidence"] == pytest.approx(0.8 * 0.55)


def test_without_steps_the_whole_window_is_judged(tmp_path: Path) -> None:
    report = gpuscope.analyze(write(tmp_path / "r.json", call(0, 2, 1), kernel(5, 95, 1))).report
    (rank,) = report["ranks"]
    assert (rank["window_ns"], rank["recorded_ns"], rank["steps"], report["step_time"]) == (95_000, 95_000, 0, None)
    assert report["verdict"]["why"].endswith("no steps were found, so the whole window is judged")


@pytest.mark.parametrize(("period", "told"), [(4, "Every 4th step takes"), (5, "Every 5th step takes")])
def test_what_returns_with_a_period_is_priced_on_the_mean(tmp_path: Path, period: int, told: str) -> None:
    """Each 9000 among steps of 1000: the usual step shows nothing of it."""
    durations = [9000 if step % period == period - 1 else 1000 for step in range(5 * period)]
    report = gpuscope.analyze(run(tmp_path, durations)).report
    rare = found(report, "rare_steps")
    assert rare["message"].startswith(told)
    facts = rare["facts"]
    assert (facts["usual_ns"], facts["more_ns"], facts["period"]) == (1_000_000, 8_000_000, period)
    assert facts["mean_ns"] > 2_000_000
    assert rare["cost_ns_per_step"] is None
    assert "the mean step takes" in first_lines(report).mean


@pytest.mark.parametrize("durations", [[1000] * 20, [1000, 1100] * 10, [1000] * 18 + [1900] + [1000] * 3])
def test_steps_alike_or_one_a_little_longer_have_no_price_of_their_own(tmp_path: Path, durations: list[int]) -> None:
    report = gpuscope.analyze(run(tmp_path, durations)).report
    assert not [one for one in report["findings"] if one["code"] == "rare_steps"]
    assert not first_lines(report).mean
