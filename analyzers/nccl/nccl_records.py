"""What NCCL and its tools recorded: channels, transports, algorithms, links of a host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuscope.analyzers.base.analyzer import Need, Result, any_of
from gpuscope.analyzers.base.lanes import NCCL, TOPOLOGY
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.schema.nccl_sections import (
    ChoiceEntry,
    CommunicatorEntry,
    Nccl,
    PortEntry,
    TopologyEntry,
    TransportEntry,
    VariableEntry,
)
from gpuscope.trace.trace import Row, Trace


def run(facts: RunFacts) -> Result:
    """The sections `nccl` and `topology`, each only where something of it was recorded."""
    from gpuscope.analyzers.nccl import forced_settings

    result, trace = Result(ANALYZER.name), facts.trace
    communicators, connections = trace.rows("communicators"), trace.rows("connections")
    choices = trace.rows("choices")
    if communicators or connections or choices:
        result.sections[NCCL] = Nccl(
            versions=sorted({row["version"] for row in communicators if row["version"]} | _versions(trace)),
            average_busbw_gbps=[
                value for source in trace.sources for value in source.facts.get("average_busbw_gbps", ())
            ],
            communicators=_communicators(communicators),
            transports=_transports(connections),
            choices=_choices(choices),
            environment=_environment(trace),
            networks=sorted({name for source in trace.sources for name in source.facts.get("networks", ())}),
            ports=_ports(trace),
            gpus=sorted({row["device_name"] for row in (*communicators, *trace.rows("ranks")) if row["device_name"]}),
        )
    links = trace.rows("topology")
    if links:
        result.sections[TOPOLOGY] = _topology(trace, links)
    result.findings += forced_settings.find(trace)
    if NCCL in result.sections:
        result.findings += forced_settings.of_settings(result.sections[NCCL])
    return result


def _versions(trace: Trace) -> set[str]:
    versions = (source.facts.get("version") or source.facts.get("nccl_version") for source in trace.sources)
    return {str(version) for version in versions if version}


def _communicators(found: Sequence[Row]) -> list[CommunicatorEntry]:
    """Communicators of one configuration are one entry; where the ranks of one differ, the largest figure counts."""
    by_name: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        by_name[row["communicator"]].append(row)
    same: dict[tuple[int | None, ...], list[list[Row]]] = defaultdict(list)
    columns = ("size", "nodes", "channels", "p2p_channels", "rings", "trees")
    for own in by_name.values():
        same[tuple(max((row[c] for row in own if row[c] is not None), default=None) for c in columns)].append(own)
    return [
        {
            "size": key[0] or 0,
            "nodes": key[1],
            "count": _count(groups, key[0] or 1),
            "ranks": sorted({row["rank"] for own in groups for row in own if row["rank"] is not None}),
            "channels": key[2],
            "p2p_channels": key[3],
            "rings": key[4],
            "trees": key[5],
        }
        for key, groups in sorted(same.items(), key=lambda item: [-(value or 0) for value in item[0]])
    ]


def _count(groups: Sequence[Sequence[Row]], size: int) -> int:
    """How many communicators; those that each rank has its own name for (host:pid:pointer) by their ranks."""
    own = sum(":" in group[0]["communicator"] for group in groups)
    return len(groups) - own + -(-own // size)


def _transports(connections: Sequence[Row]) -> list[TransportEntry]:
    groups: dict[tuple[str, int | None], list[Row]] = defaultdict(list)
    for row in connections:
        groups[row["transport"], row["same_node"]].append(row)
    entries: list[TransportEntry] = [
        {
            "transport": transport,
            "same_node": None if same is None else bool(same),
            "pairs": len({(row["communicator"], row["rank"], row["peer"]) for row in own}),
            "connections": sum(row["count"] for row in own),
        }
        for (transport, same), own in groups.items()
    ]
    return sorted(entries, key=lambda entry: (-entry["connections"], entry["transport"]))


def _choices(found: Sequence[Row]) -> list[ChoiceEntry]:
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in found:
        key = row["op"], row["group_size"], row["bytes"], row["algorithm"], row["protocol"], row["channels"]
        groups[key].append(row)
    entries: list[ChoiceEntry] = []
    for (op, size, nbytes, algorithm, protocol, channels), own in groups.items():
        ranks = [row["ranks"] for row in own if row["ranks"] is not None]
        entries.append(
            {
                "op": op,
                "group_size": size,
                "bytes": nbytes,
                "algorithm": algorithm,
                "protocol": protocol,
                "channels": channels,
                "ranks": sum(ranks) if ranks else None,
                "count": sum(row["count"] for row in own),
            }
        )
    return sorted(entries, key=lambda entry: (entry["op"] or "", entry["bytes"], -entry["count"]))


def _environment(trace: Trace) -> list[VariableEntry]:
    variables = {pair for source in trace.sources for pair in source.facts.get("nccl_environment", ())}
    return [{"name": name, "value": value} for name, value in sorted(variables)]


def _ports(trace: Trace) -> list[PortEntry]:
    layers: dict[str, str] = {}
    direct: dict[str, bool] = {}
    for source in trace.sources:
        layers |= source.facts.get("ports", {})
        for name, enabled in source.facts.get("gpu_direct", {}).items():
            direct[name] = direct.get(name, True) and enabled
    return [
        {"name": name, "link_layer": layers.get(name), "gpu_direct": direct.get(name)}
        for name in sorted({*layers, *direct})
    ]


def _topology(trace: Trace, links: Sequence[Row]) -> list[TopologyEntry]:
    return [
        {
            "source": Path(trace.sources[row["source"]].path).name,
            "node": row["node"],
            "peer": row["peer"],
            "link": row["link"],
            "width": row["width"],
            "rate_gbps": None if row["rate"] is None else row["rate"] / 1e9,
        }
        for row in links
    ]


ANALYZER = RunAnalyzer(
    "nccl_records",
    run,
    (
        Need(
            "records of NCCL",
            "add a log of NCCL_DEBUG=INFO, nccl-tests' output or a topology file to the traces",
            any_of("communicators", "connections", "choices", "measurements", "topology", "hang_signs"),
            optional=True,
        ),
    ),
    (NCCL, TOPOLOGY),
)
