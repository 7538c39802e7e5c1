"""Nsight Systems around each rank: one report per rank, opened and closed by cudaProfilerStart/Stop.

A rank that starts outside nsys re-executes itself inside it, so any launcher works and no torchrun command
line has to be parsed. Light to import: see `unchanged_script`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.capture_options import options_from
from gpuscope.instrumented_runtime.record.launched_rank import launched_rank

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.record.run_folder import RankFolder

ENV_INSIDE = "GPUSCOPE_INSIDE_NSYS"
ENV_RANK = "GPUSCOPE_RANK"
REPORT = f"rep.%q{{{ENV_RANK}}}"


def nsys_command(nsys: str, output: str, *, version: tuple[int, ...], has_cuda: bool, whole: bool = False) -> list[str]:
    """The `nsys profile …` that goes before a rank's own command.

    Kernels of CUDA graphs one by one, no sampling (it costs much and shows little here), allocations, NVTX, and
    NCCL's own trace from 2025.6. Without a GPU there is no cudaProfilerStart to wait for.
    """
    trace = ["cuda", "nvtx", "osrt"] if has_cuda else ["nvtx", "osrt"]
    if has_cuda and version >= (2025, 6):
        trace.append("nccl")
    command = [nsys, "profile", "-t", ",".join(trace), "-s", "none", "--cpuctxsw=none"]
    if has_cuda:
        command += ["--cuda-graph-trace=node", "--cuda-memory-usage=true"]
        if not whole:
            command += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    return [*command, "-o", output]


def nsys_version(nsys: str) -> tuple[int, ...]:
    """(2024, 6, 2) of «NVIDIA Nsight Systems version 2024.6.2.225-…»; () if unknown."""
    try:
        answer = subprocess.run([nsys, "--version"], capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found = re.search(r"version\s+(\d+)\.(\d+)\.(\d+)", answer)
    return tuple(int(part) for part in found.groups()) if found else ()


def has_cuda_device() -> bool:
    """Whether this machine has an NVIDIA driver with a device, found without starting CUDA."""
    return any(Path("/dev").glob("nvidia[0-9]*"))


def enter_nsys() -> None:
    """Re-execute this process under nsys, if it is a rank that should run there and does not yet."""
    options = json.loads(os.environ.get("GPUSCOPE_RECORD", "{}"))
    launched = launched_rank()
    if options.get("profiler") != "nsys" or ENV_INSIDE in os.environ or launched is None:
        return
    if not options_from().profiles(launched.rank):
        return
    os.environ[ENV_INSIDE] = "1"
    os.environ[ENV_RANK] = str(launched.rank)
    folder = Path(os.environ["GPUSCOPE_RUN_FOLDER"])
    own = [sys.executable, *sys.orig_argv[1:]]
    command = command_under_nsys(own, folder, whole=bool(options.get("whole")))
    sys.stdout.flush()
    os.execvp(command[0], command)


def command_under_nsys(command: Sequence[str], folder: Path, *, whole: bool) -> list[str]:
    """`command` of one rank under nsys, its report in the run folder."""
    nsys = shutil.which("nsys") or "nsys"
    # A rank restarted by torchrun must not meet the report of its previous run.
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    output = folder / "nsys" / (f"restart{restart}.{REPORT}" if restart else REPORT)
    output.parent.mkdir(exist_ok=True)
    profile = nsys_command(nsys, str(output), version=nsys_version(nsys), has_cuda=has_cuda_device(), whole=whole)
    return [*profile, *command]


def nsys_around(environment: Mapping[str, str]) -> bool:
    """Whether this process runs under an nsys that somebody else started."""
    return "NSYS_PROFILING_SESSION_ID" in environment and ENV_INSIDE not in environment


def reports(folder: Path) -> list[tuple[Path, int | None]]:
    """The reports in a run folder, each with its rank."""
    found = sorted((folder / "nsys").glob("*.nsys-rep"))
    ranks = (path.name.split(".")[-2] for path in found)
    return [(path, int(rank) if rank.isdigit() else None) for path, rank in zip(found, ranks, strict=True)]


class NsysRange:
    """Opens nsys's capture range after the warm-up, closes it after the active steps, and marks these.

    With `whole` nsys records everything, and every step is marked.
    """

    name = "nsys"

    def __init__(self, *, wait: int, warmup: int, active: int, whole: bool = False) -> None:
        self._first, self._last = wait + warmup, wait + warmup + active - 1
        self._whole = whole
        self._open = False
        self._step_range: Any = None

    def start(self, folder: RankFolder) -> None:
        """Open at once if no step is skipped."""
        from gpuscope.instrumented_runtime.record.nvtx_domain import connect

        if not has_cuda_device():
            blind = "nsys sees no GPU here, and records no operators: gpuscope record --profiler torch"
            folder.problem("no_gpu", blind, severity="data_loss")
        if "GPUSCOPE_RECORD" in os.environ and ENV_INSIDE not in os.environ:
            raise InputError(
                "nsys does not record this process: it started without a rank in its environment",
                hint="start the ranks with torchrun, mpirun or srun, or record with --profiler torch",
            )
        self._nvtx = connect()
        if self._first == 0:
            self._begin()
        self._mark(0)

    def step(self, step: int) -> None:
        """Open before the first active step, close after the last one."""
        self._unmark()
        if step + 1 == self._first:
            self._begin()
        elif step == self._last:
            self._end()
        self._mark(step + 1)

    def stop(self) -> None:
        """Close if the script ended early."""
        self._unmark()
        self._end()

    def _mark(self, step: int) -> None:
        if self._nvtx is not None and (self._whole or self._first <= step <= self._last):
            # Started and ended, not pushed and popped: a step may end inside a range of the script's.
            self._step_range = self._nvtx.start("step", {"step": step})

    def _unmark(self) -> None:
        if self._nvtx is not None and self._step_range is not None:
            self._nvtx.end(self._step_range)
            self._step_range = None

    def _begin(self) -> None:
        import torch

        if torch.cuda.is_available() and not self._whole:
            torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
            self._open = True

    def _end(self) -> None:
        if self._open:
            import torch

            torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]
            self._open = False
