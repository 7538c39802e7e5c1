"""What is recorded of a job's software and hosts: versions, variables, cores. Advice must fit them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.recorded_environment import NAMES
from gpuscope.schema.document import SetupEntry
from gpuscope.sources.run_manifest import environments
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.trace import Trace


def setup(trace: Trace, folders: Sequence[Path]) -> SetupEntry:
    """From the environments that the run folders hold, and from what the files say of themselves."""
    told = {rank: one for folder in folders for rank, one in environments(folder).items()}
    versions: dict[str, str] = {}
    variables: dict[str, str] = {}
    for source in trace.sources:
        if source.format == "compile-log" and source.format_version:
            versions["torch"] = source.format_version
        header = source.facts.get("header")
        versions |= _of_header(header) if isinstance(header, Mapping) else {}
    for one in told.values():
        versions |= {name: value for name, value in one["versions"].items() if isinstance(value, str)}
        variables |= {name: value for name, value in one["variables"].items() if name not in NAMES}
    counted = [*_by_affinity(told), *_by_file(trace)]
    return {
        "versions": versions,
        "variables": variables,
        "cores_per_rank": max(min(counted), 1) if counted else None,
        "stacks": stacks_recorded(trace),
    }


def _of_header(header: Mapping[str, Any]) -> dict[str, str]:
    """Versions that Kineto writes: CUDA's as 12040 for 12.4, HIP's as 60443483 for 6.4.43483."""
    found: dict[str, str] = {}
    for name, unit in (("cuda", 1_000), ("hip", 10_000_000)):
        for part in ("runtime", "driver"):
            number = str(header.get(f"{name}_{part}_version", ""))
            if number.isdecimal() and int(number):
                major, rest = divmod(int(number), unit)
                least = rest // 10 if name == "cuda" else f"{rest // 100_000}.{rest % 100_000}"
                found[f"{name} {part}"] = f"{major}.{least}"
    return found


_FRAME = when_used.pattern(r"\.py\(\d+\): \S|^<built-in \w+ ")
"""How torch's profiler names a Python function."""


def stacks_recorded(trace: Trace) -> bool:
    """Whether a profiler recorded Python's stacks."""
    headers = (source.facts.get("header") for source in trace.sources)
    asked = any(isinstance(header, Mapping) and header.get("with_stack") for header in headers)
    return asked or any(_FRAME.search(name) for name in trace.names.names)


def _by_affinity(told: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> Iterator[int]:
    """The cores a rank may use, by how many ranks of its host may use the same ones."""
    allowed = {rank: one["platform"].get("affinity") for rank, one in told.items()}
    sets = {rank: frozenset(map(str, cores)) for rank, cores in allowed.items() if isinstance(cores, list) and cores}
    alike = Counter(sets.values())
    for rank, cores in sets.items():
        local = told[rank]["variables"].get("LOCAL_WORLD_SIZE", "")
        sharing = min(alike[cores], int(local)) if local.isdecimal() and int(local) else alike[cores]
        yield len(cores) // sharing


def cores_counted(trace: Trace) -> int | None:
    """The fewest cores that a rank has, as its files tell; None where none does."""
    counted = list(_by_file(trace))
    return max(min(counted), 1) if counted else None


def _by_file(trace: Trace) -> Iterator[int]:
    """The cores that a recorder counted in its process, or nsys on its host, by the ranks of that host: those at hand,
    of a larger job as many as it has devices."""
    ranks, names = trace["ranks"], trace.names
    of_rank = dict(zip(ranks["rank"].tolist(), ranks["host"].tolist(), strict=True))
    on_host = Counter(of_rank.values())
    columns = (ranks[name].tolist() for name in ("source", "rank", "host_devices", "world_size"))
    for source, rank, listed, world in sorted(set(zip(*columns, strict=True))):
        facts = trace.sources[source].facts
        header = facts.get("header")
        counted = header.get("gpuscope_cores") if isinstance(header, Mapping) else None
        cores = counted.get("cores") if isinstance(counted, Mapping) else facts.get("cpu_cores")
        if str(cores).isdecimal() and int(str(cores)):
            devices = len(names[listed].split(",")) if listed != NO_NAME else 1
            # Ranks of no known host are taken to be together: then each has the fewest.
            here = on_host[of_rank[rank]] if of_rank[rank] != NO_NAME else len(of_rank)
            yield int(str(cores)) // max(here, min(devices, world))
