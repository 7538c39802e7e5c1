"""`gpuscope record` on the scripts and launchers of others: look-ups of torch, spawned ranks, mpirun."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.instrumented_runtime.record.ranges import LaunchedRank, is_launcher, launched_rank

Run = Callable[..., SimpleNamespace]

LOOK_UP = "import importlib.util; assert importlib.util.find_spec('torch')\n"
TRAIN = """
import torch
def train(steps=6):
    w = torch.ones(4, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.1)
    for _ in range(steps):
        w.sum().backward()
        optimizer.step()
"""
HOGWILD = """
if __name__ == "__main__":
    import torch.multiprocessing as mp
    context = mp.get_context({method!r})
    workers = [context.Process(target=train) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
"""
SPAWNED = """
def rank(number, world):
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://{store}", rank=number, world_size=world)
    train()
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, args=(2,), nprocs=2)
"""


def ranks_of(done: SimpleNamespace) -> list[tuple[int, int]]:
    """Rank and recorded steps of each trace."""
    assert done.code == 0, done.err
    return sorted((entry["rank"], 1) for entry in done.manifest["files"] if entry["kind"] == "torch_profiler")


def script_of(tmp_path: Path, text: str) -> Path:
    script = tmp_path / "train.py"
    script.write_text(text)
    return script


def test_a_look_up_of_torch_does_not_switch_recording_off(record: Run, tmp_path: Path) -> None:
    script = script_of(tmp_path, LOOK_UP + LOOK_UP + TRAIN + "train()")
    assert ranks_of(record("--", sys.executable, script)) == [(0, 1)]


def test_ranks_that_a_script_spawns(record: Run, python: str, tmp_path: Path) -> None:
    # As on Kubeflow, RANK is the pod's.
    script = script_of(tmp_path, TRAIN + SPAWNED.format(store=tmp_path / "store"))
    done = record("--", python, script, RANK="0", WORLD_SIZE="1")
    assert ranks_of(done) == [(0, 1), (1, 1)]
    assert done.manifest["world_size"] == 2


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_without_ranks_are_all_recorded(record: Run, python: str, tmp_path: Path, method: str) -> None:
    script = script_of(tmp_path, TRAIN + HOGWILD.format(method=method))
    assert ranks_of(record("--", python, script)) == [(0, 1), (1, 1)]


def test_mpirun_names_the_ranks(record: Run, python: str, tmp_path: Path) -> None:
    variables = "OMPI_COMM_WORLD_RANK=$r OMPI_COMM_WORLD_SIZE=2"
    script = script_of(tmp_path, TRAIN + "train()")
    launch = f"for r in 0 1; do {variables} {python} {script} & done; wait"
    done = record("--", "sh", "-c", launch)
    assert ranks_of(done) == [(0, 1), (1, 1)]
    assert done.manifest["world_size"] == 2


def test_torchrun_is_no_rank_though_the_pod_has_one(record: Run, torchrun: tuple[str, ...], ddp_script: Path) -> None:
    done = record("--", *torchrun, ddp_script, RANK="0", WORLD_SIZE="1")
    assert ranks_of(done) == [(0, 1), (1, 1)]
    assert [rank["rank"] for rank in done.manifest["ranks"]] == [0, 1]


def test_a_rank_that_fails_before_it_trains_is_told(record: Run, python: str, tmp_path: Path) -> None:
    script = script_of(tmp_path, "import torch\nraise FileNotFoundError('no such corpus')")
    done = record("--", python, script, RANK="3", WORLD_SIZE="4")
    assert done.code == 1
    assert [(rank["rank"], rank["status"]) for rank in done.manifest["ranks"]] == [(3, "failed")]
    assert "FileNotFoundError: no such corpus" in done.manifest["ranks"][0]["error"]


def test_a_short_script_is_told_what_to_set(record: Run, python: str, tmp_path: Path) -> None:
    script = script_of(tmp_path, TRAIN + "train(3)")
    done = record("--", python, script)
    assert "--wait 0 --warmup 1 --active 2" in done.err
    again = record("-o", "again", "--wait", "0", "--warmup", "1", "--active", "2", "--", python, script)
    assert (tmp_path / "again/rank0.json.gz").exists(), again.err


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, LaunchedRank(3, 8, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, LaunchedRank(3, 8, 0)),
        ({"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2"}, LaunchedRank(2, 4, 2)),
        ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_LOCALID": "1"}, LaunchedRank(5, 8, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # the batch script itself
        ({}, None),
    ],
)
def test_the_rank_by_a_launchers_variables(variables: dict[str, str], rank: LaunchedRank | None) -> None:
    assert launched_rank(variables) == rank


@pytest.mark.parametrize(
    ("words", "launcher"),
    [
        ("python /usr/bin/torchrun --nproc-per-node 8 train.py", True),
        ("python -u -m torch.distributed.run train.py", True),
        ("python -X dev -m accelerate.commands.launch train.py", True),
        ("python -u -m deepspeed.launcher.launch train.py", True),
        ("python train.py -m torch.distributed.run", False),
        ("python -m torchtitan.train", False),
        ("python -c pass", False),
        ("python", False),
    ],
)
def test_what_is_a_launcher(words: str, launcher: bool) -> None:
    assert is_launcher(words.split()) is launcher


def test_one_rank_in_two_is_profiled(record: Run, python: str, torchrun: tuple[str, ...], ddp_script: Path) -> None:
    done = record("--every", "2", "--", *torchrun, ddp_script)
    assert ranks_of(done) == [(0, 1)]
    assert done.manifest["world_size"] == 2
    assert {entry["rank"] for entry in done.manifest["files"] if entry["kind"] == "collectives"} == {0, 1}
    wrong = record("-o", "wrong", "--ranks", "0,x", "--", python, ddp_script)
    assert (wrong.code, "not a list of ranks" in wrong.err) == (2, True)
