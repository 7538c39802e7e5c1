"""A link's fixed cost and bandwidth, fitted to the collectives of a report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.analyzers.planning.costs.rates import Link
from gpuscope.collective_costs.bus_bandwidth import bus_bytes
from gpuscope.words import units

if TYPE_CHECKING:
    from gpuscope.schema.nccl_sections import BandwidthEntry

_KINDS = {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}
"""Parts of the names that `gpuscope train` gives its groups; what is in none of them is data parallelism's."""


def measured_links(entries: Sequence[BandwidthEntry]) -> tuple[dict[str, Link], list[str]]:
    """Links by kind of parallelism and for all others (`any`), with a sentence on each."""
    by_kind: dict[str, list[tuple[float, float, int, int]]] = {}
    for entry in entries:
        point = _point(entry)
        if point is not None:
            by_kind.setdefault(_kind(entry["group"]), []).append(point)
            by_kind.setdefault("any", []).append(point)
    links = {kind: fitted(points) for kind, points in by_kind.items()}
    if len(links) == 2:
        links = {"any": links["any"]}
    return links, [_sentence(kind, link) for kind, link in links.items()]


def _kind(group: str | None) -> str:
    words = (group or "").lower().replace("-", "_").split("_")
    return next((kind for word, kind in _KINDS.items() if word in words), "data")


def _point(entry: BandwidthEntry) -> tuple[float, float, int, int] | None:
    """Bytes on the wire and ns of a call, calls, and ranks; None where the size or group is not known."""
    size = entry["group_size"] or 2
    wire = bus_bytes(entry["op"], entry["bytes"] or 0, size)
    if not wire or not entry["busbw_gbps"] or entry["tool"] != "trace":
        return None
    return wire, wire / entry["busbw_gbps"], entry["count"], size


def fitted(points: Sequence[tuple[float, float, int, int]]) -> Link:
    """Least squares of α + bytes / busbw, relative to each time and weighted by calls; α not below 0. One size alone
    gives a bandwidth that contains its fixed cost."""
    wire, time, count, ranks = (np.array(column, np.float64) for column in zip(*points, strict=True))
    weight = np.sqrt(count) / time
    both = np.stack([np.ones_like(wire), wire], 1) * weight[:, None]
    (alpha, per_byte), *_ = np.linalg.lstsq(both, time * weight, rcond=None)
    if len(set(wire)) < 2 or alpha < 0 or per_byte <= 0:
        alpha = 0.0
        per_byte = float((wire * time * weight**2).sum() / ((wire * weight) ** 2).sum())
    return Link(float(alpha), 1 / float(per_byte), int(np.median(ranks)))


def _sentence(kind: str, link: Link) -> str:
    name = "all collectives" if kind == "any" else f"{kind} parallelism"
    return f"{name}: {units.bandwidth(link.busbw_gbps)} busbw and {units.duration(link.alpha_ns)} per call"
