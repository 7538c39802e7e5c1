"""Which rank a process of an nsys file is (docs/decisions: ranks of an nsys file).

In this order: its MPI records, a thread named «MPI Rank 3», NCCL's communicator of the whole job, the environment of
the profiled command (RANK), the file's name; else processes by process id, then devices, file by file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope import when_used
from gpuscope.sources.nsys.formats.export_tables import Tables, pairs
from gpuscope.sources.nsys.rows.event_tables import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    MPI,
    NVTX,
    OSRT,
    RUNTIME,
    Events,
    Rows,
)
from gpuscope.sources.source import rank_in_name
from gpuscope.trace.columns.distinct import distinct, distinct_pairs, distinct_values, mapped
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA
from gpuscope.trace.world import WorldBasis
from gpuscope.when_used import dataclass

_RANK_VARIABLES = (
    # (rank, world size) as torchrun, Open MPI, PMIx, MPICH, MVAPICH, Cray PALS, LSF, Flux and Slurm name them.
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMIX_RANK", "PMIX_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PALS_RANKID", ""),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"),
    ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # SLURM_NTASKS is set in a batch script that starts one process, too
)
ON_DEVICE = (KERNEL, MEMCPY, MEMSET, GRAPH)
_VARIABLE = when_used.pattern(r"(?:^|[;\0\n\x01-\x1f])([A-Z][A-Z0-9_]*)=\"?(\d{1,7})(?=\"?(?:[;\0\n\x01-\x1f]|$))")
_MASTER = when_used.pattern(r"(?:^|[;\0\n\x01-\x1f])MASTER_ADDR=\"?([\w.:-]{1,255})")
_NODE_COUNTS = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "NNODES", "GROUP_WORLD_SIZE")
_MPI_RANK_LABEL = when_used.pattern(r"MPI Rank (\d+)$")


@dataclass
class Ranks:
    """Ranks by process (globalPid) and device."""

    of_process: dict[int, list[int]] = field(default_factory=dict)
    """The ranks of a process: several where it drives several devices and its rank is not recorded."""
    of_device: dict[tuple[int, int], int] = field(default_factory=dict)
    """Rank by (process, device), for every device that did work."""
    world_size: int | None = None
    world_basis: WorldBasis | None = None
    """Where the file records `world_size`."""
    basis: str = "order of processes"
    left_out: int = 0
    """Host events of processes that are no rank."""

    def on(self, process: int, device: int) -> int:
        """The rank of work of a process on a device; of work without a device the first of the process."""
        return self.of_device.get((process, device), self.of_process.get(process, [0])[0])


@dataclass(frozen=True)
class RecordedRanks:
    """What a file says of its processes' ranks."""

    rank: Mapping[int, int]
    world_size: int | None
    basis: str


def assign(
    path: Path,
    events: Events,
    names: NamePool,
    recorded: Iterable[RecordedRanks],
    environment: RecordedRanks,
    first: int | None = None,
) -> Ranks:
    """Give every process that takes part in the work its rank or ranks.

    `recorded` are the ranks in the records of the file, best first. `first` is the first rank to give where these
    and the environment say nothing (the file's name then does not count: it was compared with the other files').
    """
    devices = _devices_by_process(events)
    processes = _participants(events, names, devices)
    ranks = Ranks()
    # A communicator that was made while recording need not be the whole job's.
    least = max(environment.world_size or 0, 1 + environment.rank.get(0, -1))
    candidates = [own for own in recorded if own.world_size is None or own.world_size >= least]
    sizes: list[tuple[WorldBasis, int | None]] = [("communicators", own.world_size) for own in candidates]
    if len(devices) == 1 or len(processes) == 1:
        main = next(iter(devices), processes[0] if processes else NA)
        candidates.append(RecordedRanks({main: environment.rank.get(0, NA)}, environment.world_size, environment.basis))
        named = rank_in_name(path) if first is None else None
        candidates.append(RecordedRanks({main: NA if named is None else named}, None, "file name"))
    for candidate in candidates:
        known = {process: candidate.rank.get(process, NA) for process in devices or processes}
        if known and NA not in known.values() and len(set(known.values())) == len(known):
            ranks.basis = candidate.basis
            _assign_recorded(ranks, known, devices)
            break
    _number_the_rest(ranks, processes, devices, first or 0)
    count = sum(len(own) for own in ranks.of_process.values())
    for provenance, size in (*sizes, ("environment", environment.world_size)):
        if ranks.world_size is None and size is not None and size >= count:
            ranks.world_size, ranks.world_basis = size, provenance
    return ranks


def _assign_recorded(ranks: Ranks, known: Mapping[int, int], devices: Mapping[int, list[int]]) -> None:
    for process, rank in known.items():
        ranks.of_process[process] = [rank]
        for device in devices.get(process, ()):
            ranks.of_device[process, device] = rank


def _number_the_rest(ranks: Ranks, processes: list[int], devices: Mapping[int, list[int]], first: int) -> None:
    following = max((rank for own in ranks.of_process.values() for rank in own), default=first - 1) + 1
    for process in processes:
        if process not in ranks.of_process:
            own = devices.get(process, [NA])
            ranks.of_process[process] = list(range(following, following + len(own)))
            ranks.of_device.update({(process, d): following + i for i, d in enumerate(own) if d != NA})
            following += len(own)


