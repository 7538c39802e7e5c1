"""Variables of NCCL that were set to something its own choice would beat, as far as the log tells.

NCCL's user guide sorts most of these under «Debugging»: «generally not to be set for production code» (NVIDIA/nccl
docs/userguide/source/env.rst, 2.32). For each the remedy is the default, so to unset it. Whether a variable can matter
is judged by what the log shows of the job: hosts, transports, GPUs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

from gpuscope import when_used
from gpuscope.analyzers.topology import counter_means
from gpuscope.catalogue.finding import made
from gpuscope.catalogue.findings.nccl import (
    DegradedLink,
    FewerChannels,
    ForcedSetting,
    NcclTestsFailed,
    NcclWarning,
    NoGpuDirect,
    SlowTransport,
    WrongResults,
)
from gpuscope.hardware.boards import kept_by_vendors
from gpuscope.hardware.link_rates import can_have_fabric, compute_capability, gpu_fabric
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import Nccl
from gpuscope.trace.trace import Row, Trace
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


# Findings from NCCL's own records: slow transports, fewer channels, degraded links, wrong results, what was set.


def find(trace: Trace) -> list[FindingEntry]:
    """The findings; the records don't give their cost, so cost and share are 0."""
    communicators, connections = trace.rows("communicators"), trace.rows("connections")
    measured, links = trace.rows("measurements"), trace.rows("topology")
    found = [
        _warned(trace.rows("hang_signs"), len(measured)),
        _slow_transport(trace, communicators, connections),
        _fewer_channels(communicators, links),
        _degraded_link(communicators, links),
        _wrong(measured),
    ]
    return [finding for finding in found if finding is not None]


_FAILED_ON = when_used.pattern(r"^\W*([\w.-]+)(?: pid \d+)?: Test ")
_WARNED = when_used.pattern(r"(?:(?P<host>[\w.-]+):\d+:\d+ \[-?\d+\] )?(?P<place>\S+:\d+ )?NCCL WARN (?P<text>.*)")
_FAULTS = frozenset({"nccl_warning", "network"})


def _warned(signs: Sequence[Row], rows: int) -> FindingEntry | None:
    """What NCCL warned of, and whether nccl-tests failed of it."""
    warnings = [row for row in signs if row["sign"] in _FAULTS and "NCCL WARN" in (row["text"] or "")]
    failures = [row["text"] or "" for row in signs if row["sign"] == "test_failed"]
    texts = list(dict.fromkeys(_warning(row["text"]) for row in warnings))
    if failures:
        hosts = dict.fromkeys(match[1] for text in failures if (match := _FAILED_ON.match(text)) is not None)
        return made(NcclTestsFailed(list(hosts), failures[0], texts, rows), ranks=_ranks(warnings))
    told = [
        text
        for text, row in zip(map(_warning, (row["text"] for row in warnings)), warnings, strict=True)
        if row["sign"] == "nccl_warning"
    ]
    if not told:
        return None  # errors of the network are the hang's
    return made(NcclWarning(list(dict.fromkeys(told)), len(told)), ranks=_ranks(warnings))


def _warning(line: str) -> str:
    """`Net : connecting to … (misc/socket.cc:397, node1)`."""
    match = _WARNED.search(line)
    if match is None:
        return line
    places = ", ".join(part.strip() for part in (match["place"], match["host"]) if part)
    return f"{' '.join(match['text'].split())} ({places})" if places else " ".join(match["text"].split())


def _slow_transport(trace: Trace, communicators: Sequence[Row], connections: Sequence[Row]) -> FindingEntry | None:
    inside = [row for row in connections if row["same_node"] == 1 and row["transport"].startswith("NET/")]
    sockets = [row for row in connections if row["transport"].startswith("NET/Socket") and row["same_node"] != 1]
    hosts = 0 if connections else _hosts_over_sockets(trace, communicators)
    if not inside and not sockets and not hosts:
        return None
    variables = (pair for source in trace.sources for pair in source.facts.get("nccl_environment", ()))
    forbidden = {f"{name}={value}" for name, value in variables if (name, value.lower()) in _NO_RDMA}
    reasons = sorted({code for source in trace.sources for code in source.facts.get("no_rdma", ())})
    return made(
        SlowTransport(
            _pairs(inside),
            _pairs(sockets),
            hosts=hosts,
            no_rdma=[*sorted(forbidden), *reasons] if sockets or hosts else [],
        ),
        ranks={row["rank"] for row in inside or sockets},
        severity="high" if inside else "medium",
    )


