"""What is read of Nsight Systems exports: SQLite of schema 2.9 on, parquetdir and arrowdir.

Facts of the format: NVIDIA's «SQLite Schema Reference» (Nsight Systems documentation, Exporter), and what
real files of twenty releases hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import job, reading
from gpuscope.problems.problem import ProblemKind
from gpuscope.sources.nsys import cpu_samples
from gpuscope.sources.nsys.cpu_samples import (
    ON_DEVICE,
    HostRows,
    Ranks,
    add_host_events,
    devices_by_process,
    environment,
    ids,
    kinds_of_calls,
    read_samples,
)
from gpuscope.sources.nsys.event_tables import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    MPI,
    NVTX,
    OSRT,
    RUNTIME,
    SYNC,
    Events,
    Payload,
    Rows,
    absences,
    is_nccl_call,
    read_events,
    read_payloads,
)
from gpuscope.sources.nsys.export_tables import SqliteTables, StringTable, Tables
from gpuscope.sources.nsys.link_counters import ArrowTables, add_link_counters
from gpuscope.sources.nsys.nccl_operations import (
    add_collectives,
    add_device_events,
    add_syncs,
    communication_kernels,
    read_communicators,
)
from gpuscope.sources.nsys.report_export import (
    Facts,
    device_ids,
    device_name,
    device_names,
    devices_used,
    read_facts,
    report_diagnostics,
    was_exported,
)
from gpuscope.sources.rank_numbers import Processes
from gpuscope.sources.source import ReadOptions, rank_in_name
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME, NamePool, is_shaped
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Array, Mask, Times, among, distinct, distinct_values, is_constant, mapped, places

# Input shapes of operators, where `emit_nvtx(record_shapes=True)` wrote them into the range's text.

_SIZES = when_used.pattern(r", sizes = (\[.*?\])(?:, input_op_ids = |$)", re.DOTALL)


def add_shapes(builder: TraceBuilder, tables: Tables, events: Events, placed: Sequence[HostRows]) -> None:
    """Rows of `shapes` for the operators of which an analysis uses them."""
    names = builder.names
    shaped = [code for code in events.operators.tolist() if is_shaped(names[code])]
    if not shaped:
        return
    for part in placed:
        index = np.flatnonzero(np.isin(part.rows["name"], shaped))
        mask = np.zeros(events.nvtx_rows, np.bool_)
        mask[part.rows["row"][index]] = True
        found = [_SIZES.search(text or "") for text in tables.texts(NVTX, "text", mask)]
        dims = np.array([names.code(match[1]) if match else NO_NAME for match in found], np.int32)
        known = dims != NO_NAME
        # Rows that `part` holds stand in the order of the table, as the texts do.
        builder.add("shapes", int(known.sum()), {"event": (part.first + index)[known], "dims": dims[known]})


# What an export lacks, why, and what to record instead: never read as «the device was idle».

_ABSENT_TABLES_ON_DEVICE = (KERNEL, MEMCPY, MEMSET, GRAPH)


def report_missing(
    builder: TraceBuilder, events: Events, ranks: Ranks, facts: Facts, payloads: Mapping[int, Payload], undecoded: int
) -> None:
    """Problems for device work that is not there, ranges never closed, sizes not exported, files cut."""
    _report_ranks_without_kernels(builder, events, ranks)
    if not any(events.count(table) for table in _ABSENT_TABLES_ON_DEVICE):
        builder.problem(_why_no_device_events(events, facts, builder.names), 1)
    builder.problem(reading.RANGE_NEVER_CLOSED, events.never_closed)
    builder.problem(job.PAYLOAD_UNDECODABLE, undecoded)
    _report_no_payloads(builder, events, facts, payloads)
    derived = {name: value for name, value in facts.export.items() if name.startswith("DERIVED_")}
    cut = derived.get("DERIVED_WINDOW_NS") or facts.export.get("EXPORT_PARAM_TIMES_TO_EXPORT")
    builder.problem(reading.CUT_TO_WINDOW, int(bool(cut or derived)), cut=cut)


def _report_ranks_without_kernels(builder: TraceBuilder, events: Events, ranks: Ranks) -> None:
    """Processes that launched kernels of which none was recorded."""
    calls = events[RUNTIME]
    for process, own in ranks.of_process.items():
        if not any(process in distinct_values(events[table]["process"]).tolist() for table in _ABSENT_TABLES_ON_DEVICE):
            launched = kinds_of_calls(events, builder.names, kinds.is_kernel_launch) & (calls["returnValue"] <= 0)
            lost = int(np.count_nonzero(launched & (calls["process"] == process)))
            builder.problem(reading.KERNELS_NOT_RECORDED, lost, rank=own[0], launches=lost)
            builder.problem(reading.RECORDER_DELIVERED_NOTHING, int(bool(lost)))


def _why_no_device_events(events: Events, facts: Facts, names: NamePool) -> ProblemKind:
    if events.count(RUNTIME):
        launched = kinds_of_calls(events, names, kinds.is_kernel_launch).any()
        return reading.CUDA_TRACED_NO_KERNELS if launched else reading.NOTHING_LAUNCHED
    if facts.capture["cuda"] is False:
        return reading.CUDA_NOT_TRACED
    if not _all_tables(facts):
        return reading.TABLES_NOT_EXPORTED
    return reading.CUDA_NOT_CALLED if facts.capture["cuda"] else reading.NO_CUDA_CALLS


def _all_tables(facts: Facts) -> bool:
    return not facts.export.get("EXPORT_PARAM_TABLES_TO_EXPORT")


def _report_no_payloads(builder: TraceBuilder, events: Events, facts: Facts, payloads: Mapping[int, Payload]) -> None:
    names = builder.names
    kernels = len(communication_kernels(events, names))
    if not kernels or payloads:
        return
    ranges = events[NVTX]["name"]
    if not any(is_nccl_call(names[code]) for code in distinct_values(ranges).tolist()):
        why = job.NCCL_RANGES_NOT_RECORDED
    elif was_exported(facts, "BLOBS"):
        why = job.NCCL_WROTE_NO_PAYLOADS
    else:
        why = job.NCCL_PAYLOADS_NOT_EXPORTED
    builder.problem(why, kernels)


# MPI calls as rows of `collectives`, from nsys's MPI tables or, up to 2022, its NVTX domain «MPI».

_WHOLE_ARRAY = frozenset({"all_reduce", "broadcast", "reduce", "send", "recv", "send_recv"})
"""Operations whose recorded size is that of the whole array; of an all-gather it is one rank's share."""