def _devices_by_process(events: Events) -> dict[int, list[int]]:
    """Devices that did work, by process, both ascending."""
    return devices_by_process(events[table] for table in ON_DEVICE)


def devices_by_process(tables: Iterable[Rows]) -> dict[int, list[int]]:
    """Devices (`deviceId`) that did work by `process`, both ascending."""
    found: set[tuple[int, int]] = set()
    for rows in tables:
        found.update(distinct_pairs(rows["process"], rows["deviceId"])[0])
    devices: dict[int, list[int]] = {}
    for process, device in sorted(found):
        devices.setdefault(process, []).append(device)
    # A row without a device is no device of its own where others do.
    return {process: [d for d in own if d != NA] or own for process, own in devices.items()}


def _participants(events: Events, names: NamePool, devices: Mapping[int, list[int]]) -> list[int]:
    """Processes that are ranks: those with device work or launches; if there are none, those that called
    CUDA at all, then those with ranges or MPI calls, then the one with most operating-system calls."""
    calls = events[RUNTIME]
    launching = kinds_of_calls(events, names, kinds.is_kernel_launch)
    launched = set(distinct(calls["process"][launching])[0].tolist())
    for found in (
        launched | set(devices),
        set(distinct(calls["process"])[0].tolist()),
        {int(p) for table in (NVTX, *MPI) for p in distinct(events[table]["process"])[0]},
    ):
        if found:
            return sorted(found)
    processes, counts = np.unique(events[OSRT]["process"], return_counts=True)
    return [int(processes[counts.argmax()])] if len(processes) else []


def kinds_of_calls(events: Events, names: NamePool, predicate: Callable[[str], bool]) -> Mask:
    """Per runtime call, whether `predicate` holds of its name, shape (n,)."""
    codes = events[RUNTIME]["name"]
    used = distinct_values(codes)
    answers = np.array([predicate(names[code]) for code in used.tolist()], np.bool_)
    return mapped(codes, used, answers) if answers.any() else np.zeros(len(codes), np.bool_)


def mpi_ranks(tables: Tables) -> RecordedRanks:
    """MPI_RANKS, and the size of the largest communicator."""
    rows = tables.integers("MPI_RANKS", ("globalTid", "rank"))
    rank = {int(tid) & ~0xFFFFFF: int(r) for tid, r in zip(rows["globalTid"], rows["rank"], strict=True)}
    sizes = tables.integers("MPI_COMMUNICATORS", ("size",))["size"]
    known = sizes[sizes > 0]
    return RecordedRanks(rank, int(known.max()) if len(known) else None, "MPI_RANKS")


def labelled_ranks(events: Events) -> RecordedRanks:
    """Threads that nsys's MPI trace named «MPI Rank N»."""
    rank = {tid & ~0xFFFFFF: int(m[1]) for tid, label in events.thread_labels if (m := _MPI_RANK_LABEL.match(label))}
    return RecordedRanks(rank, None, "NVTX thread names")


def peek(tables: Tables) -> int | None:
    """The rank in the environment, without reading the events; None where several processes worked,
    or MPI's records hold the ranks."""
    if len(tables.integers("MPI_RANKS", ("rank",))["rank"]):
        return None
    found = [tables.integers(table, ("globalPid",))["globalPid"] for table in ON_DEVICE]
    processes = {process for column in found for process in distinct(column)[0].tolist()}
    return next(iter(environment(tables).rank.values()), None) if len(processes) == 1 else None


def nodes_and_master(tables: Tables) -> dict[str, Any]:
    """What the environment of the profiled command says of the job: the number of its nodes (`nodes`) and the address
    of its first (`master`); a key only where it does."""
    variables = _numbers_in_environment(tables)
    nodes = [variables[name] for name in _NODE_COUNTS if variables.get(name)]
    local, world = variables.get("LOCAL_WORLD_SIZE", 0), variables.get("WORLD_SIZE", 0)
    if local and world:
        nodes.append(-(-world // local))
    found: dict[str, Any] = {"nodes": max(nodes)} if nodes else {}
    for table, key in (("TARGET_INFO_SYSTEM_ENV", "DeviceEnvironment"), ("META_DATA_CAPTURE", "ENVIRONMENT_VARIABLE")):
        for name, value in pairs(tables, table, "name", "value"):
            if name.endswith(key) and (match := _MASTER.search(value)):
                found["master"] = match[1]
    return found


def _numbers_in_environment(tables: Tables) -> dict[str, int]:
    """Variables of the profiled command whose value is a number."""
    variables: dict[str, int] = {}
    for name, value in pairs(tables, "TARGET_INFO_SYSTEM_ENV", "name", "value"):
        if name == "DeviceEnvironment":
            variables.update({m[1]: int(m[2]) for m in _VARIABLE.finditer(value)})
    for name, value in pairs(tables, "META_DATA_CAPTURE", "name", "value"):
        if name.endswith(":ENVIRONMENT_VARIABLE") and (match := _VARIABLE.match(value)):
            variables[match[1]] = int(match[2])
    return variables


def environment(tables: Tables) -> RecordedRanks:
    """RANK and its equivalents in the environment of the profiled command; the rank stands under key 0."""
    variables = _numbers_in_environment(tables)
    for rank, size in _RANK_VARIABLES:
        if rank in variables:
            return RecordedRanks({0: variables[rank]}, variables.get(size), f"environment {rank}")
    return RecordedRanks({}, variables.get("WORLD_SIZE"), "")
