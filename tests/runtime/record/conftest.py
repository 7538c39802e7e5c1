"""Processes for the tests of recording: a Python script alone, or two ranks of it under torchrun."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import needs
from helpers.warm_python import executable

pytest.importorskip("torch", reason="recording needs torch")

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
GPUSCOPE = (sys.executable, "-c", "from gpuscope.cli import main; main()")

Run = Callable[..., SimpleNamespace]


def run_in(folder: Path) -> Run:
    """`run(command…, **variables)` in a folder: its `code`, `out` and `err`."""

    def run(*command: str | Path, timeout: float = 90, **variables: str) -> SimpleNamespace:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **variables},
        )
        return SimpleNamespace(code=done.returncode, out=done.stdout, err=done.stderr)

    return run


def record_in(folder: Path) -> Run:
    """`record(options…, "--", command…, **variables)`: as `run`, with the run's `folder` and `manifest`."""

    def record(*words: str | Path, timeout: float = 90, **variables: str) -> SimpleNamespace:
        done = run_in(folder)(*GPUSCOPE, "record", "-o", "run", *words, timeout=timeout, **variables)
        done.folder = folder / "run"
        manifest = done.folder / "manifest.json"
        done.manifest = json.loads(manifest.read_text()) if manifest.exists() else None
        return done

    return record


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """`run_in` the test's own folder."""
    return run_in(tmp_path)


@pytest.fixture
def record(tmp_path: Path) -> Run:
    """`record_in` the test's own folder."""
    return record_in(tmp_path)


@pytest.fixture(scope="session")
def python() -> str:
    """A Python that starts a recorded script in milliseconds; `sys.executable` where its very start is tested."""
    return executable()


@pytest.fixture
def torchrun(python: str) -> tuple[str, ...]:
    """The words that start a script on two ranks."""
    return (python, *TORCHRUN[1:])


@pytest.fixture
def ddp_script(tmp_path: Path) -> Path:
    """`DDP` as a file."""
    script = tmp_path / "train.py"
    script.write_text(DDP)
    return script


@pytest.fixture(scope="session")
def healthy_run(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """`DDP` on two ranks under `gpuscope record`, three steps of it recorded; started once for all who look at it.

    They share a worker of xdist: `pytest.mark.xdist_group("healthy_run")`.
    """
    folder = tmp_path_factory.mktemp("healthy")
    script = folder / "train.py"
    script.write_text(DDP)
    done = record_in(folder)("--wait", "1", "--active", "3", "--", *TORCHRUN, script)
    assert done.code == 0, done.err
    done.script = script
    return done


DDP = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank, fail = dist.get_rank(), os.environ.get("FAIL")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(10):
    model(torch.ones(8, 64)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 6 and rank == 1 and fail == "once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        sys.exit(3)
    if step == 6 and rank == 1 and fail == "exception":
        raise RuntimeError("boom")
    if step == 6 and rank == 1 and fail == "kill":
        os.kill(os.getpid(), 9)
    if step == 6 and rank == 1 and fail in ("hang", "pause"):
        while '"hang"' not in open("run/manifest.d/rank0.json").read(): time.sleep(0.1)
        if fail == "hang": os.kill(os.getpid(), 9)
    if step == 8 and rank == 1 and fail == "pause":
        time.sleep(3)
    if step == 6 and fail == "wait":
        os.write(1, b"waiting" + os.linesep.encode())  # at once: print writes the end of the line by itself
        time.sleep(60)
print("done", rank)
dist.destroy_process_group()
"""
"""Ten steps of DDP over gloo on any number of ranks; FAIL says how rank 1 ends in step 6."""


@pytest.fixture(scope="session")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tool that listens to NVTX, compiled from the C file beside this one."""
    pytest.importorskip("nvtx")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip(needs.C_COMPILER)
    library = tmp_path_factory.mktemp("nvtx") / "listener.so"
    source = Path(__file__).with_name("nvtx_listener.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    return library
