"""A cluster: GPUs, their memory and peak, the links inside a host and between hosts, and what it costs to run."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from gpuscope import when_used
from gpuscope.analyzers.planning.transformer import filled, is_file, read_values
from gpuscope.collective_costs.bus_bandwidth import RING_STEPS, ring_steps
from gpuscope.errors import GpuscopeError, InputError, UsageError
from gpuscope.hardware.boards import Board, board_of, boards
from gpuscope.hardware.device_peaks import memory_bandwidth, peaks_of, reached_frac
from gpuscope.hardware.link_rates import (
    Link,
    base_latency_ns,
    gpu_fabric,
    gpu_nvlink,
    gpu_pcie,
    link_named,
    links,
    network,
)


@dataclass(frozen=True)
class Cluster:
    """Hosts of GPUs. `memory` is bytes per GPU, `peak` FLOP/s by precision; `network` is one port, None with one host.

    A host is what its links join directly: a rack of 72 GPUs where NVLink joins those.
    """

    hosts: int
    gpus_per_host: int
    gpu: str
    memory: int
    peaks: dict[str, float]
    inside: Link
    network: Link | None
    ports: int
    """Network ports of a host."""
    usable_frac: float
    """Of a GPU's memory: the rest is left to CUDA's context, NCCL's buffers, temporary tensors and fragmentation."""
    memory_bandwidth: float
    """Bytes/s of a GPU's memory."""
    reached: dict[str, float]
    """Share of the peak that large matrix products reach, by precision."""
    launched_singly: bool
    """Whether the kernels of experts are launched one by one, not as CUDA graphs."""
    oversubscription: float = 1.0
    """How many times less bandwidth a GPU has beyond the hosts of one leaf switch."""
    leaf_hosts: int = 0
    """Hosts of a leaf switch; 0 where all have the full bandwidth to each other."""
    between: tuple[tuple[int, float], ...] = ()
    """Hosts of a group, and the GB/s per GPU that were measured over so many."""
    measured: bool = False
    """Whether the links' rates were measured on this cluster."""
    power_w: float | None = None
    """Of a GPU at work, with its part of the host."""
    pue: float | None = None
    gpu_hour_price: float | None = None
    gpu_mtbf_hours: float = 0.0
    restart_minutes: float = 0.0
    checkpoint_gbps: float = 0.0
    """GB/s that all GPUs together write a checkpoint with."""
    host_memory: int = 0
    """Bytes per host for offloaded states; 0 for unknown."""
    host_link_gbps: float = 0.0
    """GB/s between a GPU and its host's memory."""
    host_cores: int = 0
    """Of a host; 0 for unknown."""
    pcie_lanes: int = 0
    """Of a GPU; 0 for unknown."""
    nvme_gbps: float = 0.0
    """GB/s of a host's NVMe drives; 0 for none."""
    clock: float = 1.0
    """Of the GPUs' clock under load at full power, where their power is held down."""

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.hosts * self.gpus_per_host

    @property
    def name(self) -> str:
        """`16 x 8 H100`."""
        return f"{self.hosts} x {self.gpus_per_host} {self.gpu}"

    @property
    def usable(self) -> float:
        """Bytes of a GPU that a job can fill."""
        return self.usable_frac * self.memory

    @property
    def port_gbps(self) -> float:
        """GB/s of the network per GPU: a host's ports, shared by its GPUs."""
        return self.network.usable * self.ports / self.gpus_per_host if self.network else 0.0

    def port_over(self, hosts: int) -> float:
        """GB/s of the network per GPU in a group over so many hosts: as measured over about as many, else a port's less
        what the leaf switches' links up lack."""
        if self.between:
            return min(self.between, key=lambda one: abs(math.log(one[0] / hosts)))[1]
        return self.port_gbps / (self.oversubscription if 0 < self.leaf_hosts < hosts else 1.0)

    def inside_host(self, size: int, stride: int) -> bool:
        """Whether `size` ranks, `stride` apart, are on one host; ranks count up inside a host first."""
        return size * stride <= self.gpus_per_host or self.network is None

    def ring(self, size: int, stride: int) -> float:
        """GB/s per GPU that a ring over `size` ranks, `stride` apart, can be expected to reach.

        A ring over hosts enters and leaves each one through the ports of all its members there.
        """
        if self.inside_host(size, stride):
            return self.inside.usable
        return min(self.inside.usable, self.port_over(self.spread(size, stride)) * self._members(stride))

    def all_to_all(self, size: int, stride: int) -> float:
        """GB/s of what a GPU sends in an all-to-all. What goes to other hosts has only the GPU's own share of the
        host's ports, whoever else is in the group: sent / that share is (size − members) / size of all it sends."""
        if self.inside_host(size, stride):
            return self.inside.usable
        away = (size - self._members(stride)) / max(size - 1, 1)
        return min(self.inside.usable / max(1 - away, 1e-9), self.port_over(self.spread(size, stride)) / away)

    def spread(self, size: int, stride: int) -> int:
        """Hosts that so many ranks are on."""
        return 1 if self.inside_host(size, stride) else max(size // self._members(stride), 1)

    def pair(self, stride: int) -> float:
        """GB/s from one GPU to another `stride` ranks on."""
        return self.inside.usable if self.inside_host(2, stride) else min(self.port_over(2), self.inside.usable)

    def latency_ns(self, op: str, size: int, stride: int) -> float:
        """Of the steps around a ring of `size` ranks, and of starting it: NCCL's own figures (links.toml)."""
        hosts = self.spread(size, stride)
        steps = ring_steps(RING_STEPS.get(op, 1), size, hosts)
        network = self.network or self.inside
        return base_latency_ns() + steps.between * network.latency_ns + steps.inside * self.inside.latency_ns

    def _members(self, stride: int) -> int:
        return max(self.gpus_per_host // stride, 1)


# A cluster by its spec, `8xH100` or `16x8xH100`, with figures changed or not, or by a file with any of them.

USABLE = 0.9
"""Of a GPU's memory, where nothing else is given."""
GPU_MTBF_HOURS = 50_700.0
"""Hours of one GPU between failures that end a job: 419 in 54 days of 16,384 H100 (Llama 3, arXiv:2407.21783, section
3.3.4)."""
RESTART_MINUTES = 10.0
"""From a failure to the first step after it: assumed."""
CHECKPOINT_GBPS_PER_HOST = 1.0
"""GB/s of storage per host: assumed; Llama 3's gives 2,000 of them 2 TB/s (section 3.3.1)."""
MOST_GPUS = 1 << 20
_SPEC = when_used.pattern(r"(?:(?P<hosts>\d{1,7})x)?(?P<gpus>\d{1,7})x(?P<name>\S.*)")
_MIG = when_used.pattern(r"(?P<name>.+)[- ]MIG[- ](?P<slices>\d)g\.(?P<gb>\d{1,3})gb", re.IGNORECASE)
_READ: Mapping[str, Callable[[str], object]] = {
    "i": int,
    "f": float,
    "s": str,
    "b": lambda text: bool(int(text)),
}
"""Text of a figure, by the first letter of its field's type."""
_GIB = 2**30 / 1e9
"""Data sheets' GB of a GPU are GiB: an H100 of 80 GB shows 81,559 MiB."""
_USUAL_INTENSITY = 250.0
"""FLOPs per byte of a GPU's memory, where its bandwidth is not known: A100 153, MI300X 246, B200 281, H100 295."""
_STAGED = 0.5
"""Of a link where copies between GPUs are staged in host memory: every byte crosses PCIe twice."""


@dataclass(frozen=True)
class ClusterFile:
    """The fields of a cluster's file. What is absent is the GPU's usual figure, where the table knows the GPU."""

    gpu: str
    """Its name, as in the spec: `H100`; any name where the figures are given."""
    gpus_per_host: int
    """GPUs of a host."""
    hosts: int = 1
    """Hosts."""
    memory_gb: float | None = None
    """GB (1e9 bytes) of a GPU."""
    usable_frac: float | None = None
    """Of the memory that a job can fill, 0.9; the rest is CUDA's context, NCCL's buffers, temporary tensors."""
    bf16_tflops: float | None = None
    """Dense peak of a GPU in TFLOP/s."""
    fp8_tflops: float | None = None
    """The same in FP8."""
    fp4_tflops: float | None = None
    """The same in FP4."""
    memory_gbps: float | None = None
    """GB/s of a GPU's memory."""
    inside: str | None = None
    """Key of the link between a host's GPUs."""
    inside_gbps: float | None = None
    """GB/s per GPU and direction that it can be expected to give; goes before `inside`."""
    network: str | None = None
    """Key of the link that a port has."""
    network_gbit: float | None = None
    """Gbit/s of a port; goes before `network`."""
    ports: int | None = None
    """Network ports of a host; one per GPU where absent."""
    cuda_graphs: bool | None = None
    """Whether layers of experts run as CUDA graphs; where absent, they do in racks joined by NVLink alone."""
    oversubscription: float | None = None
    """How many times less bandwidth a GPU has beyond the hosts of one leaf switch."""
    leaf_hosts: int | None = None
    """Hosts of a leaf switch."""
    nvlink_domain: int | None = None
    """GPUs that NVLink joins, where those are several hosts."""
    host_cores: int | None = None
    """Cores of a host; like `ports`, `pcie_lanes` and `host_memory_gb` held against rules of thumb."""
    pcie_lanes: int | None = None
    """PCIe lanes of a GPU."""
    power_w: float | None = None
    """W of a GPU at work, with its part of the host."""
    power_limit_w: float | None = None
    """W that a GPU is held to, where that is less than its data sheet's."""
    pue: float | None = None
    """Of the data centre: all power by the computers'."""
    gpu_hour_price: float | None = None
    """Price of a GPU for an hour, in any currency."""
    gpu_mtbf_hours: float | None = None
    """Hours of one GPU between failures that end a job."""
    restart_minutes: float | None = None
    """From a failure to the first step after it."""
    checkpoint_gbps: float | None = None
    """GB/s that all GPUs together write a checkpoint with."""
    host_memory_gb: float | None = None
    """GB of a host's memory for offloaded states."""
    host_link_gbps: float | None = None
    """GB/s between a GPU and its host's memory."""
    nvme_gbps: float | None = None
    """GB/s of a host's NVMe drives."""


def cluster_of(
    spec: str, network_key: str | None = None, memory_gb: float | None = None, ports: int | None = None
) -> Cluster:
    """The cluster of a spec, of one with figures changed (`8xH100,memory_gb=96`), or of a file; the other arguments go
    before what it says.

    Raises `UsageError` or `InputError`, naming the field, where it is none or where a figure is not known.
    """
    if is_file(spec):
        path = Path(spec)
        given, where = filled(ClusterFile, read_values(path), path), f"{path}: "
        error: type[GpuscopeError] = InputError
    else:
        given, error, where = _from_words(spec), UsageError, ""
    given = replace(
        given,
        network=network_key or given.network,
        memory_gb=memory_gb or given.memory_gb,
        ports=ports or given.ports,
        network_gbit=None if network_key else given.network_gbit,
    )
    _check(given, error, where)
    return _cluster(_joined(given, error, where), error, where)


def _joined(given: ClusterFile, error: type[GpuscopeError], where: str) -> ClusterFile:
    """With the hosts that NVLink joins as one, as the planner takes a host: what its links join directly."""
    if given.nvlink_domain is None or given.nvlink_domain == given.gpus_per_host:
        return given
    hosts, rest = divmod(given.nvlink_domain, given.gpus_per_host)
    if rest or not hosts or given.hosts % hosts:
        raise error(
            f"{where}nvlink_domain={given.nvlink_domain} is no multiple of gpus_per_host={given.gpus_per_host}, or "
            f"does not divide the {given.hosts} hosts"
        )

    def times(value: float | None) -> float | None:
        return value * hosts if value else None

    return replace(
        given,
        gpus_per_host=given.nvlink_domain,
        hosts=given.hosts // hosts,
        ports=given.ports and given.ports * hosts,
        host_memory_gb=times(given.host_memory_gb),
        nvme_gbps=times(given.nvme_gbps),
        host_cores=given.host_cores and given.host_cores * hosts,
        leaf_hosts=given.leaf_hosts and max(given.leaf_hosts // hosts, 1),
    )


def _from_words(text: str) -> ClusterFile:
    spec, _, changes = text.partition(",")
    found = _named(spec)
    return replace(found, **dict(_changed(changes))) if changes else found  # type: ignore[arg-type]


def _changed(changes: str) -> Iterator[tuple[str, object]]:
    """Figures as they are written behind a spec."""
    kinds = {field.name: str(field.type) for field in fields(ClusterFile)[3:]}
    for pair in changes.split(","):
        key, _, value = pair.partition("=")
        kind = kinds.get(key, "")
        try:
            yield key, _READ[kind[:1]](value)
        except (KeyError, ValueError):
            raise UsageError(f"{pair!r} is no figure of a cluster", hint=f"key=NUMBER of {', '.join(kinds)}") from None


def _named(spec: str) -> ClusterFile:
    match = _SPEC.fullmatch(spec)
    if not match:
        raise UsageError(
            f"{spec!r} is no cluster", hint="write for instance 8xH100, 16x8xH100 for 16 hosts, or a .toml file"
        )
    name, gpus, hosts = match["name"].strip(), int(match["gpus"]), int(match["hosts"] or 1)
    if consumer := re.fullmatch(r"(?:GeForce[- ]?)?(?:RTX[- ]?)?([345]0[6-9]0(?:[- ]?Ti)?)", name, re.IGNORECASE):
        name = f"RTX {consumer[1]}"
    if slices := _MIG.fullmatch(name):
        return _slice(slices, gpus * hosts)
    found = ClusterFile(name, gpus, hosts)
    known = board_of(_plain(name))
    if known is not None and known.domain and hosts == 1 and gpus > known.domain and gpus % known.domain == 0:
        return replace(found, gpus_per_host=known.domain, hosts=gpus // known.domain)
    return found


def _slice(found: re.Match[str], count: int) -> ClusterFile:
    """Of seven compute slices so many, with the memory that the profile names and its share of the bandwidth."""
    if count > 1:
        raise UsageError("MIG slices can't be joined: NCCL takes one per process group", hint=f"1x{found[0]}")
    name, share, size = _plain(found["name"]), int(found["slices"]) / 7, float(found["gb"])
    board, bandwidth, peaks = board_of(name), memory_bandwidth(name), peaks_of(name)
    if board is None or bandwidth is None or not peaks or not 0 < share <= 1:
        raise UsageError(f"{found[0]!r} is no MIG slice of a GPU in the table")

    def tflops(precision: str) -> float | None:
        return share * peaks[precision] / 1e12 if precision in peaks else None

    return ClusterFile(
        _plain(found[0]),
        1,
        memory_gb=size * _GIB,
        bf16_tflops=tflops("bf16"),
        fp8_tflops=tflops("fp8"),
        fp4_tflops=tflops("fp4"),
        memory_gbps=bandwidth / 1e9 * min(size / board.memory_gb, 1.0),
    )


def _plain(name: str) -> str:
    return name.replace("-", " ")


def _check(given: ClusterFile, error: type[GpuscopeError], where: str) -> None:
    for key in (
        "gpus_per_host",
        "hosts",
        "ports",
        "leaf_hosts",
        "nvlink_domain",
        "host_cores",
        "pcie_lanes",
    ):
        value = getattr(given, key)
        if value is not None and not 1 <= value <= MOST_GPUS:
            raise error(f"{where}{key}={value} must be 1 to {MOST_GPUS:,}")
    if given.hosts * given.gpus_per_host > MOST_GPUS:
        raise error(f"{where}{given.hosts * given.gpus_per_host:,} GPUs are more than {MOST_GPUS:,}")
    for key, value in vars(given).items():
        if isinstance(value, float) and not (math.isfinite(value) and value > 0):
            raise error(f"{where}{key}={value:g} must be more than 0")
    if given.usable_frac is not None and given.usable_frac > 1:
        raise error(f"{where}usable_frac={given.usable_frac:g} must be at most 1")
    for key in ("pue", "oversubscription"):
        value = getattr(given, key)
        if value is not None and value < 1:
            raise error(f"{where}{key}={value:g} must be at least 1")


def _cluster(given: ClusterFile, error: type[GpuscopeError], where: str) -> Cluster:
    name, board = _plain(given.gpu), board_of(_plain(given.gpu))
    # A V100 has tensor cores for FP16 alone.
    table = peaks_of(given.gpu) or peaks_of(name)
    bf16 = given.bf16_tflops * 1e12 if given.bf16_tflops else table.get("bf16") or table.get("fp16")
    memory_gb = given.memory_gb or (board.memory_gb * _GIB if board else None)
    if bf16 is None or memory_gb is None:
        lacking = "memory_gb" if bf16 else "bf16_tflops" if memory_gb else "memory_gb and bf16_tflops"
        raise error(
            f"{where}the GPU {given.gpu!r} is not in the table",
            hint=f"known: {', '.join(boards())}; or a .toml file that also gives {lacking}",
        )
    peaks = {"bf16": bf16}
    for key, own in (("fp8", given.fp8_tflops), ("fp4", given.fp4_tflops)):
        if own or key in table:
            peaks[key] = own * 1e12 if own else table[key]
    bandwidth = given.memory_gbps * 1e9 if given.memory_gbps else memory_bandwidth(given.gpu) or memory_bandwidth(name)
    inside = _inside(given, name, board, error, where)
    host_gb = given.host_memory_gb or 0.0
    pcie = gpu_pcie(name)
    if pcie and given.pcie_lanes:
        pcie = pcie.of(given.pcie_lanes)
    return Cluster(
        given.hosts,
        given.gpus_per_host,
        given.gpu,
        round(memory_gb * 1e9),
        peaks,
        inside,
        _between(given, board, error, where) if given.hosts > 1 else None,
        given.ports or given.gpus_per_host,
        given.usable_frac or USABLE,
        bandwidth or bf16 / _USUAL_INTENSITY,
        {key: reached_frac(name, key) for key in peaks},
        not (given.cuda_graphs if given.cuda_graphs is not None else board and board.domain),
        given.oversubscription or 1.0,
        given.leaf_hosts or 0,
        (),
        False,
        given.power_w or given.power_limit_w or (board.power_w if board else None),
        given.pue,
        given.gpu_hour_price,
        given.gpu_mtbf_hours or GPU_MTBF_HOURS,
        given.restart_minutes or RESTART_MINUTES,
        given.checkpoint_gbps or CHECKPOINT_GBPS_PER_HOST * given.hosts,
        round(host_gb * 1e9),
        given.host_link_gbps or (pcie.usable if pcie else 0.0),
        given.host_cores or 0,
        given.pcie_lanes or 0,
        given.nvme_gbps or 0.0,
        _clock(given, board),
    )


def _clock(given: ClusterFile, board: Board | None) -> float:
    """Of what a GPU has at full power: its voltage falls with the clock, so power goes by the clock's third
    power (Mudge, Power: A First-Class Architectural Design Constraint, IEEE Computer, April 2001)."""
    full = board.power_w if board is not None else given.power_limit_w
    return min((given.power_limit_w / full) ** (1 / 3), 1.0) if given.power_limit_w and full else 1.0


def _inside(given: ClusterFile, name: str, board: Board | None, error: type[GpuscopeError], where: str) -> Link:
    if given.inside_gbps:
        rate = given.inside_gbps
        return Link("given", f"{rate:g} GB/s", "nvlink", 1, rate, rate, links()["nvlink4"].latency_ns)
    if given.inside:
        return link_named(given.inside)
    # The bare model name («H100») is taken for the board with all links, as in the vendors' own systems.
    own = gpu_fabric(name) or gpu_fabric(f"{name} SXM") or gpu_fabric(f"{name} SXM4") or gpu_fabric(f"{name} SXM3")
    plain = "PCIe" in name or "NVL" in name.split()
    bridged = gpu_nvlink(name) if plain and given.gpus_per_host == 2 else None
    link = (None if plain else own) or bridged or gpu_pcie(name)
    if link is None:
        raise error(f"{where}the links of {given.gpu!r} are not in the table", hint="give inside or inside_gbps")
    if board is not None and board.staged:
        return replace(link, name=f"{link.name} through host memory", usable=link.usable * _STAGED)
    return link


def _between(given: ClusterFile, board: Board | None, error: type[GpuscopeError], where: str) -> Link:
    if given.network_gbit:
        return network("infiniband", given.network_gbit)
    key = given.network or (board.network if board else None)
    if key is None:
        keys = ", ".join(key for key, link in links().items() if link.kind in ("infiniband", "roce", "ethernet"))
        raise error(f"{where}what joins hosts of {given.gpu} is not known", hint=f"name it with --network: {keys}")
    return link_named(key)