_NO_RDMA = frozenset({("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "socket")})


def _hosts_over_sockets(trace: Trace, communicators: Sequence[Row]) -> int:
    """How many hosts a job has whose logs name sockets as its only network; 0 for one host, which uses none."""
    networks = {name for source in trace.sources for name in source.facts.get("networks", ())}
    hosts = len({row["host"] for row in communicators if row["host"]})
    nodes = max((row["nodes"] or 0 for row in communicators), default=0)
    return max(hosts, nodes) if networks == {"Socket"} and max(hosts, nodes) > 1 else 0


def _pairs(rows: Sequence[Row]) -> list[str]:
    return [f"{row['rank']}→{row['peer']} {row['transport']}" for row in rows]


def _fewer_channels(communicators: Sequence[Row], links: Sequence[Row]) -> FindingEntry | None:
    """Communicators of one size over as many hosts should get as many channels."""
    most: dict[tuple[int, int | None], int] = defaultdict(int)
    known = [row for row in communicators if row["channels"] is not None]
    for row in known:
        kind = (row["size"], row["nodes"])
        most[kind] = max(most[kind], row["channels"])
    fewer = [row for row in known if row["channels"] < most[row["size"], row["nodes"]]]
    if not fewer:
        return None
    least = min(fewer, key=lambda row: row["channels"])
    ranks = _ranks(fewer)
    pairs = counter_means.narrow_pairs(links, counter_means.ranks_of(communicators))
    words = FewerChannels(
        len(ranks),
        len(_ranks(known)),
        least["channels"],
        most[least["size"], least["nodes"]],
        least["size"],
        [pair.words for pair in pairs],
    )
    return made(words, ranks=ranks)


def _degraded_link(communicators: Sequence[Row], links: Sequence[Row]) -> FindingEntry | None:
    """GPUs of one host whose NVLinks, or whose PCIe lanes and rate, are fewer than other GPUs' of that host."""
    pairs = counter_means.narrow_pairs(links, counter_means.ranks_of(communicators))
    found = [pair.words for pair in pairs]
    if not pairs:
        found += _below(links, ("nvlink", "nvswitch"), "width", "NVLinks")
    found += _below(links, ("pcie",), "width", "PCIe lanes")
    found += _below(links, ("pcie",), "rate", "B/s over PCIe")
    if not found:
        return None
    return made(DegradedLink(found), ranks={rank for pair in pairs for rank in pair.ranks})


def _below(links: Iterable[Row], kinds: Sequence[str], column: Literal["width", "rate"], what: str) -> list[str]:
    found = []
    for of_host in counter_means.sums(links, kinds, column).values():
        most = max(of_host.values())
        found += [
            f"{gpu} has {value:,} {what} where others have {most:,}".replace(",", "\u202f")
            for gpu, value in sorted(of_host.items())
            if value < most
        ]
    return found


def _wrong(measured: Sequence[Row]) -> FindingEntry | None:
    wrong = [row for row in measured if row["wrong"]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda row: row["wrong"])
    return made(WrongResults(len(wrong), worst["wrong"], worst["op"], worst["bytes"]), ranks=())


def _ranks(rows: Iterable[Row]) -> list[int]:
    return sorted({row["rank"] for row in rows if row["rank"] is not None})


CONSUMER = ("GeForce",)
"""Product names whose driver offers no peer access over PCIe from the 40 series on."""


def of_settings(nccl: Nccl) -> list[FindingEntry]:
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
