"""A hang: who waits, in what, and who did not come."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gpuscope.analyzers.run.runner import analyze
from gpuscope.instrumented_runtime.record.collective_log import CollectiveLog, Group
from gpuscope.instrumented_runtime.record.hang_watch import progress, verdict

Run = Callable[..., SimpleNamespace]
WORLD = Group("0", "default_pg", (0, 1, 2))


def rank_progress(*ops: str, waiting: bool, at: str = "train.py:9 in main") -> dict[str, Any]:
    """A rank that has issued `ops`; with `waiting`, the last one runs still."""
    log = CollectiveLog()
    for number, op in enumerate(ops):
        entry = log.issue(op, WORLD, (), (), None)
        if not waiting or number + 1 < len(ops):
            log.complete(entry)
    return progress([WORLD], log.recent(), at=at)


def test_a_rank_that_never_joined_is_named_and_where_it_is() -> None:
    waits = rank_progress("broadcast", "all_reduce", waiting=True)
    absent = rank_progress("broadcast", waiting=False, at="train.py:40 in load")
    assert verdict({0: waits, 1: absent, 2: waits}, 3) == (
        "ranks 0, 2 wait in all_reduce #2 of group default_pg; rank 1 has not joined: it is at train.py:40 in load"
    )


def test_a_rank_that_called_something_else() -> None:
    waits, other = rank_progress("all_reduce", waiting=True), rank_progress("broadcast", waiting=True)
    assert verdict({0: waits, 1: other, 2: waits}, 3) == (
        "ranks 0, 2 wait in all_reduce #1 of group default_pg; rank 1 called broadcast instead"
    )


def test_a_rank_that_called_another_size() -> None:
    def waiting(elements: int) -> dict[str, Any]:
        log = CollectiveLog()
        log.issue("all_reduce", WORLD, torch.ones(elements), (), None)
        return progress([WORLD], log.recent(), at="train.py:9 in main")

    assert verdict({0: waiting(4096), 1: waiting(8192), 2: waiting(4096)}, 3) == (
        "ranks 0, 2 wait in all_reduce #1 of group default_pg; "
        "rank 1 called all_reduce of 8,192 float32, not 4,096 float32"
    )


def test_a_rank_that_does_not_answer() -> None:
    waits = rank_progress("all_reduce", waiting=True)
    assert verdict({0: waits, 2: waits}, 3).endswith("rank 1 has not joined: no answer")


def test_the_first_cause_is_named_not_who_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank 0 waits for 1 in a pipeline, 1 for 2 in a collective, and 2 is somewhere else.
    pair = Group("1", "mesh_tp", (1, 2))
    monkeypatch.setattr(CollectiveLog, "rank", 0)
    first, second = CollectiveLog(), CollectiveLog()
    first.issue("recv", WORLD, (), (), 1)
    second.issue("all_reduce", pair, (), (), None)
    groups = [WORLD, pair]
    ranks = {
        0: progress([WORLD], first.recent(), at="pipeline.py:1 in recv"),
        1: progress(groups, second.recent(), at="model.py:2 in forward"),
        2: progress(groups, [], at="data.py:3 in read"),
    }
    assert verdict(ranks, 3) == (
        "rank 1 waits in all_reduce #1 of group mesh_tp; rank 2 has not joined: it is at data.py:3 in read"
    )


def test_a_send_that_nobody_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CollectiveLog, "rank", 0)
    log = CollectiveLog()
    log.issue("send", WORLD, (), (), 2)
    waits = progress([WORLD], log.recent(), at="pipeline.py:5 in forward")
    assert verdict({0: waits, 2: rank_progress(waiting=False)}, 3) == (
        "rank 0 waits in send #1 from rank 0 to rank 2 in group default_pg; rank 2: it is at train.py:9 in main"
    )


def test_a_hang_is_dumped_within_the_timeout(
    record: Run, python: str, run: Run, torchrun: tuple[str, ...], ddp_script: Path
) -> None:
    done = record("--hang-timeout", "5", "--", *torchrun, ddp_script, FAIL="hang")
    # Rank 1 never comes back: rank 0 is killed once the hang is told.
    (hang,) = (problem for problem in done.manifest["problems"] if problem["code"] == "hang")
    assert hang["message"].startswith("hang: rank 0 waits in all_reduce #")
    assert "rank 1 has not joined: it is at train.py:20 in <module>" in hang["message"]
    assert hang["message"] in done.err

    dump = pickle.loads((done.folder / "flight_recorder/nccl_trace_rank_0").read_bytes())
    assert [entry["state"] for entry in dump["entries"]][-1] == "started"  # of then, not of the end
    assert "time.sleep(0.1)" in (done.folder / "hang/stacks_rank1.txt").read_text()
    (cause,) = analyze(done.folder).report["hang"]["first_cause"]
    assert (cause["rank"], cause["kind"], cause["reason"]) == (1, "never_arrived", "host_code")
    # torch's own analyser agrees, now that groups and states are there.
    analyser = run(python, "-m", "torch.distributed.flight_recorder.fr_trace", done.folder / "flight_recorder")
    assert "missing ranks: {1}" in analyser.out + analyser.err


HELD = """
import os, re, signal, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
torch.optim.SGD(model.parameters()).step()
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 1:
    if sys.argv[1] == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif sys.argv[1] == "gil":
        re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter's lock for years
    else:
        os.mkfifo("checkpoint")
        torch.save(model.state_dict(), "checkpoint")
