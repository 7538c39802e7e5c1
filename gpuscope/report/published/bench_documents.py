"""What the tools of `gpuscope bench` print with `--json`. Times are ns, sizes bytes, bandwidths GB/s (1e9 bytes)."""

from __future__ import annotations

from typing import Literal, TypedDict


class BenchDocument(TypedDict):
    """What all of them have."""

    schema_version: int


class CollectiveRow(TypedDict):
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


class BenchCollectives(BenchDocument):
    """`gpuscope bench collectives`."""

    tool: Literal["collectives"]
    backend: str
    device: str
    world_size: int
    torch_version: str
    nccl_version: str | None
    iterations: int
    warmup: int
    rows: list[CollectiveRow]


class TransferRow(TypedDict):
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


class BenchTransfers(BenchDocument):
    """`gpuscope bench transfers`."""

    tool: Literal["transfers"]
    devices: list[str]
    """Empty where only host memory could be measured."""
    torch_version: str
    threads: int
    rows: list[TransferRow]
    note: str


class ScalingRow(TypedDict):
    """One number of processes."""

    processes: int
    mesh: str
    tokens_per_step: int
    step_ns: int
    """The mean over the timed steps, of the slowest rank."""
    tokens_per_s: float | None
    speedup: float | None
    efficiency: float | None


class BenchScaling(BenchDocument):
    """`gpuscope bench scaling`."""

    tool: Literal["scaling"]
    parallel: str
    preset: str
    scaling: str
    device: str
    threads_per_process: int
    rows: list[ScalingRow]
    note: str


class TuningRow(TypedDict):
    """One candidate at one size."""

    op: str
    ranks: int
    nbytes: int
    candidate: str
    settings: dict[str, str]
    time_ns: int
    """The median of the rounds."""
    rounds_ns: list[int]
    """One call in each round."""
    gain_frac: float | None
    certain: bool
    """Whether it beats the default beyond what rounds differ by."""
    algorithm: str | None
    protocol: str | None
    channels: int | None


class BenchTune(BenchDocument):
    """`gpuscope bench tune`, and the file of `--proof`."""

    tool: Literal["tune"]
    backend: str
    torch_version: str
    rounds: int
    iterations: int
    rows: list[TuningRow]
    failed: dict[str, str]
    """Candidates that could not run, with why."""


class LinkRate(TypedDict):
    """A link with so many units (lanes, NVLinks, ports) in use; rates per direction over all of them."""

    key: str
    name: str
    kind: str
    units: int
    peak: float
    usable: float
    latency_ns: int


class PairRow(TypedDict):
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


class NumaNode(TypedDict):
    """A NUMA node: its CPUs as Linux lists them, and the distance to every node (10 is local)."""

    node: int
    cpus: str
    distances: list[int]


class PciGpu(TypedDict):
    """A GPU on the PCI bus: the link it runs at now, and the best that device and slot could do."""

    bus_id: str
    vendor: str
    numa: int | None
    link: LinkRate | None
    best: LinkRate | None


class NetworkPort(TypedDict):
    """A network port."""

    name: str
    numa: int | None
    link: LinkRate | None


class BenchTopology(BenchDocument):
    """`gpuscope bench topology`."""

    tool: Literal["topology"]
    gpus: dict[str, str]
    pairs: list[PairRow]
    numa: list[NumaNode]
    pci_gpus: list[PciGpu]
    ports: list[NetworkPort]
    notes: list[str]
