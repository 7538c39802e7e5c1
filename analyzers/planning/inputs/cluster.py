"""A cluster: GPUs, their memory and peak, the links inside a host and between hosts, and what it costs to run."""

from __future__ import annotations

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
    nvme_gbps: float = 0.0
    """GB/s of a host's NVMe drives; 0 for none."""

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

    def inside_host(self, size: int, stride: int) -> bool:
        """Whether `size` ranks, `stride` apart, are on one host; ranks count up inside a host first."""
        return size * stride <= self.gpus_per_host or self.network is None

    def ring(self, size: int, stride: int) -> float:
        """GB/s per GPU that a ring over `size` ranks, `stride` apart, can be expected to reach.

        A ring over hosts enters and leaves each one through the ports of all its members there.
        """
        if self.inside_host(size, stride):
            return self.inside.usable
        return min(self.inside.usable, self.port_gbps * self._members(stride))

    def all_to_all(self, size: int, stride: int) -> float:
        """GB/s of what a GPU sends in an all-to-all. What goes to other hosts has only the GPU's own share of the
        host's ports, whoever else is in the group: sent / that share is (size − members) / size of all it sends."""
        if self.inside_host(size, stride):
            return self.inside.usable
        away = (size - self._members(stride)) / max(size - 1, 1)
        return min(self.inside.usable / max(1 - away, 1e-9), self.port_gbps / away)

    def pair(self, stride: int) -> float:
        """GB/s from one GPU to another `stride` ranks on."""
        return self.inside.usable if self.inside_host(2, stride) else min(self.port_gbps, self.inside.usable)

    def latency_ns(self, op: str, size: int, stride: int) -> float:
        """Of the steps around a ring of `size` ranks, and of starting it: NCCL's own figures (links.toml)."""
        hosts = 1 if self.inside_host(size, stride) else max(size // self._members(stride), 1)
        steps = ring_steps(RING_STEPS.get(op, 1), size, hosts)
        network = self.network or self.inside
        return base_latency_ns() + steps.between * network.latency_ns + steps.inside * self.inside.latency_ns

    def _members(self, stride: int) -> int:
        return max(self.gpus_per_host // stride, 1)
