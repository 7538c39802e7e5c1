"""A cluster by its spec, `8xH100` or `16x8xH100`: GPUs, their memory and peak, the links inside and between hosts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpuscope.errors import UsageError
from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.hardware.link_rates import Link, gpu_fabric, gpu_nvlink, gpu_pcie, link_named, links

MEMORY_GB = {
    "B200": 180, "H200": 141, "H100 PCIe": 80, "H100 NVL": 94, "H100": 80, "A100": 80, "L40S": 48, "L4": 24, "A10": 24,
    "V100": 32,
}  # fmt: skip
"""GB (1e9 bytes) by the vendor's data sheets; of the A100 and V100 the larger one. Override with --gpu-memory."""
_NETWORKS = {"B200": "ib_ndr", "H200": "ib_ndr", "H100": "ib_ndr", "A100": "ib_hdr"}
"""One port per GPU, as in NVIDIA's reference systems: ConnectX-7 of 400 Gbit/s in DGX B200, H200 and H100, 200 Gbit/s
in DGX A100."""
_SPEC = re.compile(r"(?:(?P<hosts>\d+)x)?(?P<gpus>\d+)x(?P<name>[A-Za-z].*)")


@dataclass(frozen=True)
class Cluster:
    """Hosts of GPUs. `memory` is bytes per GPU, `peak` FLOP/s in bf16; `network` is per GPU, None with one host."""

    hosts: int
    gpus_per_host: int
    gpu: str
    memory: int
    peak: float
    inside: Link
    network: Link | None

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.hosts * self.gpus_per_host

    def bandwidth(self, size: int, stride: int) -> float:
        """Bytes/s per GPU that a ring over `size` ranks, `stride` apart, can be expected to reach.

        Ranks count up inside a host first. A ring over hosts enters and leaves each one through the ports of
        all its members there.
        """
        if size * stride <= self.gpus_per_host or self.network is None:
            return self.inside.usable * 1e9
        members = max(self.gpus_per_host // stride, 1)
        return min(self.inside.usable, self.network.usable * members) * 1e9


def cluster_of(spec: str, network: str | None = None, memory_gb: float | None = None) -> Cluster:
    """The cluster of a spec. Raises `UsageError` where it is none, or where a figure is not known."""
    match = _SPEC.fullmatch(spec)
    if not match:
        raise UsageError(f"{spec!r} is no cluster", hint="write for instance 8xH100, or 16x8xH100 for 16 hosts")
    hosts, gpus, name = int(match["hosts"] or 1), int(match["gpus"]), match["name"].strip()
    if min(hosts, gpus) < 1 or hosts * gpus > 1 << 20:
        raise UsageError(f"{spec!r}: no such number of GPUs")
    known = next((key for key in MEMORY_GB if f" {key} " in f" {name.replace('-', ' ')} "), None)
    # A V100 has tensor cores for FP16 alone.
    peak = peak_flops(name, "bf16") or peak_flops(name, "fp16")
    if known is None or peak is None:
        raise UsageError(f"the GPU {name!r} is not in the table", hint=f"known: {', '.join(MEMORY_GB)}")
    return Cluster(
        hosts, gpus, name, round((memory_gb or MEMORY_GB[known]) * 1e9), peak, _inside(name, gpus),
        _between(known, network) if hosts > 1 else None,
    )  # fmt: skip


def _inside(name: str, gpus: int) -> Link:
    # The bare model name («H100») is taken for the board with all links, as in NVIDIA's own systems.
    own = gpu_fabric(name) or gpu_fabric(f"{name} SXM") or gpu_fabric(f"{name} SXM4") or gpu_fabric(f"{name} SXM3")
    plain = "PCIe" in name or "NVL" in name.split()
    bridged = gpu_nvlink(name) if plain and gpus == 2 else None
    link = (None if plain else own) or bridged or gpu_pcie(name)
    if link is None:
        raise UsageError(f"the links of {name!r} are not in the table")
    return link


def _between(gpu: str, network: str | None) -> Link:
    key = network or _NETWORKS.get(gpu)
    if key is None:
        keys = ", ".join(key for key, link in links().items() if link.kind in ("infiniband", "roce", "ethernet"))
        raise UsageError(f"what joins hosts of {gpu} is not known", hint=f"name it with --network: {keys}")
    return link_named(key)