def add_mpi(builder: TraceBuilder, tables: Tables, placed: Mapping[str, Sequence[HostRows]]) -> None:
    """Rows for every MPI call that moves data, timed by the host call behind it."""
    sizes = _communicator_sizes(tables)
    for table in (*MPI, NVTX):
        for part in placed[table]:
            rows = part.rows
            used, inverse = distinct(rows["name"])
            ops = [mpi_op(builder.names[code]) for code in used.tolist()]
            moves = np.array([op != "" for op in ops], np.bool_)[inverse]
            index = np.flatnonzero(moves & (rows["category"] == Category.COMMUNICATION))
            if len(index):
                codes = np.array([builder.names.code(op) if op else NO_NAME for op in ops], np.int32)[inverse]
                values = {"rank": part.rank, "host_event": part.first + index, "op": codes[index]}
                if table != NVTX:
                    values |= _arguments(part, index, builder.names, ops, inverse, sizes)
                builder.add("collectives", len(index), values)


def mpi_op(name: str) -> str:
    """The operation of an MPI function, "" where it moves no data (MPI_Wait, MPI_Comm_rank)."""
    if not re.match(r"P?MPI_", name) or re.search(r"_(init|create|free|rank|size|split|dup)\b", name):
        return ""
    return kinds.collective_op(name.replace("Bcast", "Broadcast").replace("bcast", "broadcast"))


def _arguments(
    part: HostRows, index: Array, names: NamePool, ops: list[str], inverse: Array, sizes: Mapping[tuple[int, int], int]
) -> dict[str, Array]:
    rows = {name: column[index].astype(np.int64) for name, column in part.rows.items()}
    op = [ops[i] for i in inverse[index].tolist()]
    known = np.array([o in _WHOLE_ARRAY for o in op], np.bool_)
    shared = np.array([o == "all_gather" for o in op], np.bool_)
    handles, which = distinct(rows["commHandle"])
    members = np.array([sizes.get((part.rank, handle), NA) for handle in handles.tolist()], np.int64)[which]
    group = [names.code(f"MPI communicator {h:#x}") if h != NA else NO_NAME for h in handles.tolist()]
    size = np.maximum(rows["size"], np.where(known, rows["recvSize"], NA))
    gathered = np.where((members == NA) | (size == NA), NA, size * np.maximum(members, 1))
    peer = rows["remoteRank"]
    return {
        "bytes": np.where(known, size, np.where(shared, gathered, NA)),
        "group": np.array(group, np.int32)[which],
        "group_size": members,
        "peer": np.where(peer < 0, NA, peer),  # MPI_ANY_SOURCE and MPI_PROC_NULL are negative
    }


