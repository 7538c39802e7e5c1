"""One layout of our own trainer recorded, others predicted from it, then run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpuscope.analyzers.planning.calibration.calibrating import calibrated
from gpuscope.analyzers.planning.candidates import Question
from gpuscope.analyzers.planning.costs.step_estimate import estimate
from gpuscope.analyzers.planning.entries import range_of
from gpuscope.analyzers.planning.layout import Layout
from gpuscope.analyzers.run.runner import analyze

BATCH = 16
"""Sequences per step, in every layout."""
SETTINGS = ("model.layers=4", "model.width=256", "model.heads=8", "model.vocabulary=2048", "data.sequence=256")


@dataclass(frozen=True)
class Case:
    """A layout as the trainer and as the planner know it."""

    name: str
    processes: int
    parallel: str
    layout: Layout
    settings: tuple[str, ...]


CASES = (
    Case("ddp on 2", 2, "ddp", Layout(2, micro_batch=8), ("data.batch=8",)),
    Case("tp on 2", 2, "tp=2", Layout(1, 2, micro_batch=16), ("data.batch=16",)),
    Case("pp on 2", 2, "pp=2", Layout(1, 1, 2, micro_batch=4), ("data.batch=16", "pipeline.micro_batches=4")),
    Case("ddp on 4", 4, "ddp", Layout(4, micro_batch=4), ("data.batch=4",)),
    Case("fsdp on 4", 4, "fsdp", Layout(4, zero=3, micro_batch=4), ("data.batch=4",)),
    Case("tp x fsdp on 4", 4, "tp=2+fsdp", Layout(2, 2, zero=3, micro_batch=8), ("data.batch=8",)),
)  # fmt: skip
"""The first is recorded for the calibration."""


def run(folder: Path, steps: int) -> list[tuple[str, ...]]:
    """Case, predicted step with its range, measured step, error."""
    for case in CASES:
        if not (folder / case.name.replace(" ", "-")).exists():
            _train(folder / case.name.replace(" ", "-"), case, steps)
    base = folder / CASES[0].name.replace(" ", "-")
    found = []
    for case in CASES:
        model, cluster, rates, _ = calibrated(base, None, None, None, case.processes)
        question = Question(model, cluster, BATCH, rates)
        took = estimate(model, cluster, case.layout, BATCH, rates).seconds * 1e9
        low, high = range_of(question, case.layout)
        step = analyze(folder / case.name.replace(" ", "-")).report["step_time"]
        assert step is not None
        real = step["median_ns"]
        inside = "yes" if low <= real <= high else "no"
        found.append((
            case.name, f"{took / 1e6:.0f} ms", f"{low / 1e6:.0f}–{high / 1e6:.0f} ms", f"{real / 1e6:.0f} ms",
            f"{took / real - 1:+.1%}", inside,
        ))  # fmt: skip
    return found


def _train(out: Path, case: Case, steps: int) -> None:
    command = [sys.executable, "-m", "gpuscope", "train", "--nproc", str(case.processes), "--parallel", case.parallel]
    command += ["--out", str(out), "--steps", str(steps + 4), "--set", f"capture.active={steps}"]
    for setting in (*SETTINGS, *case.settings):
        command += ["--set", setting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KINETO_LOG_LEVEL": "6"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{case.name}: {done.stderr[-2000:]}")
