"""What is made of logs: comparisons, the first lines, logs beside traces; drawn jobs whose truth is known."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from helpers.job_logs import LINES, text_of, written

import gpuscope
from benchmarks.job_logs.__main__ import found
from benchmarks.job_logs.drawn import EVENTS, NOISE, job
from gpuscope.report.view.first_lines import first_lines


def log(path: Path, base: float, seed: int) -> Path:
    drawn = random.Random(seed)
    return written(path, text_of(LINES["megatron"][1], [base * (1 + 0.01 * drawn.gauss(0, 1)) for _ in range(200)]))


@pytest.mark.parametrize(("times", "result"), [(1.0, "neutral"), (1.15, "regression"), (0.8, "improvement")])
def test_logs_are_compared(tmp_path: Path, times: float, result: str) -> None:
    compared = gpuscope.diff(
        log(tmp_path / "old.log", 2.0, 1), log(tmp_path / "new.log", 2.0 * times, 2), threshold=0.05
    )
    assert (compared.result, compared.conclusive) == (result, True)
    assert compared.change_frac == pytest.approx(times - 1, abs=0.01)


@pytest.mark.parametrize("event", EVENTS)
def test_events_are_found_and_the_goodput_is_right(event: str, tmp_path: Path) -> None:
    for seed, shape in enumerate(NOISE):
        drawn = job(event, shape, 90 + seed)
        section = gpuscope.analyze(written(tmp_path / "job.log", drawn.text), advice=False).report["job_log"]
        assert found(drawn, section), shape
        assert section["goodput_frac"] == pytest.approx(drawn.goodput, abs=0.01)


def test_the_first_lines_tell_what_when_how_much_and_what_to_do(tmp_path: Path) -> None:
    own = [2.0] * 100 + [2.6] * 100
    lines = first_lines(gpuscope.analyze(written(tmp_path / "job.log", text_of(LINES["megatron"][1], own))).report)
    assert lines.what.startswith("Steps are 30 % slower from step 101 on (2.000 → 2.600 s)")
    assert (lines.label, lines.fix[:42]) == ("next", "record steps on either side of step 101 an")
    assert "--profile-step-start" in lines.fix


def test_a_log_beside_traces_changes_no_verdict(samples: Path, tmp_path: Path) -> None:
    shutil.copytree(samples / "ddp_slow_loader", tmp_path / "run")
    alone = gpuscope.analyze(tmp_path / "run", advice=False).report
    log(tmp_path / "run" / "job.log", 2.0, 1)
    both = gpuscope.analyze(tmp_path / "run", advice=False).report
    for key in ("bound_by", "cause", "share_frac", "confidence"):
        assert both["verdict"][key] == alone["verdict"][key], key  # type: ignore[literal-required]
    assert both["step_time"] == alone["step_time"]
    assert both["job_log"]["samples"] == 200
