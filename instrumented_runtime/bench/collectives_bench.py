"""Micro-benchmark of collectives: time, algbw and busbw per size, as nccl-tests reports them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor
from torch import distributed as dist

from gpuscope.collective_costs.bus_bandwidth import algbw, busbw
from gpuscope.errors import UsageError
from gpuscope.hardware.link_rates import gpu_pcie
from gpuscope.instrumented_runtime.bench.processes import default_backend, run_processes
from gpuscope.instrumented_runtime.bench.topology_links import CollectiveOptions, check_ranks
from gpuscope.schema.bench_documents import BenchCollectives, BenchTransfers, CollectiveRow, TransferRow
from gpuscope.words import units

# The collectives under test: how each is set up for a total size, called, and checked.
#
# An operation gets the number of elements of the whole array, as in nccl-tests: the output of an all-gather,
# the input of a reduce-scatter, what a rank sends in an all-to-all.


@dataclass(frozen=True)
class Prepared:
    """One operation on its buffers. `call` runs it; `wrong` counts the elements that came out wrong."""

    call: Callable[[], object]
    reset: Callable[[bool], object]
    wrong: Callable[[], int]


Prepare = Callable[[int, torch.dtype, torch.device], Prepared]


def _tested_collectives_prepared(
    call: Callable[[], object], sent: Tensor, value: int, received: Tensor, expected: float | Tensor
) -> Prepared:
    """A call that makes `expected` of `received` where `sent` is filled with `value`."""
    # Timed on zeros: sums of zeros stay finite over any number of iterations.
    return Prepared(
        call,
        reset=lambda checking: sent.fill_(value if checking else 0),
        wrong=lambda: int((received != expected).sum().item()),
    )


def _ranks() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def all_reduce(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    data = torch.empty(count, dtype=dtype, device=device)
    return _tested_collectives_prepared(lambda: dist.all_reduce(data), data, rank + 1, data, n * (n + 1) // 2)


def all_gather(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    function = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    mine = torch.empty(count // n, dtype=dtype, device=device)
    whole = torch.empty(count, dtype=dtype, device=device)
    by_rank = torch.arange(1, n + 1, dtype=dtype, device=device).unsqueeze(1)
    return _tested_collectives_prepared(lambda: function(whole, mine), mine, rank + 1, whole.view(n, -1), by_rank)


def reduce_scatter(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    function = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    whole = torch.empty(count, dtype=dtype, device=device)
    mine = torch.empty(count // n, dtype=dtype, device=device)
    return _tested_collectives_prepared(lambda: function(mine, whole), whole, rank + 1, mine, n * (n + 1) // 2)


def all_to_all(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, n = _ranks()
    outgoing = torch.empty(count, dtype=dtype, device=device)
    incoming = torch.empty(count, dtype=dtype, device=device)
    by_rank = torch.arange(1, n + 1, dtype=dtype, device=device).unsqueeze(1)
    return _tested_collectives_prepared(
        lambda: dist.all_to_all_single(incoming, outgoing), outgoing, rank + 1, incoming.view(n, -1), by_rank
    )


def broadcast(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    rank, _ = _ranks()
    data = torch.empty(count, dtype=dtype, device=device)
    return _tested_collectives_prepared(lambda: dist.broadcast(data, src=0), data, rank + 1, data, 1)


def send_recv(count: int, dtype: torch.dtype, device: torch.device) -> Prepared:
    """A ring: every rank sends to the next and receives from the one before, as `sendrecv_perf` does."""
    rank, n = _ranks()
    outgoing = torch.empty(count, dtype=dtype, device=device)
    incoming = torch.empty(count, dtype=dtype, device=device)

    def call() -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, outgoing, (rank + 1) % n),
                dist.P2POp(dist.irecv, incoming, (rank - 1) % n),
            ]
        )
        for work in works:
            work.wait()

    return _tested_collectives_prepared(call, outgoing, rank + 1, incoming, (rank - 1) % n + 1)


OPERATIONS: Mapping[str, Prepare] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "send_recv": send_recv,
}


# Bandwidth of copies: host to device and back, within a device, between devices; host memory without a GPU.
#
# `bandwidth_gbps` is bytes copied over time. A copy within one memory reads and writes every byte, so the
# memory's traffic is twice that: `traffic_gbps`.


@dataclass(frozen=True)
class _Copy:
    kind: str
    source: str
    target: str
    run: Callable[[], object]
    settle: Callable[[], object]
    same_memory: bool = False
    peak: float | None = None
    note: str = ""


NO_GPU = "no GPU: these are copies within host memory, not host-device transfers"


def copies_bench_measure(nbytes: int, iterations: int = 20, warmup: int = 3) -> BenchTransfers:
    """Measure every kind of copy that this machine can make, `nbytes` each.

    Raises `UsageError` for a size or number of iterations below one.
    """
    if nbytes < 1 or iterations < 1 or warmup < 0:
        raise UsageError("--size and --iterations must be at least 1")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    copies = _device_copies(nbytes, count) if count else _host_copies(nbytes)
    return BenchTransfers(
        devices=tuple(torch.cuda.get_device_name(i) for i in range(count)),
        torch_version=torch.__version__,
        threads=torch.get_num_threads(),
        rows=tuple(_time(copy, nbytes, iterations, warmup) for copy in copies),
        note="" if count else NO_GPU,
    )


def _time(copy: _Copy, nbytes: int, iterations: int, warmup: int) -> TransferRow:
    for _ in range(warmup):
        copy.run()
    copy.settle()
    times = []
    for _ in range(iterations):
        start = time.perf_counter_ns()
        copy.run()
        copy.settle()
        times.append(time.perf_counter_ns() - start)
    typical = median(times)
    bandwidth = algbw(nbytes, typical)
    return TransferRow(
        kind=copy.kind,
        source=copy.source,
        target=copy.target,
        nbytes=nbytes,
        time_ns=round(typical),
        bandwidth_gbps=bandwidth,
        traffic_gbps=bandwidth * (2 if copy.same_memory else 1),
        peak_gbps=copy.peak,
        note=copy.note,
    )


def _bytes(nbytes: int, device: str = "cpu", pinned: bool = False) -> Tensor:
    # Written once, so that every page is mapped before the first copy is timed.
    return torch.zeros(nbytes, dtype=torch.uint8, device=device, pin_memory=pinned)


def _host_copies(nbytes: int) -> Iterator[_Copy]:
    source, target = _bytes(nbytes), _bytes(nbytes)
    threads = torch.get_num_threads()
    yield _Copy(
        kind="host_memcpy",
        source="cpu",
        target="cpu",
        run=lambda: target.copy_(source),
        settle=lambda: None,
        same_memory=True,
        note=units.plural(threads, "thread"),
    )


def _device_copies(nbytes: int, count: int) -> Iterator[_Copy]:
    for index in range(count):
        yield from _copies_of_device(nbytes, index)
    for a in range(count):
        for b in range(count):
            if a != b:
                yield _between_devices(nbytes, a, b)


def _copies_of_device(nbytes: int, index: int) -> Iterator[_Copy]:
    name = f"cuda:{index}"
    link = gpu_pcie(torch.cuda.get_device_name(index))
    peak = link.peak if link else None
    on_device = _bytes(nbytes, name)

    def settle() -> None:
        torch.cuda.synchronize(index)

    for pinned in (True, False):
        host = _bytes(nbytes, pinned=pinned)
        memory = "pinned" if pinned else "pageable"
        into, out_of = _directions(on_device, host)
        yield _Copy("host_to_device", f"cpu ({memory})", name, into, settle, peak=peak, note=memory)
        yield _Copy("device_to_host", name, f"cpu ({memory})", out_of, settle, peak=peak, note=memory)
    other = torch.empty_like(on_device)
    yield _Copy("device_memcpy", name, name, lambda: other.copy_(on_device), settle, same_memory=True)


def _directions(device: Tensor, host: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    return lambda: device.copy_(host, non_blocking=True), lambda: host.copy_(device, non_blocking=True)


def _between_devices(nbytes: int, a: int, b: int) -> _Copy:
    source, target = _bytes(nbytes, f"cuda:{a}"), _bytes(nbytes, f"cuda:{b}")

    def settle() -> None:
        torch.cuda.synchronize(a)
        torch.cuda.synchronize(b)

    note = "peer access" if torch.cuda.can_device_access_peer(a, b) else "through the host: no peer access"
    return _Copy("peer", f"cuda:{a}", f"cuda:{b}", lambda: target.copy_(source), settle, note=note)


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
