"""Micro-benchmark of collectives: time, algbw and busbw per size, as nccl-tests reports them."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from gpuscope.collective_costs.bus_bandwidth import algbw, busbw
from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.bench.processes import default_backend, run_processes
from gpuscope.instrumented_runtime.bench.tested_collectives import OPERATIONS, Prepared
from gpuscope.schema.bench_documents import BenchCollectives, CollectiveRow

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int32,
}


@dataclass(frozen=True)
class CollectiveOptions:
    """What to measure. `sizes` are bytes of the whole array, rounded down to whole elements per rank."""

    ops: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = (1024, 1024**2)
    iterations: int = 20
    warmup: int = 5
    dtype: str = "float32"
    check: bool = True

    def __post_init__(self) -> None:
        unknown = [op for op in self.ops if op not in OPERATIONS]
        if unknown:
            raise UsageError(f"unknown operation {unknown[0]!r}", hint=f"--op takes {', '.join(OPERATIONS)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"unknown --dtype {self.dtype!r}", hint=f"it takes {', '.join(DTYPES)}")
        if self.iterations < 1 or self.warmup < 0:
            raise UsageError("--iterations must be at least 1 and --warmup at least 0")


def run(options: CollectiveOptions, nprocs: int, backend: str | None = None) -> BenchCollectives | None:
    """Measure on `nprocs` processes started here, or as one rank of a launcher's job.

    None on every rank but the first of a launcher's job. Raises `UsageError` for fewer than two ranks and
    for a backend this machine lacks, `GpuscopeError` when a rank fails.
    """
    if nprocs < 2:
        raise UsageError(f"a collective needs at least two ranks, not {nprocs}", hint="give --nproc 2 or more")
    return run_processes(measure, nprocs, backend or default_backend(), options)


def measure(options: CollectiveOptions) -> BenchCollectives:
    """Measure inside a process group that is already set up; every rank takes part and gets the report."""
    if dist.get_world_size() < 2:
        raise UsageError("a collective needs at least two ranks", hint="start two or more")
    backend = dist.get_backend()
    on_gpu = backend == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
    rows = [_row(op, size, options, device) for op in options.ops for size in options.sizes]
    return BenchCollectives(
        backend=backend,
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        world_size=dist.get_world_size(),
        torch_version=torch.__version__,
        nccl_version=_nccl_version() if on_gpu else None,
        iterations=options.iterations,
        warmup=options.warmup,
        rows=tuple(rows),
    )


def _nccl_version() -> str:
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _row(op: str, size: int, options: CollectiveOptions, device: torch.device) -> CollectiveRow:
    dtype, n = DTYPES[options.dtype], dist.get_world_size()
    # A whole number of elements per rank, and at least one.
    count = max(1, size // dtype.itemsize // n) * n
    prepared = OPERATIONS[op](count, dtype, device)
    wrong = _count_wrong(prepared, device) if options.check else None
    times = _over_ranks(average_ns(prepared, options, device), device)
    nbytes, mean = count * dtype.itemsize, sum(times) / n
    return CollectiveRow(
        op=op,
        ranks=n,
        nbytes=nbytes,
        count=count,
        dtype=options.dtype,
        time_ns=round(mean),
        fastest_rank_ns=min(times),
        slowest_rank_ns=max(times),
        algbw_gbps=algbw(nbytes, mean),
        busbw_gbps=busbw(op, nbytes, mean, n),
        wrong=wrong,
    )


def average_ns(prepared: Prepared, options: CollectiveOptions, device: torch.device) -> int:
    """ns of one call on this rank, the mean of `options.iterations` after a warm-up."""
    prepared.reset(False)
    for _ in range(options.warmup):
        prepared.call()
    _synchronize(device)
    start = time.perf_counter_ns()
    for _ in range(options.iterations):
        prepared.call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return (time.perf_counter_ns() - start) // options.iterations


def _count_wrong(prepared: Prepared, device: torch.device) -> int:
    prepared.reset(True)
    prepared.call()
    total = torch.tensor([prepared.wrong()], dtype=torch.int64, device=device)
    dist.all_reduce(total)
    return int(total.item())


def _over_ranks(value: int, device: torch.device) -> list[int]:
    values = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(values, torch.tensor([value], dtype=torch.int64, device=device))
    return [int(one.item()) for one in values]


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
