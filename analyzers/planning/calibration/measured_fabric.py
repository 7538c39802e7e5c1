"""A cluster's links as `gpuscope bench collectives --json` or nccl-tests measured them, by placement and by size of the
group."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gpuscope.analyzers.planning.calibration.measured_links import fitted
from gpuscope.analyzers.planning.inputs.cluster import Cluster
from gpuscope.collective_costs.bus_bandwidth import bus_bytes
from gpuscope.collective_costs.nccl_model import RING_STEPS
from gpuscope.errors import InputError
from gpuscope.hardware.link_rates import Link, base_latency_ns
from gpuscope.sources.nccl.nccl_tests_rows import Tables
from gpuscope.words import units

_HINT = (
    "write it with gpuscope bench collectives --json, or keep all that nccl-tests prints: its line «# Collective test "
    "starting: all_reduce_perf» names the operation"
)
_OPS = (*RING_STEPS, "all_to_all")


class _Timing(NamedTuple):
    op: str
    ranks: int
    hosts: int
    nbytes: int
    ns: float


def with_bench(cluster: Cluster, path: Path) -> tuple[Cluster, list[str]]:
    """The cluster with what was measured in place of its links' usual rates, and a sentence for each.

    Raises `InputError` where the file holds no collective of two ranks or more.
    """
    groups: dict[tuple[int, int], list[_Timing]] = {}
    for timing in _timings(cluster, path):
        groups.setdefault((timing.hosts, timing.ranks), []).append(timing)
    if not groups:
        raise InputError(f"{path} holds no timed collectives", hint=_HINT)
    told: list[str] = []
    between: dict[int, float] = {}
    for (hosts, ranks), rows in sorted(groups.items()):
        # Rings tell a link's rate; only where none was measured do all-to-alls.
        rings = [row for row in rows if row.op != "all_to_all"] or rows
        link = fitted([(bus_bytes(row.op, row.nbytes, ranks) or 0.0, row.ns, 1, ranks) for row in rings])
        where = "in one host" if hosts == 1 else f"over {units.plural(hosts, 'host')}"
        told.append(
            f"{ranks} ranks {where}: {units.bandwidth(link.busbw_gbps)} busbw and "
            f"{units.duration(link.alpha_ns)} per call"
        )
        steps = max(RING_STEPS.get(rings[0].op, 1) * (ranks - 1), 1)
        latency = max(round((link.alpha_ns - base_latency_ns()) / steps), 0)
        if hosts == 1:
            cluster = replace(cluster, inside=_measured(cluster.inside, link.busbw_gbps, latency))
        else:
            # A ring over hosts has the ports of all its members in a host.
            between[hosts] = link.busbw_gbps / max(ranks // hosts, 1)
            if cluster.network is not None:
                port = between[hosts] * cluster.gpus_per_host / cluster.ports
                cluster = replace(cluster, network=_measured(cluster.network, port, latency))
    return replace(cluster, between=tuple(sorted(between.items())), measured=_covered(cluster, groups)), told


def with_link(cluster: Cluster, gbps: float) -> Cluster:
    """The cluster with so many GB/s per GPU between hosts, or between the GPUs of the only host."""
    if cluster.network is None:
        return replace(cluster, inside=_measured(cluster.inside, gbps, cluster.inside.latency_ns), measured=True)
    port = gbps * cluster.gpus_per_host / cluster.ports
    network = _measured(cluster.network, port, cluster.network.latency_ns)
    return replace(cluster, network=network, between=(), measured=True)


def _covered(cluster: Cluster, groups: dict[tuple[int, int], list[_Timing]]) -> bool:
    """Whether the placements that the cluster has were measured."""
    return cluster.hosts == 1 or any(hosts > 1 for hosts, _ in groups)


def _measured(link: Link, gbps: float, latency: int) -> Link:
    return replace(link, name=f"{link.name}, measured", usable=gbps, latency_ns=latency)


def _timings(cluster: Cluster, path: Path) -> list[_Timing]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or 'is not text'}", hint=_HINT) from None
    if not text.lstrip().startswith("{"):
        tables = Tables()
        for line in text.splitlines():
            tables.feed(line)
        hosts = len({device.host for device in tables.devices.values()})
        rows = [(row.op, row.ranks, row.size, row.dur) for row in tables.rows]
        return [
            _Timing(op, n, hosts or _hosts(cluster, n), size, ns)
            for op, n, size, ns in rows
            if _usable(op, n, size, ns)
        ]
    try:
        document = json.loads(text)
        rows = [
            (str(row["op"]), int(row["ranks"]), int(row["nbytes"]), int(row["time_ns"])) for row in document["rows"]
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{path} is not what gpuscope bench collectives --json writes", hint=_HINT) from None
    return [_Timing(op, n, _hosts(cluster, n), size, ns) for op, n, size, ns in rows if _usable(op, n, size, ns)]


def _usable(op: str, ranks: int, size: int, ns: int) -> bool:
    return op in _OPS and ranks > 1 and size > 0 and ns > 0


def _hosts(cluster: Cluster, ranks: int) -> int:
    """Our own document does not say: ranks fill one host after the other."""
    return -(-ranks // cluster.gpus_per_host)
