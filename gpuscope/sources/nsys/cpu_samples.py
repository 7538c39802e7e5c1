"""What a thread was doing by the profiler's samples of its stack, as ranges: a function lasts from the first of several
samples that find it at its place of the stack to the last.

nsys samples a thread while it runs (`--sample=process-tree`): COMPOSITE_EVENTS holds the samples, SAMPLING_CALLCHAINS
their frames, depth 0 the innermost. Where there are none, the call chains of CUDA calls (`--cudabacktrace`,
`--python-backtrace=cuda`) say as much of the instants of these calls. SCHED_EVENTS (`--cpuctxsw=process-tree`) says
when a thread left its core and came back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope import when_used
from gpuscope.problems import reading
from gpuscope.sources.nsys.event_tables import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    MPI,
    NVTX,
    OSRT,
    OVERHEAD,
    PROFILER,
    RUNTIME,
    Events,
    Rows,
    absences,
    process_of,
    take,
)
from gpuscope.sources.nsys.export_tables import StringTable, Tables, pairs
from gpuscope.sources.source import rank_in_name
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.frameworks import OFF_CORE, function_text
from gpuscope.trace.intervals import Spans, subtract, union
from gpuscope.trace.name_pool import NO_NAME, NamePool
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import (
    Array,
    Mask,
    Times,
    compact,
    constant,
    distinct,
    distinct_pairs,
    distinct_values,
    is_constant,
    mapped,
    places,
)
from gpuscope.trace.trace import WorldBasis
from gpuscope.when_used import dataclass

# Which rank a process of an nsys file is (docs/decisions: ranks of an nsys file).
#
# In this order: its MPI records, a thread named «MPI Rank 3», NCCL's communicator of the whole job, the environment of
# the profiled command (RANK), the file's name; else processes by process id, then devices, file by file.

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


SAMPLED = "sampled functions"
"""Name of the rows in `Events`: of no table of the export."""
_SAMPLES, _FRAMES, _SWITCHES = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS", "SCHED_EVENTS"
_CALLS = "CUDA_CALLCHAINS"
APART = 3
"""Usual periods between two samples of a thread from which it did something else in between: it did not run."""


def read_samples(tables: Tables, events: Events, names: NamePool) -> None:
    """Add what the threads that call CUDA, HIP or the driver were sampled in, and when they were off their core."""
    present = set(tables.names())
    found = [_NONE]
    if present & {_SAMPLES, _SWITCHES}:
        threads = distinct_values(events[RUNTIME]["globalTid"]).astype(np.int64)
        if {_SAMPLES, _FRAMES} <= present:
            found.append(_sampled(tables, names, threads, _SAMPLES, "id", _FRAMES))
        if _CALLS in present and not len(found[-1]["start"]):
            found.append(_sampled(tables, names, threads, RUNTIME, "callchainId", _CALLS))
        if _SWITCHES in present:
            switches = tables.integers(_SWITCHES, ("start", "isSchedIn", "globalTid"))
            found += [_off_core(switches, events, names, thread) for thread in threads.tolist()]
    rows = {column: np.concatenate([one[column] for one in found]) for column in _COLUMNS}
    events.tables[SAMPLED] = {**rows, "process": process_of(rows["globalTid"])}


_COLUMNS = ("start", "end", "globalTid", "name")
_NONE: Rows = {column: np.empty(0, np.int64) for column in _COLUMNS}


def _off_core(switches: Rows, events: Events, names: NamePool, thread: int) -> Rows:
    """When a thread was off its core outside of its calls."""
    own = np.flatnonzero((switches["globalTid"] == thread) & (switches["start"] != NA))
    own = own[np.argsort(switches["start"][own], kind="stable")]
    time, comes = switches["start"][own], switches["isSchedIn"][own] == 1
    leaves = np.flatnonzero(~comes[:-1] & comes[1:])
    away = Spans(time[leaves], time[leaves + 1])
    for table in (OSRT, RUNTIME):
        calls = np.flatnonzero((events[table]["globalTid"] == thread) & (events[table]["end"] != NA))
        away = subtract(away, union(events[table]["start"][calls], events[table]["end"][calls]))
    count = len(away.start)
    code = names.code(OFF_CORE) if count else NO_NAME
    return {"start": away.start, "end": away.end, "globalTid": np.full(count, thread), "name": np.full(count, code)}


def _sampled(tables: Tables, names: NamePool, threads: Times, table: str, key: str, chains: str) -> Rows:
    """The functions that the rows of a table found the threads in, whose frames stand in `chains` by `key`."""
    samples = tables.integers(table, (key, "start", "globalTid"))
    kept = np.isin(samples["globalTid"], threads) & (samples["start"] != NA) & (samples[key] != NA)
    if not kept.any():
        return _NONE
    order = np.flatnonzero(kept)
    order = order[np.lexsort((samples["start"][order], samples["globalTid"][order]))]
    thread, time = samples["globalTid"][order], samples["start"][order]
    sample, level, name = _stacks(tables, names, samples[key][order], chains)
    return _spans(thread, time, sample, level, name)


def _stacks(tables: Tables, names: NamePool, ids: Times, chains: str) -> tuple[Times, Times, Times]:
    """The frames with a name of some samples: place of the sample, level from the outermost (0), name code."""
    frames = tables.integers(chains, ("id", "symbol", "module", "stackDepth"))
    outermost_first = np.lexsort((-frames["stackDepth"], frames["id"]))
    of = frames["id"][outermost_first]
    first, count = places(of, ids), places(of, ids, "right") - places(of, ids)
    sample = np.repeat(np.arange(len(ids)), count)
    rows = outermost_first[np.arange(len(sample)) - np.repeat(np.cumsum(count) - count - first, count)]
    codes = _functions(tables, names, frames["symbol"][rows], frames["module"][rows])
    sample, codes = sample[codes != NO_NAME], codes[codes != NO_NAME]
    return sample, np.arange(len(sample)) - places(sample, sample), codes


def _functions(tables: Tables, names: NamePool, symbol: Times, file: Times) -> Times:
    """Name codes of the functions of frames; `NO_NAME` for those without a name."""
    strings = StringTable(tables, names, [symbol, file])
    pairs, which = np.unique(np.stack((symbol, file)), axis=1, return_inverse=True)
    texts = [(strings.text(one), strings.text(its_file)) for one, its_file in pairs.T.tolist()]
    codes = [names.code(function_text(*text)) if _is_function(text[0]) else NO_NAME for text in texts]
    return np.array(codes, np.int64)[which.ravel()]


def _is_function(name: str) -> bool:
    """Whether a symbol was resolved: else it is an address, or said to be unknown."""
    return bool(name) and not name.startswith(("0x", "["))


def _spans(thread: Times, time: Times, sample: Times, level: Times, name: Times) -> Rows:
    """Runs of samples (ordered by thread and time) in which a function stands at its level below the same callers."""
    follows, until = _following(thread, time)
    columns: dict[str, list[Array]] = {"start": [], "end": [], "globalTid": [], "name": []}
    stack = np.zeros(len(time), np.int64)  # number of the callers up to the level before
    for depth in range(int(level.max(initial=-1)) + 1):
        own = level == depth
        held, code = sample[own], name[own]
        _, number = np.unique(np.stack((stack[held], code)), axis=1, return_inverse=True)
        here = np.full(len(time), NA, np.int64)
        here[held] = number.ravel()
        goes_on: Mask = np.zeros(len(time), np.bool_)
        goes_on[1:] = follows[1:] & (here[1:] != NA) & (here[1:] == here[:-1])
        first = held[~goes_on[held]]
        ends_on = np.zeros(len(time), np.bool_)
        ends_on[:-1] = goes_on[1:]
        last = held[~ends_on[held]]
        columns["start"].append(time[first])
        columns["end"].append(until[last])
        columns["globalTid"].append(thread[first])
        columns["name"].append(code[~goes_on[held]])
        stack = here
    return {column: np.concatenate(parts) if parts else np.empty(0, np.int64) for column, parts in columns.items()}


def _following(thread: Times, time: Times) -> tuple[Mask, Times]:
    """Whether each sample follows the one before it without a pause, and until when what it found is taken to last:
    the next one, or a usual period on."""
    apart = np.diff(time, prepend=time[:1])
    same = np.concatenate(([False], thread[1:] == thread[:-1]))
    period = np.zeros(len(time), np.int64)
    for one in np.unique(thread).tolist():
        own = thread == one
        between = apart[own & same]
        period[own] = int(np.median(between)) if len(between) else 0
    follows = same & (apart <= APART * period)
    until = time + period
    until[:-1] = np.where(follows[1:], time[1:], until[:-1])
    return follows, until


# What host threads did: runtime calls, ranges, operators, operating-system calls, MPI, the profiler's work.

MPI_DOMAIN = "MPI"
"""Up to 2022 nsys wrote MPI calls as NVTX ranges of this domain; later ones have tables."""


@dataclass(frozen=True)
class HostRows:
    """Where the rows of one source table went, for one rank."""

    rank: int
    rows: Rows
    first: int
    """Row in host_events of the first."""


def add_host_events(builder: TraceBuilder, tables: Tables, events: Events, ranks: Ranks) -> dict[str, list[HostRows]]:
    """Add all host events, to every rank of their process; returns where each table's rows went."""
    categories: dict[str, Category | Array] = {
        RUNTIME: Category.RUNTIME,
        OSRT: Category.OS,
        OVERHEAD: Category.OVERHEAD,
        PROFILER: Category.OVERHEAD,
        NVTX: _range_categories(events),
        **dict.fromkeys(MPI, Category.COMMUNICATION),
        SAMPLED: Category.SAMPLE,
    }
    events[RUNTIME]["correlation"] = _correlation(builder, events[RUNTIME])
    threads = _Threads(builder, tables)
    placed: dict[str, list[HostRows]] = {}
    for table, category in categories.items():
        rows = events[table]
        one = isinstance(category, Category)
        rows["category"] = constant(category, len(rows["start"]), np.int8) if one else np.asarray(category)
        placed[table] = []
        for process in distinct_values(rows["process"]).tolist():
            own = rows if is_constant(rows["process"]) else take(rows, rows["process"] == process)
            if process not in ranks.of_process:
                ranks.left_out += len(own["start"])
            for rank in ranks.of_process.get(process, ()):
                placed[table].append(_add(builder, events, ranks, threads, rank, own))
    builder.problem(reading.OTHER_PROCESSES, ranks.left_out)
    return placed


