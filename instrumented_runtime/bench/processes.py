"""Runs a function on several processes in one process group and returns rank 0's result."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.instrumented_runtime.train.mesh import leave_world

T = TypeVar("T")


def default_backend() -> str:
    """NCCL with a CUDA device, else gloo."""
    return "nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def check_backend(backend: str, nprocs: int) -> None:
    """Raise before starting any process if this machine can't run the backend with so many."""
    if nprocs < 1:
        raise UsageError(f"--nproc must be at least 1, not {nprocs}")
    if backend == "nccl" and not torch.cuda.is_available():
        raise UsageError("the nccl backend needs a CUDA device, and torch sees none", hint="use --backend gloo")
    if backend == "nccl" and nprocs > torch.cuda.device_count():
        raise UsageError(
            f"--nproc {nprocs} is more than the {torch.cuda.device_count()} CUDA devices of this machine",
            hint="use fewer processes or --backend gloo",
        )


def under_torchrun() -> bool:
    """Whether a launcher has already started this process as one of many."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_processes(
    function: Callable[..., T], nprocs: int, backend: str, *args: Any, limit_s: float | None = None
) -> T | None:
    """`function(*args)` on every rank of a process group; rank 0's result.

    Under a launcher (torchrun) this process is one of the ranks, and all but rank 0 get None. Otherwise
    `nprocs` processes are started here. `function` must be importable (a module's own function) and its
    result picklable. Raises `GpuscopeError` with the cause when a rank fails, and when they take longer than
    `limit_s`, at which they are killed.
    """
    if under_torchrun():
        return _joined(function, backend, args)
    check_backend(backend, nprocs)
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as folder:
        try:
            start: Callable[..., Any] = spawn
            started = start(_worker, (nprocs, backend, folder, function, args), nprocs=nprocs, join=False)
            _ended(started, limit_s)
        except ProcessRaisedException as error:
            cause = str(error).strip().rsplit("\n", 1)[-1]
            raise GpuscopeError(f"rank {error.error_index} failed: {cause}") from error
        except ProcessExitedException as error:
            raise GpuscopeError(f"rank {error.error_index} exited without an error message: {error}") from error
        # Written by our own rank 0, in a folder only this user can read.
        result: T = pickle.loads(Path(folder, "result.pkl").read_bytes())
        return result


def _ended(started: Any, limit_s: float | None) -> None:
    """Wait for all ranks; the first that fails ends the others."""
    end = None if limit_s is None else time.monotonic() + limit_s
    while not started.join(None if end is None else max(0.0, end - time.monotonic())):
        if end is not None and time.monotonic() >= end:
            for process in started.processes:
                process.kill()
            for process in started.processes:
                process.join()
            raise GpuscopeError(f"not done after {limit_s:.0f} s")


def _joined(function: Callable[..., T], backend: str, args: tuple[Any, ...]) -> T | None:
    if backend == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend)
    try:
        result = function(*args)
        return result if dist.get_rank() == 0 else None
    finally:
        leave_world()


def _worker(
    rank: int, nprocs: int, backend: str, folder: str, function: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    # Ranks that share the cores would otherwise each start a thread per core.
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // nprocs))
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=nprocs,
        timeout=timedelta(minutes=5),
    )
    try:
        result = function(*args)
        if rank == 0:
            Path(folder, "result.pkl").write_bytes(pickle.dumps(result))
        dist.barrier()
    finally:
        leave_world()