work = dist.all_reduce(torch.ones(1), async_op=True)
while '"hang"' not in open("run/manifest.d/rank0.json").read(): time.sleep(0.1)
os.kill(int(open("run/hang/status_rank1.txt").read().split("Pid:")[1].split()[0]), 9)
"""


@pytest.mark.parametrize("how", ["stopped", "gil", "storage"])
def test_ranks_that_run_no_python_are_told_all_the_same(
    record: Run, torchrun: tuple[str, ...], tmp_path: Path, how: str
) -> None:
    script = tmp_path / "held.py"
    script.write_text(HELD)
    done = record("--hang-timeout", "2", "--", *torchrun, script, how)
    (cause,) = analyze(done.folder).report["hang"]["first_cause"]
    assert (cause["rank"], cause["kind"], cause["reason"]) == (1, "no_dump", how), done.err
    assert cause["certain"] is (how == "stopped")
    assert not list(done.folder.glob(".stacks_rank0.*"))


def test_a_rank_that_comes_back_only_paused(record: Run, torchrun: tuple[str, ...], ddp_script: Path) -> None:
    done = record("--hang-timeout", "2", "--", *torchrun, ddp_script, FAIL="pause")
    assert done.code == 0, done.err
    codes = [problem["code"] for problem in done.manifest["problems"]]
    assert codes.count("pause") == 2, done.manifest["problems"]
    assert "hang" not in codes
    paused = [problem["message"] for problem in done.manifest["problems"] if problem["code"] == "pause"]
    assert all("rank 1 has not joined: it is at train.py:" in message for message in paused)
    assert not (done.folder / "hang").exists()
    listed = {entry["path"]: entry["note"] for entry in done.manifest["files"]}
    assert listed["pause1/nccl_trace_rank_0"] == "on a hang that was a pause"
    assert {"pause1/stacks_rank1.txt", "pause2/stacks_rank0.txt"} <= listed.keys()
    assert listed["flight_recorder/nccl_trace_rank_0"] == "at the end"

    report = analyze(done.folder).report
    assert "hang" not in {finding["code"] for finding in report["findings"]}
    assert [problem["code"] for problem in report["problems"]].count("run_paused") == 2


def test_a_dump_on_demand(record: Run, python: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import os, pathlib, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
folder = pathlib.Path(os.environ["GPUSCOPE_RUN_FOLDER"])
(folder / "dump").touch()
while not (folder / "demand1/nccl_trace_rank_0").exists():
    time.sleep(0.05)
dist.destroy_process_group()
"""
    )
    variables = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = record("--profiler", "none", "--", python, script, **variables)
    assert done.code == 0, done.err
    notes = {entry["path"]: entry["note"] for entry in done.manifest["files"]}
    assert notes["demand1/nccl_trace_rank_0"] == "on demand"
    assert "demand1/stacks_rank0.txt" in notes
