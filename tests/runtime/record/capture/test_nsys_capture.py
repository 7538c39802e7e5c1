"""Nsight Systems: its flags by version, and one report per rank without taking the command line apart."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import needs

from gpuscope.instrumented_runtime.record import nsys_capture
from gpuscope.instrumented_runtime.record.environment import TorchProfiler
from gpuscope.instrumented_runtime.record.nsys_capture import NsysRange, nsys_command, nsys_version
from gpuscope.instrumented_runtime.record.run_folder import RankFolder

Run = Callable[..., SimpleNamespace]

# Replaces nsys: prints its version, else writes its own arguments as a report and runs the command.
FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo "NVIDIA Nsight Systems version 2025.6.1.190-256136"; exit; fi
words="$*"
while [ "$1" != -o ]; do shift; done
report=$(echo "$2" | sed "s/%q{GPUSCOPE_RANK}/$GPUSCOPE_RANK/")
shift 2
echo "$words" > "$report.nsys-rep"
exec "$@"
"""


@pytest.fixture
def fake_nsys(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "nsys").write_text(FAKE)
    (folder / "nsys").chmod(0o755)
    return folder


@pytest.mark.parametrize(
    ("version", "trace"), [((2022, 4, 2), "cuda,nvtx,osrt"), ((2025, 6, 1), "cuda,nvtx,osrt,nccl")]
)
def test_flags_on_a_gpu(version: tuple[int, ...], trace: str) -> None:
    assert nsys_command("nsys", "rep.%q{RANK}", version=version, has_cuda=True) == [
        "nsys",
        "profile",
        "-t",
        trace,
        "-s",
        "none",
        "--cpuctxsw=none",
        "--cuda-graph-trace=node",
        "--cuda-memory-usage=true",
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
        "-o",
        "rep.%q{RANK}",
    ]


def test_flags_without_a_gpu_wait_for_no_range() -> None:
    assert nsys_command("nsys", "rep", version=(2022, 4, 2), has_cuda=False) == [
        "nsys",
        "profile",
        "-t",
        "nvtx,osrt",
        "-s",
        "none",
        "--cpuctxsw=none",
        "-o",
        "rep",
    ]


def test_the_version_is_read_from_what_nsys_says(fake_nsys: Path) -> None:
    assert nsys_version(str(fake_nsys / "nsys")) == (2025, 6, 1)
    assert nsys_version(str(fake_nsys / "missing")) == ()


def test_each_rank_gets_a_report_of_its_own(
    record: Run, torchrun: tuple[str, ...], ddp_script: Path, fake_nsys: Path
) -> None:
    path = f"{fake_nsys}{os.pathsep}{os.environ['PATH']}"
    done = record("--profiler", "nsys", "--", *torchrun, ddp_script, PATH=path)
    assert done.code == 0, done.err
    reports = [(entry["rank"], entry["path"]) for entry in done.manifest["files"] if entry["kind"] == "nsys"]
    assert reports == [(0, "nsys/rep.0.nsys-rep"), (1, "nsys/rep.1.nsys-rep")]
    # Inside nsys runs the script itself, not another nsys.
    assert (done.folder / "nsys/rep.1.nsys-rep").read_text().split()[-1] == str(ddp_script)
    assert done.out.count("done") == 2


def test_an_nsys_around_is_refused(record: Run, fake_nsys: Path, python: str) -> None:
    around = {"NSYS_PROFILING_SESSION_ID": "7", "PATH": f"{fake_nsys}{os.pathsep}{os.environ['PATH']}"}
    refused = record("--profiler", "nsys", "--", python, "train.py", **around)
    assert (refused.code, "under nsys already" in refused.err, refused.manifest) == (2, True, None)


@pytest.mark.parametrize("gpu", [False, True])
def test_what_a_profiler_cannot_see_is_told_as_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool
) -> None:
    """torch.profiler in an nsys of the user's own sees no kernels; nsys sees nothing of a job on CPUs."""
    monkeypatch.setattr(nsys_capture, "has_cuda_device", lambda: gpu)
    monkeypatch.setenv("NSYS_PROFILING_SESSION_ID", "7")
    folder = RankFolder.join(tmp_path / "run", rank=1, world_size=2)
    for capture in (TorchProfiler(wait=1), NsysRange(wait=1, warmup=0, active=1)):
        capture.start(folder)
    told = [(problem.code, problem.severity) for problem in folder.part.problems]
    assert told == [("beside_nsys" if gpu else "no_gpu", "data_loss")]


def test_a_plain_script_is_rank_0(record: Run, fake_nsys: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    path = f"{fake_nsys}{os.pathsep}{os.environ['PATH']}"
    done = record("--profiler", "nsys", "--", sys.executable, script, PATH=path)
    assert (done.code, done.out) == (0, "ran\n"), done.err
    assert [entry["path"] for entry in done.manifest["files"]] == ["nsys/rep.0.nsys-rep"]


def test_the_active_steps_are_marked_for_nsys(run: Run, listener: Path, tmp_path: Path) -> None:
    script = """
from gpuscope.instrumented_runtime.record.nsys_capture import NsysRange
from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.record.run_folder import RankFolder
capture = NsysRange(wait=1, warmup=0, active=2)
capture.start(RankFolder.join("run", rank=0, world_size=1))
for step in range(5):
    with span("optimizer"):
        capture.step(step)  # ends a step inside a range of the script
capture.stop()
"""
    listened = tmp_path / "listened.txt"
    done = run(sys.executable, "-c", script, NVTX_INJECTION64_PATH=str(listener), NVTX_LISTENER_OUT=str(listened))
    assert done.code == 0, done.err
    lines = [line for line in listened.read_text().splitlines() if line.startswith(("start", "end"))]
    assert lines == [
        "start gpuscope step category=2 color=ff7f7f7f 1",
        "end gpuscope 1",
        "start gpuscope step category=2 color=ff7f7f7f 2",
        "end gpuscope 2",
    ]


@pytest.mark.nsys
@pytest.mark.skipif(shutil.which("nsys") is None, reason=needs.NSYS)
def test_a_real_nsys_writes_real_reports(record: Run, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('ran')")
    done = record("--profiler", "nsys", "--", sys.executable, script)
    assert done.code == 0, done.err
    assert (done.folder / "nsys/rep.0.nsys-rep").stat().st_size > 0
