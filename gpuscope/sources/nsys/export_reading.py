"""What is read of Nsight Systems exports: SQLite of schema 2.9 on, parquetdir and arrowdir.

Facts of the format: NVIDIA's «SQLite Schema Reference» (Nsight Systems documentation, Exporter), and what
real files of twenty releases hold.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources.nsys.absent_tables import report_missing
from gpuscope.sources.nsys.export_facts import (
    Facts,
    device_ids,
    device_name,
    device_names,
    devices_used,
    read_facts,
    report_diagnostics,
)
from gpuscope.sources.nsys.formats.arrow_directories import ArrowTables
from gpuscope.sources.nsys.formats.export_tables import SqliteTables, Tables
from gpuscope.sources.nsys.rows import process_ranks
from gpuscope.sources.nsys.rows.cpu_samples import read_samples
from gpuscope.sources.nsys.rows.device_work import add_device_events, add_syncs
from gpuscope.sources.nsys.rows.event_tables import (
    KERNEL,
    MEMCPY,
    MEMSET,
    MPI,
    NVTX,
    OSRT,
    RUNTIME,
    SYNC,
    Events,
    Rows,
    absences,
    read_events,
)
from gpuscope.sources.nsys.rows.gil_waits import name_gil_waits
from gpuscope.sources.nsys.rows.host_events import add_host_events, ids
from gpuscope.sources.nsys.rows.link_counters import add_link_counters
from gpuscope.sources.nsys.rows.mpi_calls import add_mpi
from gpuscope.sources.nsys.rows.nccl_operations import add_collectives, communication_kernels, read_communicators
from gpuscope.sources.nsys.rows.nvtx_payloads import read_payloads
from gpuscope.sources.nsys.rows.nvtx_shapes import add_shapes
from gpuscope.sources.nsys.rows.process_ranks import ON_DEVICE, Ranks, devices_by_process, environment
from gpuscope.sources.rank_numbers import Processes
from gpuscope.sources.source import ReadOptions, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import among, distinct
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA


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
            rank = process_ranks.peek(tables)
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
    recorded = [process_ranks.mpi_ranks(tables), process_ranks.labelled_ranks(events), communicators.recorded_ranks()]
    ranks = process_ranks.assign(
        path, events, builder.names, recorded, process_ranks.environment(tables), options.first_rank
    )
    version = f"schema {facts.schema}" if facts.schema else ""
    told = {**facts.described, "rank_basis": ranks.basis, "job": process_ranks.nodes_and_master(tables)}
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
