"""A cluster: GPUs, their memory and peak, the links inside a host and between hosts, and what it costs to run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpuscope.collective_costs.nccl_model import RING_STEPS, ring_steps
from gpuscope.hardware.link_rates import Link, base_latency_ns


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