def _add(builder: TraceBuilder, events: Events, ranks: Ranks, threads: _Threads, rank: int, rows: Rows) -> HostRows:
    correlation = rows.get("correlation", NA)
    if "correlation" in rows and len(ranks.of_process[int(rows["process"][0])]) > 1:
        correlation = _of_this_device(events, ranks, rank, rows)
    values = {
        "rank": rank,
        "thread": threads.rows(rank, rows["globalTid"]),
        "start": rows["start"],
        "end": np.where(rows["end"] == NA, rows["start"], rows["end"]) if absences(rows["end"]) else rows["end"],
        "category": compact(rows["category"]),
        "name": rows["name"],
        "correlation": correlation,
    }
    return HostRows(rank, rows, builder.add("host_events", len(rows["start"]), values))


def _of_this_device(events: Events, ranks: Ranks, rank: int, rows: Rows) -> Times:
    """Correlation ids that belong to this rank: each rank of a process that drives several devices has all
    host events, but a launch is linked (and missed, where its kernel was lost) on one of them only."""
    process = int(rows["process"][0])
    own: list[Times] = []
    others: list[Times] = []
    for table in (KERNEL, MEMCPY, MEMSET, GRAPH):
        device_rows = take(events[table], events[table]["process"] == process)
        for device in np.unique(device_rows["deviceId"]).tolist():
            ids = device_rows["correlationId"][device_rows["deviceId"] == device]
            (own if ranks.on(process, device) == rank else others).append(ids)
    mine = np.isin(rows["correlation"], np.concatenate(own or [np.empty(0, np.int64)]))
    if rank == ranks.of_process[process][0]:
        mine |= ~np.isin(rows["correlation"], np.concatenate(others or [np.empty(0, np.int64)]))
    return np.where(mine, rows["correlation"].astype(np.int64, copy=False), NA)


