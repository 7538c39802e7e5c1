"""Following a job on GPUs, whose steps are timed sparsely: what can be told is told, and what can't is said.

A stand-in for the GPUs: the meter and the reading of DDP's figures are the program's own. The clock is ours, and DDP's
logger answers as its reducer does on CUDA: new figures in its first ten iterations and then in one in a hundred, the
last ones otherwise (`Reducer::should_collect_runtime_stats` of torch).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.nn.parallel import DistributedDataParallel

import gpuscope
from gpuscope.analyzers.watching.alerts import alerts, late_in_windows, measured_steps, unmeasured
from gpuscope.analyzers.watching.measures import RunWatcher, WindowsVerdict
from gpuscope.instrumented_runtime.train import measures as meter_module
from gpuscope.instrumented_runtime.train.measures import ExposedCommunication, StepMeter, Workload

MS = 1_000_000
STEP_MS = 100


class ReducerOnGpu(DistributedDataParallel):
    """DDP as far as its logger goes, without a device or a group."""

    def __init__(self) -> None:
        self.data: dict[str, int] = {}

    def step(self, number: int, exposed_ns: int) -> None:
        """A backward: timed or not."""
        if number < 10 or (number + 1) % 100 == 0:
            self.data = {
                "backward_comm_time_start": 1 + number * STEP_MS * MS,
                "backward_comm_time": exposed_ns + 7 * MS,
                "backward_compute_comm_overlap_time": 7 * MS,
            }

    def _get_ddp_logging_data(self) -> dict[str, int]:
        return self.data


def train(
    folder: Path, monkeypatch: pytest.MonkeyPatch, steps: int, own_ms: list[int], data_ms: list[int] | None = None
) -> None:
    """Ranks that need `own_ms` themselves, `data_ms` of it for their data, and wait for the slowest."""
    (folder / "measures").mkdir()
    (folder / "manifest.json").write_text(json.dumps({"run_id": "r", "status": "running"}))
    for rank, own in enumerate(own_ms):
        clock = SimpleNamespace(now=0)
        fake: Any = SimpleNamespace(
            perf_counter_ns=lambda clock=clock: clock.now, time_ns=lambda clock=clock: clock.now
        )
        monkeypatch.setattr(meter_module, "time", fake)
        reducer, exposed = ReducerOnGpu(), ExposedCommunication()
        meter = StepMeter(Workload(1024, 10, len(own_ms), None), rank, torch.device("cpu"))
        meter.write_to(folder / "measures" / f"rank{rank}.jsonl", 0)
        for step in range(steps):
            meter.begin()
            with meter.timed("data"):
                clock.now += (data_ms[rank] if data_ms else 1) * MS
            clock.now = (step + 1) * STEP_MS * MS
            reducer.step(step, (STEP_MS - own) * MS)
            meter.end(step, None, None, None, exposed.take([reducer]))
        meter.close()


def test_ddp_on_gpus_says_how_old_its_knowledge_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, monkeypatch, 450, [60, 60, 90, 60])
    seen = RunWatcher(tmp_path).look()
    assert measured_steps(seen) == [*range(1, 10), 99, 199, 299, 399]
    (alert,) = alerts(seen, 450 * STEP_MS * MS)
    assert (alert.code, alert.ranks) == ("falls_behind", (2,))
    assert "13 of the last 13 measured steps, 30.00 ms each (measured up to step 399)" in alert.message
    assert "measured in 13 of 449 steps, the last of them 399 of 449" in unmeasured(seen)


def test_a_rank_that_has_recovered_is_no_longer_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Late in the first nine measured steps, and not in the five since."""
    train(tmp_path, monkeypatch, 10, [60, 60, 90])
    for rank in range(3):
        with (tmp_path / "measures" / f"rank{rank}.jsonl").open("a") as file:
            for step in range(100, 600, 100):
                line = {
                    "step": step,
                    "rank": rank,
                    "end_ns": step,
                    "step_ns": STEP_MS * MS,
                    "exposed_communication_ns": 40 * MS,
                }
                file.write(json.dumps(line) + "\n")
    assert alerts(RunWatcher(tmp_path).look(), 600 * MS) == []


def test_without_a_measure_a_late_loader_is_told_and_the_rest_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FSDP, TP and pipelines measure no exposed communication on GPUs."""
    monkeypatch.setattr(ReducerOnGpu, "step", lambda *_: None)
    train(tmp_path, monkeypatch, 40, [60, 60, 60], [2, 32, 2])
    seen = RunWatcher(tmp_path).look()
    assert measured_steps(seen) == []
    (alert,) = alerts(seen, 40 * STEP_MS * MS)
    assert (alert.code, alert.ranks) == ("waits_for_data", (1,))
    assert "30.00 ms longer than the others in 20 of the last 20 steps" in alert.message
    assert "as far as its device has nothing else to do" in alert.message
    assert "is not measured" in unmeasured(seen)


def test_a_slow_rank_that_nothing_measures_is_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks' steps are equally long, for they wait for the slow one: no alert names it."""
    monkeypatch.setattr(ReducerOnGpu, "step", lambda *_: None)
    train(tmp_path, monkeypatch, 40, [60, 90, 60], [20, 20, 20])
    seen = RunWatcher(tmp_path).look()
    assert alerts(seen, 40 * STEP_MS * MS) == []
    assert unmeasured(seen)


def test_a_rank_that_is_late_in_the_finished_windows_is_an_alert(samples: Path) -> None:
    """What the steps can't tell, recorded windows do."""
    slow = samples / "ddp_slow_rank"
    names = tuple(sorted(path.relative_to(slow).as_posix() for path in slow.rglob("*.json.gz")))
    sentence, report = WindowsVerdict(slow).look(names)
    assert report is not None
    assert "waiting for a late rank" in sentence
    alert = late_in_windows(report)
    assert alert is not None
    assert (alert.code, alert.ranks) == ("late_in_windows", (1,))
    assert alert.message.startswith("in the finished windows: Collectives wait for the last rank")
    for entry in report["stragglers"]:
        entry["recurrent"] = False
    assert late_in_windows(report) is None
    assert late_in_windows(gpuscope.analyze(samples / "ddp_healthy").report) is None