def _communicator_sizes(tables: Tables) -> dict[tuple[int, int], int]:
    rows = tables.integers("MPI_COMMUNICATORS", ("rank", "commHandle", "size"))
    return {
        (int(rank), int(handle)): int(size)
        for rank, handle, size in zip(rows["rank"], rows["commHandle"], rows["size"], strict=True)
        if size > 0
    }


# Which waits for a lock were waits for Python's GIL, by the call chains that nsys records of them.
#
# CPython takes the GIL in `take_gil`, which waits on a condition variable in turns of 5 ms (`Python/ceval_gil.c`). It
# is
# a static function without a symbol in most builds, so its callers tell it: `PyEval_RestoreThread` (after a system call
# or a C extension), `PyGILState_Ensure` (a callback of a C++ thread), and the evaluation loop itself, which gives the
# GIL
# up for another thread. Other waits of CPython (`threading.Lock`, `queue`) go through `PyThread_acquire_lock*`.

_CHAINS = "OSRT_CALLCHAINS"
_TAKES_GIL = when_used.pattern(
    r"^(take_gil|PyEval_RestoreThread|PyEval_AcquireThread|PyEval_AcquireLock|PyGILState_Ensure"
    r"|_PyEval_EvalFrameDefault|_PyEval_EvalFrame)(\.|@|$)"
)
_BENEATH = when_used.pattern(r"(^|/)(libc|libpthread|ld-linux)[-.\w]*\.so|(^|/)nsight|(^|/)lib(ToolsInjection|cupti)")
_GIL_RANGE = when_used.pattern(r"\bwait\w*\b.*\bGIL\b", re.IGNORECASE)


def name_gil_waits(tables: Tables, events: Events, names: NamePool) -> None:
    """Give the waits for the GIL that name: operating-system calls by their call chain, ranges by their own."""
    waiting = names.matching(_is_gil_range)[events[NVTX]["name"]]
    if waiting.any():
        events[NVTX]["name"] = np.where(waiting, names.code(kinds.WAITS_FOR_GIL), events[NVTX]["name"])
    chain = events[OSRT].pop("callchainId")
    if _CHAINS not in tables.names() or is_constant(chain):
        return
    waits = names.matching(kinds.is_lock_or_sleep_call)[events[OSRT]["name"]] & (chain != NA)
    if waits.any():
        waits &= np.isin(chain, _taking(tables, names, np.unique(chain[waits]).astype(np.int64)))
        events[OSRT]["name"] = np.where(waits, names.code(kinds.WAITS_FOR_GIL), events[OSRT]["name"])


def _taking(tables: Tables, names: NamePool, chains: Times) -> Times:
    """Those of some call chains of which the first function with a name, outside of the C library, takes the GIL, and
    lies in the same file as all before it."""
    frames = tables.integers(_CHAINS, ("id", "symbol", "module", "stackDepth"))
    own = np.flatnonzero(np.isin(frames["id"], chains))
    own = own[np.lexsort((frames["stackDepth"][own], frames["id"][own]))]
    chain, symbol, file = (frames[column][own] for column in ("id", "symbol", "module"))
    strings = StringTable(tables, names, [symbol, file])
    outside = np.flatnonzero(~_are(strings, file, _is_beneath))
    _, place = np.unique(chain[outside], return_index=True)
    began = file[outside][place]
    named = outside[_are(strings, symbol[outside], _has_name)]
    found, place = np.unique(chain[named], return_index=True)
    caller = named[place]
    began = began[places(np.unique(chain[outside]), found)]
    takes: Times = found[_are(strings, symbol[caller], _takes_gil) & (began == file[caller])]
    return takes


def _are(strings: StringTable, ids: Times, test: Callable[[str], bool]) -> Mask:
    """Which string ids have texts that pass a test; each text is asked once."""
    used = distinct_values(ids).astype(np.int64)
    passed: Mask = np.array([test(strings.text(one)) for one in used.tolist()], np.bool_)
    return np.asarray(mapped(ids, used, passed))


def _is_gil_range(name: str) -> bool:
    return bool(_GIL_RANGE.search(name))


def _takes_gil(name: str) -> bool:
    return bool(_TAKES_GIL.match(name))


def _is_beneath(file: str) -> bool:
    """Whether a file is of the C library or of the profiler, which stand between a wait and its caller."""
    return bool(_BENEATH.search(file))


