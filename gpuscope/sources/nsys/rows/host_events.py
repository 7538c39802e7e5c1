"""What host threads did: runtime calls, ranges, operators, operating-system calls, MPI, the profiler's work."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope.problems import completeness
from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.rows.cpu_samples import SAMPLED
from gpuscope.sources.nsys.rows.event_tables import (
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
    take,
)
from gpuscope.sources.nsys.rows.process_ranks import Ranks
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values, mapped
from gpuscope.trace.columns.table import Array, Times, compact, constant, is_constant
from gpuscope.trace.schema import NA, Category
from gpuscope.when_used import dataclass

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
    builder.problem(completeness.OTHER_PROCESSES, ranks.left_out)
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
    builder.problem(completeness.FAILED_CALL, count)
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
