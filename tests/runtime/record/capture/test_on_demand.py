"""Windows recorded on demand: which steps, into which folder, by file and by signal, on ranks that agree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="recording needs torch")

import gpuscope
from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record import on_demand
from gpuscope.instrumented_runtime.record.capture_options import RecordOptions
from gpuscope.instrumented_runtime.record.on_demand import OnDemand
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

SLOW = """
import torch, torch.distributed as dist, time, os

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
begun = time.time()
done = torch.zeros(1)
while not done.item():
    model(torch.ones(8, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.02)
    done = torch.tensor([float(os.path.exists("enough") or time.time() - begun > 60)])
    dist.all_reduce(done)
dist.destroy_process_group()
"""


class Recorder:
    """A capture that notes its steps."""

    name = "recorder"

    def __init__(self, first: int, active: int) -> None:
        self.first, self.active, self.steps = first, active, list[int]()
        self.stopped = False
        self.where: Path | None = None

    def start(self, folder: RankFolder) -> None:
        self.where = folder.files

    def step(self, step: int) -> None:
        self.steps.append(step)

    def stop(self) -> None:
        self.stopped = True


def ranks(path: Path, count: int, made: list[Recorder], **options: Any) -> list[OnDemand]:
    def make(first: int, active: int) -> Recorder:
        made.append(Recorder(first, active))
        return made[-1]

    found = []
    for rank in range(count):
        own = OnDemand(make, warmup=1, active=3, **options)
        own.start(RankFolder.join(path, rank=rank, world_size=count))
        found.append(own)
    return found


def test_all_ranks_record_the_steps_that_rank_0_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "POLL_S", 0.0)
    monkeypatch.setattr(on_demand, "AHEAD_S", 0.0)
    made: list[Recorder] = []
    both = ranks(tmp_path, 2, made)
    for step in range(4):
        for rank in both:
            rank.step(step)
    assert made == []
    (tmp_path / "record").write_text("2\n")
    for step in range(4, 12):
        for rank in both:
            rank.step(step)
    # Seen as step 4 ends: the window begins two whole steps later, warms up in one step, and records two.
    assert [(one.first, one.active) for one in made] == [(7, 2), (7, 2)]
    assert all(one.stopped and one.steps == [5, 6, 7, 8, 9] for one in made)
    assert {one.where for one in made} == {tmp_path / "window1"}
    assert not (tmp_path / "record").exists()


def test_a_window_of_some_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "POLL_S", 0.0)
    monkeypatch.setattr(on_demand, "AHEAD_S", 0.0)
    made: list[Recorder] = []
    all_three = ranks(tmp_path, 3, made)
    (tmp_path / "record").write_text("2 ranks 2 0")
    for step in range(12):
        for rank in all_three:
            rank.step(step)
    assert [one.active for one in made] == [2, 2]
    assert all_three[1]._seen == 1


def test_a_rank_that_sees_the_window_late_ends_with_the_others_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_demand, "POLL_S", 0.0)
    monkeypatch.setattr(on_demand, "AHEAD_S", 0.0)
    made: list[Recorder] = []
    first, second = ranks(tmp_path, 2, made)
    (tmp_path / "record").touch()
    for step in range(10):
        first.step(step)
    second.step(7)  # the window, named as step 3 ended: warm-up in step 6, then 7, 8, 9
    assert [(one.first, one.active) for one in made] == [(6, 3), (8, 1)]
    assert [problem.code for problem in second._folder.part.problems] == ["window_late"]


def test_without_a_request_nothing_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_demand, "POLL_S", 0.0)
    made: list[Recorder] = []
    (rank,) = ranks(tmp_path, 1, made)
    for step in range(50):
        rank.step(step)
    rank.stop()
    assert made == []
    assert not list(tmp_path.glob("window*"))


def test_a_request_at_the_very_end_is_told(tmp_path: Path) -> None:
    (rank,) = ranks(tmp_path, 1, [])
    (tmp_path / "record").touch()
    rank.stop()
    assert [problem.code for problem in rank._folder.part.problems] == ["window_too_late"]


def test_ranks_without_rank_0_in_their_folder_say_so(tmp_path: Path) -> None:
    rank = OnDemand(Recorder, warmup=1, active=3)
    rank.start(RankFolder.join(tmp_path, rank=8, world_size=16))
    (tmp_path / "record").touch()
    rank.stop()
    assert [problem.code for problem in rank._folder.part.problems] == ["window_not_shared"]


def test_a_handler_of_the_script_is_left_alone(tmp_path: Path) -> None:
    def own(_number: int, _frame: object) -> None: ...

    before = signal.signal(signal.SIGUSR2, own)
    try:
        assert not on_demand.listen(tmp_path)
        assert signal.getsignal(signal.SIGUSR2) is own
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_on_demand_and_whole_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="on_demand and whole"):
        RecordOptions(on_demand=True, whole=True).check()


def test_windows_of_a_running_job_by_file_and_by_signal(tmp_path: Path, torchrun: tuple[str, ...]) -> None:
    script = tmp_path / "train.py"
    script.write_text(SLOW)
    from tests.runtime.record.conftest import GPUSCOPE

    words = (*GPUSCOPE, "record", "-o", "run", "--on-demand", "--warmup", "1", "--active", "2", "--", *torchrun, script)
    with (tmp_path / "err").open("w") as err:
        job = subprocess.Popen(
            [str(word) for word in words], cwd=tmp_path, stderr=err, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
    run = tmp_path / "run"
    try:
        _until(lambda: (run / "manifest.d" / "window.json").exists())
        (run / "record").write_text("3")
        _until(lambda: len(list(run.glob("window1/rank*.json.gz"))) == 2)
        job.send_signal(signal.SIGUSR2)  # `gpuscope record` itself; the job goes on
        _until(lambda: len(list(run.glob("window2/rank*.json.gz"))) == 2)
        (tmp_path / "enough").touch()
        assert job.wait(60) == 0, (tmp_path / "err").read_text()
    finally:
        job.kill()
    manifest = json.loads((run / "manifest.json").read_text())
    traces = sorted(entry["path"] for entry in manifest["files"] if entry["kind"] == "torch_profiler")
    assert traces == [f"window{n}/rank{rank}.json.gz" for n in (1, 2) for rank in (0, 1)]
    assert not [problem for problem in manifest["problems"] if problem["severity"] == "data_loss"]
    report = gpuscope.analyze(run / "window1").report
    assert report["trace"]["ranks_present"] == [0, 1]
    steps = {
        rank: [s["step"] for s in report["steps"] if s["rank"] == rank and s["step"] is not None] for rank in (0, 1)
    }
    assert len(steps[0]) == 3
    assert steps[0] == steps[1]
    last = gpuscope.analyze(run).report
    assert {Path(source["path"]).parent.name for source in last["trace"]["sources"]} >= {"window2"}
    assert any("window 1" in problem["message"] for problem in last["problems"])


def _until(true: Any) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)
