"""Runs a function on several processes in one process group and returns rank 0's result."""

from __future__ import annotations

import os
import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import distributed as dist
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from gpuscope.errors import GpuscopeError, UsageError
from gpuscope.instrumented_runtime.bench.topology_links import ScalingOptions, plan
from gpuscope.instrumented_runtime.train.mesh import World, leave_world
from gpuscope.instrumented_runtime.train.settings.config import Degrees, TrainConfig
from gpuscope.instrumented_runtime.train.trainer import Trainer
from gpuscope.schema.bench_documents import BenchScaling, ScalingRow

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


# Scaling efficiency: the demo trainer's throughput on 1 to n processes of this machine.
#
# Efficiency is throughput(n) / (n × throughput(1)); if one process was not measured, the smallest
# number is the reference. Weak scaling keeps the batch of each process, strong scaling the sum.

SHARED_CPU = (
    "the processes share one CPU, its caches and its memory, so this shows the software's share of the loss "
    "and the machine's limits together"
)


def measure(options: ScalingOptions) -> BenchScaling:
    """Train on each number of processes in turn. Raises `UsageError` for invalid options."""
    if under_torchrun():
        raise UsageError("scaling starts its own processes", hint="run it without torchrun")
    plans = [(n, *plan(options, n)) for n in options.nprocs]  # every check before the first run
    backend = default_backend()
    # The same threads at every size, or one process would have all cores and n processes a share each.
    threads = max(1, (os.cpu_count() or 1) // options.nprocs[-1])
    timed = []
    for n, config, degrees in plans:
        step_ns = run_processes(time_steps, n, backend, config, degrees, options.warmup, threads)
        assert step_ns is not None  # only other ranks of a launcher's job get None
        timed.append((n, degrees.describe(), tokens_per_step(config, degrees), step_ns))
    return BenchScaling(
        parallel=options.parallel,
        preset=options.preset,
        scaling="strong" if options.strong else "weak",
        device="cuda" if backend == "nccl" else "cpu",
        threads_per_process=threads,
        rows=rows(timed),
        note="" if backend == "nccl" else SHARED_CPU,
    )


def tokens_per_step(config: TrainConfig, degrees: Degrees) -> int:
    """Tokens that all ranks together train on in one optimizer step."""
    sequences = config.data.batch * degrees.data_ranks * config.train.accumulate
    return sequences * config.data.sequence


def rows(timed: Sequence[tuple[int, str, int, int]]) -> tuple[ScalingRow, ...]:
    """From (processes, mesh, tokens per step, ns per step), smallest first, to rows with the efficiency."""
    base_n, _, base_tokens, base_ns = timed[0]
    base = base_tokens / base_ns / base_n  # throughput of one process
    result = []
    for n, mesh, tokens, ns in timed:
        speedup = tokens / ns / base
        result.append(ScalingRow(n, mesh, tokens, ns, tokens / ns * 1e9, speedup, speedup / n))
    return tuple(result)


def time_steps(config: TrainConfig, degrees: Degrees, warmup: int, threads: int) -> int:
    """Train inside a process group; ns per step after the warm-up, of the slowest rank."""
    torch.set_num_threads(threads)
    on_gpu = dist.get_backend() == "nccl"
    rank = dist.get_rank()
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    trainer = Trainer(config, World(rank, dist.get_world_size(), rank, device, dist.get_backend()), degrees)
    ends: list[int] = []

    def after_step(_: object) -> None:
        # Synchronises the device only when the clock is read: after the warm-up and after the last step.
        if on_gpu and len(ends) + 1 in (warmup, config.train.steps):
            torch.cuda.synchronize(device)
        ends.append(time.perf_counter_ns())

    trainer.run(after_step)
    spent = torch.tensor([ends[-1] - ends[warmup - 1]], dtype=torch.int64, device=device)
    dist.all_reduce(spent, dist.ReduceOp.MAX)
    return int(spent.item()) // (config.train.steps - warmup)
