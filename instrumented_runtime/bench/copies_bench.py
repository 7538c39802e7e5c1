"""Bandwidth of copies: host to device and back, within a device, between devices; host memory without a GPU.

`bandwidth_gbps` is bytes copied over time. A copy within one memory reads and writes every byte, so the
memory's traffic is twice that: `traffic_gbps`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from gpuscope.collective_costs.bus_bandwidth import algbw
from gpuscope.errors import UsageError
from gpuscope.hardware.link_rates import gpu_pcie
from gpuscope.schema.bench_documents import BenchTransfers, TransferRow
from gpuscope.words import units


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


def measure(nbytes: int, iterations: int = 20, warmup: int = 3) -> BenchTransfers:
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
