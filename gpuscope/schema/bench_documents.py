"""What the tools of `gpuscope bench` measure and print with `--json`. Times are ns, sizes bytes, bandwidths GB/s (1e9
bytes)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, field
from typing import Any, Literal

from gpuscope.hardware.link_rates import Link
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class BenchDocument:
    """What all of them have."""

    schema_version: int = field(default=1, init=False)
    tool: str = field(init=False)

    def as_json(self) -> dict[str, Any]:
        """The document of `--json`."""
        return asdict(self)


@dataclass(frozen=True)
class CollectiveRow:
    """One operation at one size."""

    op: str
    ranks: int
    nbytes: int
    """Of the whole array, as nccl-tests counts it."""
    count: int
    """Elements."""
    dtype: str
    time_ns: int
    """One call: the average over iterations, and then over ranks."""
    fastest_rank_ns: int
    slowest_rank_ns: int
    algbw_gbps: float | None
    busbw_gbps: float | None
    """Bus bandwidth as nccl-tests defines it."""
    wrong: int | None
    """Elements that came out wrong on any rank; null where not checked."""


@dataclass(frozen=True)
class BenchCollectives(BenchDocument):
    """`gpuscope bench collectives`."""

    tool: Literal["collectives"] = field(default="collectives", init=False)
    backend: str
    device: str
    world_size: int
    torch_version: str
    nccl_version: str | None
    iterations: int
    warmup: int
    rows: tuple[CollectiveRow, ...]


@dataclass(frozen=True)
class TransferRow:
    """One direction at one size."""

    kind: str
    source: str
    target: str
    nbytes: int
    time_ns: int
    """The median of the copies."""
    bandwidth_gbps: float | None
    traffic_gbps: float | None
    """What passes over the memory: a copy within it reads and writes."""
    peak_gbps: float | None
    """The link's, where known."""
    note: str


@dataclass(frozen=True)
class BenchTransfers(BenchDocument):
    """`gpuscope bench transfers`."""

    tool: Literal["transfers"] = field(default="transfers", init=False)
    devices: tuple[str, ...]
    """Empty where only host memory could be measured."""
    torch_version: str
    threads: int
    rows: tuple[TransferRow, ...]
    note: str


@dataclass(frozen=True)
class ScalingRow:
    """One number of processes."""

    processes: int
    mesh: str
    tokens_per_step: int
    step_ns: int
    """The mean over the timed steps, of the slowest rank."""
    tokens_per_s: float | None
    speedup: float | None
    efficiency: float | None


@dataclass(frozen=True)
class BenchScaling(BenchDocument):
    """`gpuscope bench scaling`."""

    tool: Literal["scaling"] = field(default="scaling", init=False)
    parallel: str
    preset: str
    scaling: str
    device: str
    threads_per_process: int
    rows: tuple[ScalingRow, ...]
    note: str


@dataclass(frozen=True)
class PairRow:
    """The path between two devices."""

    a: str
    b: str
    path: str
    """As `nvidia-smi topo -m` has it: NV18, PIX, PHB, SYS…"""
    link: str
    peak_gbps: float | None
    """Per direction; null where not known."""
    usable_gbps: float | None
    note: str


@dataclass(frozen=True)
class NumaNode:
    """A NUMA node: its CPUs as Linux lists them, and the distance to every node (10 is local)."""

    node: int
    cpus: str
    distances: tuple[int, ...]


@dataclass(frozen=True)
class PciGpu:
    """A GPU on the PCI bus: the link it runs at now, and the best that device and slot could do."""

    bus_id: str
    vendor: str
    numa: int | None
    link: Link | None
    best: Link | None


@dataclass(frozen=True)
class NetworkPort:
    """A network port."""

    name: str
    numa: int | None
    link: Link | None


@dataclass(frozen=True)
class BenchTopology(BenchDocument):
    """`gpuscope bench topology`."""

    tool: Literal["topology"] = field(default="topology", init=False)
    gpus: Mapping[str, str]
    pairs: tuple[PairRow, ...]
    numa: tuple[NumaNode, ...]
    pci_gpus: tuple[PciGpu, ...]
    ports: tuple[NetworkPort, ...]
    notes: tuple[str, ...]
