"""Findings from NCCL's own records: slow transports, fewer channels, degraded links, wrong results, what was set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from gpuscope import when_used
from gpuscope.analyzers.nccl.logged.forced_settings import forced, situation
from gpuscope.analyzers.topology import nvlinks
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
from gpuscope.hardware.link_rates import can_have_fabric, compute_capability, gpu_fabric
from gpuscope.schema.document import FindingEntry
from gpuscope.schema.nccl_sections import Nccl
from gpuscope.trace.trace import Row, Trace


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
    pairs = nvlinks.narrow_pairs(links, nvlinks.ranks_of(communicators))
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
    pairs = nvlinks.narrow_pairs(links, nvlinks.ranks_of(communicators))
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
    for of_host in nvlinks.sums(links, kinds, column).values():
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
