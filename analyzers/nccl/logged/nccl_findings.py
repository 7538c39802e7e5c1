"""Findings from NCCL's own records: slow transports, fewer channels, degraded links, wrong results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Literal

from gpuscope.analyzers.topology import nvlinks
from gpuscope.report.schema.document import FindingEntry
from gpuscope.report.view import units
from gpuscope.trace.trace import Row

NAMED = 4
"""Pairs or links that a message names."""


def find(
    communicators: Sequence[Row], connections: Sequence[Row], measured: Sequence[Row], links: Sequence[Row]
) -> list[FindingEntry]:
    """The findings; the records don't give their cost, so cost and share are 0."""
    found = [
        _slow_transport(connections),
        _fewer_channels(communicators, links),
        _degraded_link(communicators, links),
        _wrong(measured),
    ]
    return [finding for finding in found if finding is not None]


def stated(
    code: str, severity: Literal["high", "medium", "low"], message: str, ranks: Iterable[int] = ()
) -> FindingEntry:
    """A finding whose cost the records don't give."""
    return {
        "code": code, "severity": severity, "message": message, "ranks": sorted(ranks), "cost_ns_per_step": 0,
        "cost_ns": 0, "share_frac": 0.0, "evidence": [],
    }  # fmt: skip


def _slow_transport(connections: Sequence[Row]) -> FindingEntry | None:
    inside = [row for row in connections if row["same_node"] == 1 and row["transport"].startswith("NET/")]
    sockets = [row for row in connections if row["transport"].startswith("NET/Socket") and row["same_node"] != 1]
    if not inside and not sockets:
        return None
    said = []
    if inside:
        said.append(
            f"{units.plural(len(inside), 'pair')} of ranks on one host communicate over the network "
            f"({_named(inside)}), not over NVLink, PCIe or shared memory"
        )
    if sockets:
        said.append(
            f"{units.plural(len(sockets), 'pair')} of ranks on different hosts communicate over sockets "
            f"({_named(sockets)}), without RDMA"
        )
    return stated(
        "slow_transport",
        "high" if inside else "medium",
        "; ".join(said),
        sorted({row["rank"] for row in inside or sockets}),
    )


def _named(rows: Sequence[Row]) -> str:
    more = f" and {len(rows) - NAMED} more" if len(rows) > NAMED else ""
    return ", ".join(f"{row['rank']}→{row['peer']} {row['transport']}" for row in rows[:NAMED]) + more


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
    why = (
        f"The topology shows why: {'; '.join(pair.words for pair in pairs[:NAMED])}"
        if pairs
        else "A degraded NVLink or PCIe link can cause this; a topology file of these hosts would name it"
    )
    return stated(
        "fewer_channels",
        "medium",
        f"{len(ranks)} of {len(_ranks(known))} ranks have fewer channels than others in communicators of "
        f"the same size: {least['channels']} instead of {most[least['size'], least['nodes']]} (size {least['size']}). "
        f"{why}",
        ranks,
    )


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
    more = f"; and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return stated(
        "degraded_link",
        "medium",
        "; ".join(found[:NAMED]) + more,
        sorted({rank for pair in pairs for rank in pair.ranks}),
    )


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
    return stated(
        "wrong_results",
        "high",
        f"nccl-tests found wrong values in {units.plural(len(wrong), 'row')}: {worst['wrong']} elements of "
        f"{worst['op']} at {units.size(worst['bytes'])}",
        [],
    )


def _ranks(rows: Iterable[Row]) -> list[int]:
    return sorted({row["rank"] for row in rows if row["rank"] is not None})
