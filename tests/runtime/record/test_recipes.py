"""The recipes of docs/recording.md for launchers, taken from its text and run with two ranks per node: torchrun always,
mpirun and Slurm where a machine has them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers import needs
from helpers.nsys import LOST_AGENT

pytest.importorskip("torch", reason="recording needs torch")

import gpuscope
from gpuscope.instrumented_runtime.record.manifest import Manifest
from gpuscope.instrumented_runtime.record.run_folder import read_manifest

GUIDE = (Path(__file__).parents[3] / "docs/recording.md").read_text(encoding="utf-8")
SIZES = {
    "--nproc-per-node 8": "--nproc-per-node 2",
    "--ntasks-per-node 8": "--ntasks-per-node 2",
    "-np 16": "-np 2",
}
TRAIN = """
import os, time
import torch, torch.distributed as dist

def told(*names):
    return next((os.environ[name] for name in names if name in os.environ), None)

rank = told("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
size = told("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
os.environ.update(RANK=rank, WORLD_SIZE=size)
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", os.environ["FREE_PORT"])
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
begun, done, step = time.time(), torch.zeros(1), 0
while not done.item():
    model(torch.ones(8, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if "ENOUGH" in os.environ:  # until it is there
        time.sleep(0.02)
        done = torch.tensor([float(os.path.exists(os.environ["ENOUGH"]) or time.time() - begun > 100)])
        dist.all_reduce(done)
    else:
        done += step >= 14
dist.destroy_process_group()
"""


def has_slurm() -> bool:
    try:
        return shutil.which("srun") is not None and b"idle" in subprocess.run(["sinfo"], capture_output=True).stdout
    except OSError:
        return False


needs_mpirun = pytest.mark.skipif(shutil.which("mpirun") is None, reason=needs.MPIRUN)
needs_slurm = pytest.mark.skipif(not has_slurm(), reason=needs.SLURM)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def blocks(heading: str) -> list[str]:
    """The code blocks of a section or of a bold word's paragraph."""
    text = GUIDE.partition(heading)[2]
    text = re.split(r"\n(?:## |\*\*)", text)[0]
    return re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)


class Machine:
    """Runs a recipe's text in a folder that stands for the shared storage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "train.py").write_text(TRAIN)
        self.port = free_port()
        self.variables = {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HEAD": "127.0.0.1",
            "FREE_PORT": str(free_port()),
            "OMP_NUM_THREADS": "1",
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        }

    def text(self, recipe: str) -> str:
        for told, small in SIZES.items():
            recipe = recipe.replace(told, small)
        return recipe.replace("/shared", str(self.folder)).replace(":29500", f":{self.port}")

    def start(self, recipe: str, **variables: str) -> subprocess.Popen[str]:
        environment = {**os.environ, **self.variables, **variables}
        return subprocess.Popen(
            ["bash", "-c", self.text(recipe)],
            cwd=self.folder,
            env=environment,
            text=True,
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def run(self, recipe: str, **variables: str) -> None:
        for _ in range(3):
            process = self.start(recipe, **variables)
            _, err = process.communicate(timeout=150)
            if not any(words in err for words in LOST_AGENT):
                break
            shutil.rmtree(self.folder / "run", ignore_errors=True)
        assert process.returncode == 0, err


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def quick(machine: Machine, python: str, tmp_path: Path) -> Machine:
    """A machine whose torchrun starts in milliseconds."""
    (tmp_path / "bin").mkdir()
    torchrun = tmp_path / "bin/torchrun"
    torchrun.write_text(f'#!/bin/sh\nexec {python} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    machine.variables["PATH"] = f"{torchrun.parent}{os.pathsep}{machine.variables['PATH']}"
    return machine


def recorded(*runs: Path) -> list[int]:
    """The ranks whose traces are there, all with the same steps and matched collectives."""
    for run in runs:
        manifest: Manifest = read_manifest(run)
        assert manifest.status == "completed"
        assert not [problem for problem in manifest.problems if problem.severity != "info"]
    report: dict[str, Any] = dict(gpuscope.analyze(*runs, advice=False).report)
    ranks = report["trace"]["ranks_present"]
    assert report["trace"]["world_size"] == len(ranks)
    assert not [problem for problem in report["problems"] if "match" in problem["code"]]
    return list(ranks)


@pytest.mark.slow
def test_torchrun_on_two_nodes(quick: Machine, tmp_path: Path) -> None:
    (recipe,) = blocks("**torchrun**")
    nodes = []
    for node in ("first", "second"):
        here = tmp_path / node
        here.mkdir()
        (here / "hostname").write_text(f"#!/bin/sh\necho {node}\n")
        (here / "hostname").chmod(0o755)
        nodes.append(quick.start(recipe, PATH=f"{here}{os.pathsep}{quick.variables['PATH']}"))
    for process in nodes:
        _, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    assert recorded(tmp_path / "run.first", tmp_path / "run.second") == [0, 1, 2, 3]


@needs_mpirun
def test_mpirun(machine: Machine, tmp_path: Path) -> None:
    (recipe,) = blocks("**mpirun**")
    machine.run(recipe)
    assert recorded(tmp_path / "run") == [0, 1]


@needs_slurm
@pytest.mark.parametrize(("line", "run"), [(0, "run.0"), (1, "run")])
def test_slurm(machine: Machine, tmp_path: Path, line: int, run: str) -> None:
    (recipe,) = blocks("**Slurm**")
    recipes = recipe.replace("\\\n", " ").splitlines()
    machine.run(recipes[line])
    assert recorded(tmp_path / run) == [0, 1]


def test_kubeflow(quick: Machine, tmp_path: Path) -> None:
    """The container's command, in the environment that PyTorchJob gives the first pod."""
    (recipe,) = blocks("**Kubernetes")
    words = json.loads(recipe.partition("command:")[2])
    pod = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PET_NNODES": "1",
        "PET_NODE_RANK": "0",
        "HOSTNAME": "pod-0",
    }
    command = " ".join(words).replace("$(HOSTNAME)", pod["HOSTNAME"]).replace("/volume", "/shared")
    quick.run(command, **pod)
    assert recorded(tmp_path / "run-pod-0") == [0, 1]


Ask = Callable[[Machine, "subprocess.Popen[str]"], None]


def by_file(machine: Machine, job: subprocess.Popen[str]) -> None:
    del job
    (machine.folder / "run/record").touch()


def by_signal(machine: Machine, job: subprocess.Popen[str]) -> None:
    del machine
    job.send_signal(signal.SIGUSR2)  # to `gpuscope record`


def by_scancel(machine: Machine, job: subprocess.Popen[str]) -> None:
    del machine, job
    last = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()[0]
    subprocess.run(["scancel", "--signal=USR2", last], check=True)


@pytest.mark.parametrize(
    ("launcher", "ask"),
    [
        pytest.param("mpirun -np 2", by_file, marks=needs_mpirun),
        pytest.param("mpirun -np 2", by_signal, marks=needs_mpirun),
        pytest.param("srun --ntasks-per-node 2", by_file, marks=needs_slurm),
        pytest.param("srun --ntasks-per-node 2", by_scancel, marks=needs_slurm),
    ],
)
def test_a_window_on_demand(machine: Machine, tmp_path: Path, launcher: str, ask: Ask) -> None:
    recipe = blocks("## On demand")[0].splitlines()[0].partition("#")[0]
    recipe = "exec " + recipe.replace("srun --ntasks-per-node 8", launcher)
    job = machine.start(recipe, ENOUGH=str(tmp_path / "enough"))
    run = tmp_path / "run"
    try:
        _until(job, lambda: (run / "manifest.d/window.json").exists())
        ask(machine, job)
        _until(job, lambda: len(list(run.glob("window1/rank*.json.gz"))) == 2)
    finally:
        (tmp_path / "enough").touch()
        _, err = job.communicate(timeout=100)
    assert job.returncode == 0, err
    report = gpuscope.analyze(run / "window1", advice=False).report
    assert report["trace"]["ranks_present"] == [0, 1]


def _until(job: subprocess.Popen[str], true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not true():
        assert time.monotonic() < deadline
        assert job.poll() is None, job.communicate()
        time.sleep(0.2)


@pytest.mark.nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason=needs.NSYS)
@pytest.mark.parametrize(
    ("launcher", "options", "ranks"),
    [
        ("torchrun --standalone --nproc-per-node 2", "", [0, 1]),
        ("torchrun --standalone --nproc-per-node 2", "--ranks 1", [1]),
        pytest.param("mpirun -np 2", "", [0, 1], marks=needs_mpirun),
        pytest.param("srun --ntasks-per-node 2", "", [0, 1], marks=needs_slurm),
    ],
)
def test_nsys_around_the_chosen_ranks(
    machine: Machine, tmp_path: Path, launcher: str, options: str, ranks: list[int]
) -> None:
    script = "train.py" if launcher.startswith("torchrun") else "python train.py"
    machine.run(f"gpuscope record -o /shared/run --profiler nsys {options} -- {launcher} {script}")
    manifest = read_manifest(tmp_path / "run")
    reports = [entry for entry in manifest.files if entry.kind == "nsys"]
    assert [entry.rank for entry in reports] == ranks
    assert all((tmp_path / "run" / entry.path).stat().st_size > 10_000 for entry in reports)
    assert sorted(rank.rank for rank in manifest.ranks) == [0, 1]
