"""Variables of NCCL that were set to something its own choice would beat, as far as the log tells.

NCCL's user guide sorts most of these under «Debugging»: «generally not to be set for production code» (NVIDIA/nccl
docs/userguide/source/env.rst, 2.32). For each the remedy is the default, so to unset it. Whether a variable can matter
is judged by what the log shows of the job: hosts, transports, GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpuscope.hardware.link_rates import compute_capability
from gpuscope.hardware.vendor_recipes import kept_by_vendors
from gpuscope.schema.nccl_sections import Nccl
from gpuscope.when_used import dataclass

HOPPER = 90
"""Compute capability times ten of the first GPUs whose NVLink switches reduce."""


@dataclass(frozen=True)
class Situation:
    """What decides whether a variable can matter."""

    hosts: int | None
    """Hosts of the largest communicator; None where unknown."""
    ranks: int
    inside: frozenset[str]
    """Transports between ranks of one host."""
    models: tuple[str, ...]
    """GPUs, as far as their models are recorded."""
    rdma: bool
    """Whether a log names an InfiniBand or RoCE port."""

    @property
    def several_hosts(self) -> bool:
        return self.hosts is None or self.hosts > 1

    @property
    def several_local(self) -> bool:
        """Whether some host has several ranks."""
        return self.hosts is None or self.ranks > self.hosts

    @property
    def may_reduce_in_switches(self) -> bool:
        """Hopper and later; where no model is recorded, nothing is known to speak for it."""
        return any((compute_capability(model) or 0) >= HOPPER for model in self.models)


@dataclass(frozen=True)
class Forced:
    """A variable and its value, what that does, and how sure it is that the default is better."""

    name: str
    value: str
    does: str
    topic: str
    """What it is about: transport, gpu_direct, nvls, choice."""
    high: bool = False


def situation(nccl: Nccl, models: tuple[str, ...]) -> Situation:
    """From what NCCL said of itself."""
    largest = max(nccl["communicators"], key=lambda one: one["size"], default=None)
    return Situation(
        largest["nodes"] if largest else None,
        largest["size"] if largest else 0,
        frozenset(one["transport"] for one in nccl["transports"] if one["same_node"] is not False),
        models,
        any(port["link_layer"] for port in nccl["ports"]),
    )


def forced(nccl: Nccl, models: tuple[str, ...]) -> list[Forced]:
    """Those that are set and can cost time here, but not what the vendor of the network says to set."""
    seen, where = {one["name"]: one["value"] for one in nccl["environment"]}, situation(nccl, models)
    kept = kept_by_vendors(seen, nccl["networks"])
    return [one for rule in _RULES for one in rule(seen, where) if one.name not in kept]


Variables = Mapping[str, str]


def _on(value: str | None) -> bool:
    """Whether a switch of NCCL is on: any number but 0."""
    return value is not None and value.strip() not in ("", "0")


def _off(value: str | None) -> bool:
    return value is not None and value.strip() == "0"


def _transports(seen: Variables, where: Situation) -> Iterator[Forced]:
    if where.several_local:
        if _on(seen.get("NCCL_P2P_DISABLE")):
            yield _made(
                seen,
                "NCCL_P2P_DISABLE",
                "no GPU copies to another of its host directly: NVLink and PCIe peer access lie idle",
                "transport",
                True,
            )
        level = seen.get("NCCL_P2P_LEVEL", "").upper()
        if level in ("LOC", "0"):
            yield _made(
                seen, "NCCL_P2P_LEVEL", "direct copies between GPUs are off at every distance", "transport", True
            )
        elif level and _indirect(where):
            yield _made(
                seen,
                "NCCL_P2P_LEVEL",
                f"direct copies stop at distance {level}: other pairs go through host memory",
                "transport",
            )
        if _on(seen.get("NCCL_SHM_DISABLE")) and _over_network(where):
            yield _made(
                seen,
                "NCCL_SHM_DISABLE",
                "ranks of one host that have no direct path talk over the network card",
                "transport",
                True,
            )
    if where.several_hosts:
        if _on(seen.get("NCCL_IB_DISABLE")):
            yield _made(seen, "NCCL_IB_DISABLE", "hosts talk over TCP sockets instead of RDMA", "transport", where.rdma)
        if seen.get("NCCL_NET", "").lower() == "socket":
            yield _made(
                seen, "NCCL_NET", "hosts talk over TCP sockets even where there is RDMA", "transport", where.rdma
            )


def _indirect(where: Situation) -> bool:
    return any(transport.startswith(("SHM", "NET/")) for transport in where.inside)


def _over_network(where: Situation) -> bool:
    return any(transport.startswith("NET/") for transport in where.inside)


def _gpu_direct(seen: Variables, where: Situation) -> Iterator[Forced]:
    if not where.several_hosts:
        return
    if seen.get("NCCL_NET_GDR_LEVEL", seen.get("NCCL_IB_GDR_LEVEL", "")).upper() in ("LOC", "0"):
        name = "NCCL_NET_GDR_LEVEL" if "NCCL_NET_GDR_LEVEL" in seen else "NCCL_IB_GDR_LEVEL"
        yield _made(
            seen,
            name,
            "GPUDirect RDMA is off: every message between hosts goes through host memory",
            "gpu_direct",
            True,
        )
    for name, does in (
        ("NCCL_NET_GDR_READ", "what is sent is copied to host memory first (the default on NVLink systems is 1)"),
        ("NCCL_NET_GDR_C2C", "cards behind the CPU don't read GPU memory over C2C (the default is 1 since 2.27)"),
        ("NCCL_DMABUF_ENABLE", "GPUDirect RDMA by dma-buf is off: it then needs the module nvidia_peermem"),
    ):
        if _off(seen.get(name)):
            yield _made(seen, name, does, "gpu_direct")


def _switches(seen: Variables, where: Situation) -> Iterator[Forced]:
    if _off(seen.get("NCCL_NVLS_ENABLE")) and where.may_reduce_in_switches:
        yield _made(seen, "NCCL_NVLS_ENABLE", "NVLink switches don't reduce (NVLS)", "nvls")
    if _off(seen.get("NCCL_CUMEM_ENABLE")) and where.may_reduce_in_switches:
        yield _made(
            seen,
            "NCCL_CUMEM_ENABLE",
            "without cuMem memory there is no NVLS, no symmetric memory and no registration of user buffers",
            "nvls",
        )


def _choice(seen: Variables, where: Situation) -> Iterator[Forced]:
    if _off(seen.get("NCCL_PAT_ENABLE")) and where.ranks > 1 and where.hosts == where.ranks:
        yield _made(
            seen,
            "NCCL_PAT_ENABLE",
            "all-gathers and reduce-scatters between hosts of one rank each take as "
            "many steps as there are ranks, not their logarithm (the default, 2, is automatic)",
            "choice",
        )
    for name, what in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        value = seen.get(name)
        if value is None:
            continue
        unsafe = name == "NCCL_PROTO" and "ll128" in value.lower() and not value.startswith("^")
        does = "LL128 corrupts data where the platform does not support it; NCCL itself knows where it does"
        yield _made(
            seen,
            name,
            does
            if unsafe
            else f"one {what} holds for messages of every size: what is best for small ones is not for large ones",
            "choice",
            unsafe,
        )
    if seen.get("NCCL_LAUNCH_MODE", "").upper() == "GROUP":
        yield _made(seen, "NCCL_LAUNCH_MODE", "launches wait for one another; deprecated since 2.9", "choice")


def _made(seen: Variables, name: str, does: str, topic: str, high: bool = False) -> Forced:
    return Forced(name, seen[name], does, topic, high)


_RULES: tuple[Callable[[Variables, Situation], Iterator[Forced]], ...] = (
    _transports,
    _gpu_direct,
    _switches,
    _choice,
)