def _correlation(builder: TraceBuilder, rows: Rows) -> Times:
    """Calls that failed launched nothing: they have no event to be joined with."""
    returned, ids = rows["returnValue"], rows["correlationId"]
    if is_constant(returned) and returned[0] in (0, NA) and int(ids.min(initial=1)) > 0:
        return ids
    failed = (returned != NA) & (returned != 0)
    names = builder.names
    used = np.unique(rows["name"][failed]).tolist()
    # «Not ready» is the usual answer of a query, no failure.
    queries = [code for code in used if "Query" in names[code]]
    count = int((failed & ~np.isin(rows["name"], queries)).sum())
    builder.problem(reading.FAILED_CALL, count)
    return np.where(failed | (ids <= 0), NA, ids.astype(np.int64, copy=False))


def _range_categories(events: Events) -> Array:
    rows = events[NVTX]
    category = np.full(len(rows["start"]), Category.ANNOTATION, np.int8)
    category[np.isin(rows["name"], events.operators)] = Category.OP
    for (process, domain), label in events.domains.items():
        if label == MPI_DOMAIN:
            category[(rows["process"] == process) & (rows["domainId"] == domain)] = Category.COMMUNICATION
    return category


class _Threads:
    """Host threads by globalTid, named as the export names them."""

    def __init__(self, builder: TraceBuilder, tables: Tables) -> None:
        self._builder = builder
        self._names = self._read_names(tables)

    def rows(self, rank: int, tids: Times) -> Times:
        """The row in `threads` of each globalTid, shape (n,)."""
        used = distinct_values(tids)
        found: list[int] = []
        for tid in used.tolist():
            pid, thread = ids(tid)
            found.append(self._builder.thread(rank, pid, thread))
            if tid in self._names:
                self._builder.name_thread(pid, thread, self._names[tid])
        return mapped(tids, used, np.array(found, np.int32)) if found else np.empty(0, np.int64)

    @staticmethod
    def _read_names(tables: Tables) -> Mapping[int, str]:
        rows = tables.integers("ThreadNames", ("nameId", "priority", "globalTid"))
        wanted = np.isin(tables.integers("StringIds", ("id",))["id"], rows["nameId"])
        ids_of = tables.integers("StringIds", ("id",))["id"][wanted].tolist()
        text = dict(zip(ids_of, tables.texts("StringIds", "value", wanted), strict=True))
        order = np.argsort(rows["priority"], kind="stable")[::-1]  # the lowest is what the program itself said
        found: dict[int, str] = {}
        for row in order.tolist():
            name = text.get(int(rows["nameId"][row]))
            if name:
                found[int(rows["globalTid"][row])] = name
        return found


def ids(global_tid: int) -> tuple[int, int]:
    """Process and thread id in a globalTid (hw<<56 | vm<<48 | pid<<24 | tid)."""
    return (NA, NA) if global_tid == NA else ((global_tid >> 24) & 0xFFFFFF, global_tid & 0xFFFFFF)
