"""MPI calls as rows of `collectives`, from nsys's MPI tables or, up to 2022, its NVTX domain «MPI»."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.sources.nsys.formats.export_tables import Tables
from gpuscope.sources.nsys.rows.event_tables import MPI, NVTX
from gpuscope.sources.nsys.rows.host_events import HostRows
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.table import Array
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category

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
