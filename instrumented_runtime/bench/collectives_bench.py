"""Micro-benchmark of collectives: time, algbw and busbw per size, as nccl-tests reports them."""

from __future__ import annotations

import sys
import time

import torch
import torch.distributed as dist

from gpuscope.collective_costs.bus_bandwidth import algbw, busbw
from gpuscope.instrumented_runtime.bench.options import CollectiveOptions, check_ranks
from gpuscope.instrumented_runtime.bench.processes import default_backend, run_processes
from gpuscope.instrumented_runtime.bench.tested_collectives import OPERATIONS, Prepared
from gpuscope.schema.bench_documents import BenchCollectives, CollectiveRow
from gpuscope.words import units


def run(options: CollectiveOptions, nprocs: int, backend: str | None = None) -> BenchCollectives | None:
    """Measure on `nprocs` processes started here, or as one rank of a launcher's job.

    None on every rank but the first of a launcher's job. Raises `UsageError` for fewer than two ranks and
    for a backend this machine lacks, `GpuscopeError` when a rank fails.
    """
    check_ranks(nprocs)
    return run_processes(_measure_announced, nprocs, backend or default_backend(), options)


def _measure_announced(options: CollectiveOptions) -> BenchCollectives:
    check_ranks(dist.get_world_size())
    estimate = expected_ns(options, _device())
    if dist.get_rank() == 0:
        what = f"{units.plural(len(options.ops), 'operation')} × {units.plural(len(options.sizes), 'size')}"
        print(f"gpuscope: {what}: about {units.long_duration(estimate)}", file=sys.stderr, flush=True)
    return measure(options)


def expected_ns(options: CollectiveOptions, device: torch.device) -> float:
    """How long `measure` will take, from one call of each operation at its smallest and its largest size; between them
    a call's time is taken to grow with its bytes. Every rank takes part."""
    least, most = min(options.sizes), max(options.sizes)
    once = CollectiveOptions(iterations=1, warmup=1)
    calls = options.iterations + options.warmup + options.check
    total = 0.0
    for op in options.ops:
        first, last = (average_ns(_prepared(op, size, options, device), once, device) for size in (least, most))
        slope = (last - first) / (most - least) if most > least else 0.0
        total += calls * sum(max(0.0, first + slope * (size - least)) for size in options.sizes)
    return total


def measure(options: CollectiveOptions) -> BenchCollectives:
    """Measure inside a process group that is already set up; every rank takes part and gets the report."""
    check_ranks(dist.get_world_size())
    backend, device = dist.get_backend(), _device()
    on_gpu = backend == "nccl"
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


def _device() -> torch.device:
    on_gpu = dist.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")


def _count(size: int, dtype: torch.dtype) -> int:
    """A whole number of elements per rank, and at least one."""
    n = dist.get_world_size()
    return max(1, size // dtype.itemsize // n) * n


def _prepared(op: str, size: int, options: CollectiveOptions, device: torch.device) -> Prepared:
    dtype: torch.dtype = getattr(torch, options.dtype)
    return OPERATIONS[op](_count(size, dtype), dtype, device)


def _row(op: str, size: int, options: CollectiveOptions, device: torch.device) -> CollectiveRow:
    dtype: torch.dtype = getattr(torch, options.dtype)
    n, count = dist.get_world_size(), _count(size, dtype)
    prepared = _prepared(op, size, options, device)
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
