"""Scaling efficiency: the demo trainer's throughput on 1 to n processes of this machine.

Efficiency is throughput(n) / (n × throughput(1)); if one process was not measured, the smallest
number is the reference. Weak scaling keeps the batch of each process, strong scaling the sum.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import torch
import torch.distributed as dist

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.bench.options import ScalingOptions, plan
from gpuscope.instrumented_runtime.bench.processes import default_backend, run_processes, under_torchrun
from gpuscope.instrumented_runtime.train.mesh import World
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallelism import Degrees
from gpuscope.instrumented_runtime.train.trainer import Trainer
from gpuscope.schema.bench_documents import BenchScaling, ScalingRow

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