def _has_name(name: str) -> bool:
    return bool(name) and not name.startswith(("0x", "["))


def open_tables(path: Path, partial: bool = True) -> Tables:
    """The tables of an export. Raises `InputError` where they can't be read, or are cut off and not `partial`."""
    return ArrowTables(path) if path.is_dir() else SqliteTables(path, partial)


def processes_in(export: Path, named: Path) -> Processes | None:
    """The processes that worked in `export`, an export of `named`; None where it can't be read."""
    try:
        with closing(open_tables(export)) as tables:
            return working_processes(tables, named)
    except InputError:
        return None


def peek_rank(export: Path, named: Path) -> int | None:
    """The rank if the environment recorded in `export`, or else the name of `named`, gives it."""
    try:
        with closing(open_tables(export)) as tables:
            rank = cpu_samples.peek(tables)
    except InputError:
        return None
    return rank_in_name(named) if rank is None else rank


def read_tables(tables: Tables, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
    """Read an export into the builder. `path` is the file the user named.

    Raises `InputError` where the export is damaged or holds no events.
    """
    facts = read_facts(tables)
    events = read_events(tables, builder.names, options.status or (lambda _: None))
    if not events.total:
        raise InputError(
            f"{path}: an empty capture: it contains no CUDA call, range or system call of any process",
            hint="did the capture range ever open? record with: nsys profile -t cuda,nvtx,osrt -o OUT COMMAND",
        )
    name_gil_waits(tables, events, builder.names)
    read_samples(tables, events, builder.names)
    report_missing_values(builder, events)
    _to_utc(events, facts.epoch_ns)
    payloads, undecoded = read_payloads(tables, events, builder.names)
    communicators = read_communicators(events, payloads)
    recorded = [cpu_samples.mpi_ranks(tables), cpu_samples.labelled_ranks(events), communicators.recorded_ranks()]
    ranks = cpu_samples.assign(
        path, events, builder.names, recorded, cpu_samples.environment(tables), options.first_rank
    )
    version = f"schema {facts.schema}" if facts.schema else ""
    told = {**facts.described, "rank_basis": ranks.basis, "job": cpu_samples.nodes_and_master(tables)}
    source = builder.source(path, "nsys", version, events.total, told)
    _add_ranks(builder, tables, events, source, ranks, facts)
    first = add_device_events(builder, events, ranks)
    add_syncs(builder, events, ranks)
    placed = add_host_events(builder, tables, events, ranks)
    add_shapes(builder, tables, events, placed[NVTX])
    add_collectives(builder, events, ranks, first[KERNEL], payloads, communicators)
    add_mpi(builder, tables, placed)
    add_link_counters(builder, tables, source, facts.epoch_ns)
    report_missing(builder, events, ranks, facts, payloads, undecoded)
    report_diagnostics(builder, tables)
    cut_off = isinstance(tables, SqliteTables) and tables.cut_off
    builder.problem(reading.TRUNCATED, int(cut_off), file=path.name, what="rows")
    builder.problem(reading.INVALID_UTF8, int(tables.invalid_utf8), file=path.name)


def _to_utc(events: Events, epoch_ns: int) -> None:
    for rows in events.tables.values() if epoch_ns else ():
        for column in {"start", "end"} & rows.keys():
            since = rows[column].astype(np.int64, copy=False)
            rows[column] = since + epoch_ns if not absences(since) else np.where(since == NA, NA, since + epoch_ns)


def _add_ranks(builder: TraceBuilder, tables: Tables, events: Events, source: int, ranks: Ranks, facts: Facts) -> None:
    code = builder.names.code
    kernels, mpi_calls = events[KERNEL], [events[table]["process"] for table in MPI]
    on_nccl = kernels["process"][communication_kernels(events, builder.names)]
    models, identities = device_names(tables), devices_used(tables)
    listed = device_ids(tables).values() or [f"{ids(process)[0]}:{device}" for process, device in ranks.of_device]
    host = facts.described["host_name"]
    for process, own in ranks.of_process.items():
        pid = ids(process)[0]
        on_mpi = any(bool((called == process).any()) for called in mpi_calls)
        backend = "nccl" if bool((on_nccl == process).any()) else "mpi" if on_mpi else None
        devices = {device: rank for (p, device), rank in ranks.of_device.items() if p == process}
        for device, rank in devices.items() if devices else [(NA, rank) for rank in own]:
            model = device_name(models, pid, device) if device != NA else None
            values = {
                "rank": rank,
                "device": device,
                "source": source,
                "pid": pid,
                "device_name": -1 if model is None else code(model),
                "host": NO_NAME if host is None else code(str(host)),
                "backend": NO_NAME if backend is None else code(backend),
                "world_size": NA if ranks.world_size is None else ranks.world_size,
                "world_basis": NO_NAME if ranks.world_basis is None else code(ranks.world_basis),
                "device_id": code(identities[pid, device]) if (pid, device) in identities else NO_NAME,
                "host_devices": code(",".join(sorted(listed))) if listed else NO_NAME,
            }
            builder.add("ranks", 1, values)


_ON_DEVICE = ("start", "end", "globalPid", "deviceId", "correlationId")
_NEEDED = {
    KERNEL: (*_ON_DEVICE, "streamId"),
    MEMCPY: (*_ON_DEVICE, "streamId"),
    MEMSET: (*_ON_DEVICE, "streamId"),
    SYNC: _ON_DEVICE[:3],
    RUNTIME: ("start", "end", "globalTid", "correlationId"),
    NVTX: ("start", "globalTid"),
    OSRT: ("start", "end", "globalTid"),
}
UNNAMED = "?"
"""What stands for a name that is not there."""


def report_missing_values(builder: TraceBuilder, events: Events) -> None:
    """Problems for rows without a value, or without a name, that they need."""
    for table, columns in _NEEDED.items():
        rows = events[table]
        for column in columns:
            missing = absences(rows[column])
            builder.problem(reading.VALUE_MISSING, missing, table=table, column=column)
    builder.problem(reading.VALUE_MISSING, events.without_type, table=NVTX, column="eventType")
    nameless = (NO_NAME, builder.names.find(UNNAMED))
    for table in (KERNEL, RUNTIME, OSRT):
        missing = int(np.count_nonzero(among(events[table]["name"], nameless)))
        builder.problem(reading.NAME_MISSING, missing, table=table)


def working_processes(tables: Tables, named: Path) -> Processes:
    """What `tables`, an export of `named`, shows of its processes. Raises `InputError` where it is damaged."""
    rows: list[Rows] = []
    for table in ON_DEVICE:
        own = dict(tables.integers(table, ("start", "end", "globalPid", "deviceId")))
        own["process"] = np.where(own["globalPid"] == NA, NA, own["globalPid"] & ~0xFFFFFF)
        rows.append(own)
    devices = devices_by_process(rows)
    if NA in devices and len(launching := _launching(tables)) == 1:  # as `read_events` fills it in
        devices.setdefault(next(iter(launching)), []).extend(devices.pop(NA))
    variables = environment(tables)
    known = len(devices) == 1 and 0 in variables.rank  # then nothing has to be numbered, and the calls need not be read
    processes = set(devices) | (set() if known else _launching(tables))
    single = len(devices) == 1 or len(processes) == 1
    facts, identity = read_facts(tables), devices_used(tables)
    used = ((ids(process)[0], device) for process, own in devices.items() for device in own)
    starts, ends = (np.concatenate([own[column] for own in rows]) for column in ("start", "end"))
    span = (int(starts.min()) + facts.epoch_ns, int(ends.max()) + facts.epoch_ns) if len(starts) else None
    host = facts.described["host_name"]
    return Processes(
        pids=frozenset(ids(process)[0] for process in processes),
        ranks=sum(len(devices.get(process, [NA])) for process in processes),
        rank=variables.rank.get(0) if single else None,
        named=rank_in_name(named) if single else None,
        recorded=bool(len(tables.integers("MPI_RANKS", ("rank",))["rank"])),
        host=None if host is None else str(host),
        devices=frozenset(identity[key] for key in used if key in identity),
        span=span,
        dated=facts.described["session_start_utc_ns"] is not None,
        events=len(starts),
    )


def _launching(tables: Tables) -> set[int]:
    """Processes that launched kernels, whether or not any was recorded."""
    calls = tables.integers(RUNTIME, ("globalTid", "nameId"))
    strings = tables.integers("StringIds", ("id",))["id"]
    wanted = np.isin(strings, distinct(calls["nameId"])[0])
    texts = tables.texts("StringIds", "value", wanted)
    launching = [
        number
        for number, text in zip(strings[wanted].tolist(), texts, strict=True)
        if text and kinds.is_kernel_launch(text)
    ]
    threads = calls["globalTid"][np.isin(calls["nameId"], launching)]
    return {thread & ~0xFFFFFF for thread in distinct(threads)[0].tolist() if thread != NA}
