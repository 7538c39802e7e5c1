"""Variables of NCCL that were set to something its own choice would beat, as far as the log tells.

NCCL's user guide sorts most of these under «Debugging»: «generally not to be set for production code» (NVIDIA/nccl
docs/userguide/source/env.rst, 2.32). For each the remedy is the default, so to unset it. Whether a variable can matter
is judged by what the log shows of the job: hosts, transports, GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from gpuscope.hardware.link_rates import compute_capability
from gpuscope.report.schema.nccl_sections import Nccl

DEFAULT_BUFFER = 4 << 20
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
    """What it is about: transport, gpu_direct, rails, nvls, registration, channels, choice, topology, checks."""
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
    """Those that are set and can cost time here."""
    seen, where = {one["name"]: one["value"] for one in nccl["environment"]}, situation(nccl, models)
    return [one for rule in _RULES for one in rule(seen, where)]


Variables = Mapping[str, str]


def _on(value: str | None) -> bool:
    """Whether a switch of NCCL is on: any number but 0."""
    return value is not None and value.strip() not in ("", "0")


def _off(value: str | None) -> bool:
    return value is not None and value.strip() == "0"


def _transports(seen: Variables, where: Situation) -> Iterator[Forced]:
    if where.several_local:
        if _on(seen.get("NCCL_P2P_DISABLE")):
            yield _made(seen, "NCCL_P2P_DISABLE", "no GPU copies to another of its host directly: NVLink and PCIe "
                        "peer access lie idle", "transport", True)  # fmt: skip
        level = seen.get("NCCL_P2P_LEVEL", "").upper()
        if level in ("LOC", "0"):
            yield _made(seen, "NCCL_P2P_LEVEL", "direct copies between GPUs are off at every distance", "transport",
                        True)  # fmt: skip
        elif level and _indirect(where):
            yield _made(seen, "NCCL_P2P_LEVEL", f"direct copies stop at distance {level}: other pairs go through "
                        "host memory", "transport")  # fmt: skip
        if _on(seen.get("NCCL_SHM_DISABLE")) and _over_network(where):
            yield _made(seen, "NCCL_SHM_DISABLE", "ranks of one host that have no direct path talk over the network "
                        "card", "transport", True)  # fmt: skip
    if where.several_hosts:
        if _on(seen.get("NCCL_IB_DISABLE")):
            yield _made(seen, "NCCL_IB_DISABLE", "hosts talk over TCP sockets instead of RDMA", "transport", where.rdma)
        if seen.get("NCCL_NET", "").lower() == "socket":
            yield _made(seen, "NCCL_NET", "hosts talk over TCP sockets even where there is RDMA", "transport",
                        where.rdma)  # fmt: skip


def _indirect(where: Situation) -> bool:
    return any(transport.startswith(("SHM", "NET/")) for transport in where.inside)


def _over_network(where: Situation) -> bool:
    return any(transport.startswith("NET/") for transport in where.inside)


def _gpu_direct(seen: Variables, where: Situation) -> Iterator[Forced]:
    if not where.several_hosts:
        return
    if seen.get("NCCL_NET_GDR_LEVEL", seen.get("NCCL_IB_GDR_LEVEL", "")).upper() in ("LOC", "0"):
        name = "NCCL_NET_GDR_LEVEL" if "NCCL_NET_GDR_LEVEL" in seen else "NCCL_IB_GDR_LEVEL"
        yield _made(seen, name, "GPUDirect RDMA is off: every message between hosts goes through host memory",
                    "gpu_direct", True)  # fmt: skip
    for name, does in (
        ("NCCL_NET_GDR_READ", "what is sent is copied to host memory first (the default on NVLink systems is 1)"),
        ("NCCL_NET_GDR_C2C", "cards behind the CPU don't read GPU memory over C2C (the default is 1 since 2.27)"),
        ("NCCL_DMABUF_ENABLE", "GPUDirect RDMA by dma-buf is off: it then needs the module nvidia_peermem"),
    ):
        if _off(seen.get(name)):
            yield _made(seen, name, does, "gpu_direct")


def _rails(seen: Variables, where: Situation) -> Iterator[Forced]:
    if not where.several_hosts:
        return
    if _on(seen.get("NCCL_PXN_DISABLE")):
        yield _made(seen, "NCCL_PXN_DISABLE", "a GPU can't send by the card of its neighbour on the receiver's rail: "
                    "all-to-all and sends cross rails (set on purpose only for network buffer registration)",
                    "rails")  # fmt: skip
    if _off(seen.get("NCCL_P2P_PXN_LEVEL")):
        yield _made(seen, "NCCL_P2P_PXN_LEVEL", "sends are not gathered on the GPU of their rail", "rails")
    if seen.get("NCCL_CROSS_NIC") in ("0", "1"):
        yield _made(seen, "NCCL_CROSS_NIC", "which card a ring uses on each host is forced; the default 2 keeps to "
                    "one rail unless crossing is faster", "rails")  # fmt: skip
    if _off(seen.get("NCCL_IB_PCI_RELAXED_ORDERING")):
        yield _made(seen, "NCCL_IB_PCI_RELAXED_ORDERING", "cards write in strict order, which costs bandwidth in "
                    "virtual machines", "rails")  # fmt: skip
    if _off(seen.get("NCCL_IB_ADAPTIVE_ROUTING")):
        yield _made(seen, "NCCL_IB_ADAPTIVE_ROUTING", "InfiniBand switches may not route around congestion", "rails")


def _switches(seen: Variables, where: Situation) -> Iterator[Forced]:
    if _off(seen.get("NCCL_NVLS_ENABLE")) and where.may_reduce_in_switches:
        yield _made(seen, "NCCL_NVLS_ENABLE", "NVLink switches don't reduce (NVLS)", "nvls")
    if _off(seen.get("NCCL_CUMEM_ENABLE")) and where.may_reduce_in_switches:
        yield _made(seen, "NCCL_CUMEM_ENABLE", "without cuMem memory there is no NVLS, no symmetric memory and no "
                    "registration of user buffers", "nvls")  # fmt: skip


def _registration(seen: Variables, _: Situation) -> Iterator[Forced]:
    for name, does in (
        ("NCCL_WIN_ENABLE", "symmetric memory windows are off (the default is 1 since 2.27)"),
        ("NCCL_LOCAL_REGISTER", "buffers that the program registers are copied all the same"),
        ("NCCL_GRAPH_REGISTER", "buffers of captured graphs are not registered"),
    ):
        if _off(seen.get(name)):
            yield _made(seen, name, does, "registration")


def _channels(seen: Variables, _: Situation) -> Iterator[Forced]:
    buffer = _number(seen.get("NCCL_BUFFSIZE"))
    if buffer is not None and buffer < DEFAULT_BUFFER:
        yield _made(seen, "NCCL_BUFFSIZE", "smaller buffers than NCCL's 4 MiB keep fewer bytes under way", "channels")
    threads = _number(seen.get("NCCL_NTHREADS"))
    if threads is not None and threads < 256:
        yield _made(seen, "NCCL_NTHREADS", f"{threads} threads per block copy less at a time than the default of up to "
                    "512", "channels")  # fmt: skip


def _choice(seen: Variables, where: Situation) -> Iterator[Forced]:
    if _off(seen.get("NCCL_PAT_ENABLE")) and where.ranks > 1 and where.hosts == where.ranks:
        yield _made(seen, "NCCL_PAT_ENABLE", "all-gathers and reduce-scatters between hosts of one rank each take as "
                    "many steps as there are ranks, not their logarithm (the default, 2, is automatic)",
                    "choice")  # fmt: skip
    for name, what in (("NCCL_ALGO", "algorithm"), ("NCCL_PROTO", "protocol")):
        value = seen.get(name)
        if value is None:
            continue
        unsafe = name == "NCCL_PROTO" and "ll128" in value.lower() and not value.startswith("^")
        does = "LL128 corrupts data where the platform does not support it; NCCL itself knows where it does"
        yield _made(seen, name, does if unsafe else f"one {what} holds for messages of every size: what is best for "
                    "small ones is not for large ones", "choice", unsafe)  # fmt: skip
    if seen.get("NCCL_LAUNCH_MODE", "").upper() == "GROUP":
        yield _made(seen, "NCCL_LAUNCH_MODE", "launches wait for one another; deprecated since 2.9", "choice")


def _topology(seen: Variables, _: Situation) -> Iterator[Forced]:
    if "NCCL_TOPO_FILE" in seen:
        yield _made(seen, "NCCL_TOPO_FILE", "rings and trees are planned for the links of this file, not for those "
                    "that NCCL finds", "topology")  # fmt: skip


def _checks(seen: Variables, _: Situation) -> Iterator[Forced]:
    if _on(seen.get("NCCL_CHECK_POINTERS")):
        yield _made(seen, "NCCL_CHECK_POINTERS", "every call checks its pointers", "checks")
    if seen.get("NCCL_CHECK_MODE", "DEFAULT").upper() != "DEFAULT":
        yield _made(seen, "NCCL_CHECK_MODE", "every call checks its arguments", "checks")


def _made(seen: Variables, name: str, does: str, topic: str, high: bool = False) -> Forced:
    return Forced(name, seen[name], does, topic, high)


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


_RULES: tuple[Callable[[Variables, Situation], Iterator[Forced]], ...] = (
    _transports, _gpu_direct, _rails, _switches, _registration, _channels, _choice, _topology, _checks,
)  # fmt: skip
