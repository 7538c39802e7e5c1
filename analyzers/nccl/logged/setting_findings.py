"""Findings from what NCCL's log says was set, and what it could not use."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.analyzers.nccl.logged.forced_settings import forced, situation
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.nccl import ForcedSetting, NoGpuDirect, SlowTransport
from gpuscope.hardware.link_rates import can_have_fabric, compute_capability, gpu_fabric
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import Nccl

CONSUMER = ("GeForce",)
"""Product names whose driver offers no peer access over PCIe from the 40 series on."""


def find(nccl: Nccl) -> list[FindingEntry]:
    """Variables that cost time, cards without GPUDirect, and host memory between GPUs that have better."""
    return [*_forced(nccl), *_no_gpu_direct(nccl), *_host_memory(nccl)]


def _forced(nccl: Nccl) -> Iterator[FindingEntry]:
    found = forced(nccl, tuple(nccl["gpus"]))
    if found:
        words = ForcedSetting([(one.name, one.value, one.does) for one in found])
        yield made(words, ranks=(), severity="high" if any(one.high for one in found) else "medium")


def _no_gpu_direct(nccl: Nccl) -> Iterator[FindingEntry]:
    without = [port["name"] for port in nccl["ports"] if port["gpu_direct"] is False]
    if not without:
        return
    hosts = situation(nccl, ()).hosts
    yield made(NoGpuDirect(without, hosts), ranks=(), severity="low" if hosts == 1 else "medium")


def _host_memory(nccl: Nccl) -> Iterator[FindingEntry]:
    """GPUs of one host that copy through its memory though NVLink joins them, or PCIe could."""
    pairs = sum(one["pairs"] for one in nccl["transports"] if one["same_node"] and one["transport"].startswith("SHM"))
    if not pairs or not nccl["gpus"]:
        return
    joined = [model for model in nccl["gpus"] if gpu_fabric(model) is not None]
    if joined:
        yield made(SlowTransport([], [], pairs, joined), ranks=(), severity="high")
        return
    if any(word in model for model in nccl["gpus"] for word in CONSUMER) or None in map(can_have_fabric, nccl["gpus"]):
        return
    if all((compute_capability(model) or 0) >= 60 for model in nccl["gpus"]):
        yield made(SlowTransport([], [], pairs), ranks=(), severity="medium")
