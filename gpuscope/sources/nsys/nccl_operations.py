"""NCCL's operations: kernels on the device, joined to the API calls that started them.

A call outside a group launches its kernel before it returns. Inside ncclGroupStart … ncclGroupEnd the
kernels are launched by the outermost ncclGroupEnd, one for several calls where NCCL can.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from gpuscope.problems import job, reading
from gpuscope.sources.nsys.cpu_samples import Ranks, RecordedRanks
from gpuscope.sources.nsys.event_tables import (
    BLOCK,
    CUDA_EVENT,
    GRAPH,
    GRID,
    KERNEL,
    MEMCPY,
    MEMSET,
    NVTX,
    RUNTIME,
    SYNC,
    Events,
    Payload,
    Rows,
    is_nccl_call,
    take,
)
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.intervals import FEW, small
from gpuscope.trace.name_pool import NO_NAME, Codes, NamePool
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.table import (
    Array,
    Times,
    compact,
    constant,
    distinct,
    distinct_pairs,
    distinct_values,
    is_constant,
    mapped,
)
from gpuscope.when_used import dataclass

# Work on the devices: kernels, copies, memsets, migrations, whole graphs; and synchronisation records.

# MEMCPY.copyKind (ENUM_CUDA_MEMCPY_OPER) → copy_kind, and how `nsys stats` names such a copy.
_COPIES = {
    1: ("HtoD", "[CUDA memcpy Host-to-Device]"),
    2: ("DtoH", "[CUDA memcpy Device-to-Host]"),
    3: ("HtoA", "[CUDA memcpy Host-to-Array]"),
    4: ("AtoH", "[CUDA memcpy Array-to-Host]"),
    5: ("AtoA", "[CUDA memcpy Array-to-Array]"),
    6: ("AtoD", "[CUDA memcpy Array-to-Device]"),
    7: ("DtoA", "[CUDA memcpy Device-to-Array]"),
    8: ("DtoD", "[CUDA memcpy Device-to-Device]"),
    9: ("HtoH", "[CUDA memcpy Host-to-Host]"),
    10: ("PtoP", "[CUDA memcpy Peer-to-Peer]"),
    11: ("migration HtoD", "[CUDA memcpy Unified Host-to-Device]"),
    12: ("migration DtoH", "[CUDA memcpy Unified Device-to-Host]"),
    13: ("migration DtoD", "[CUDA memcpy Unified Device-to-Device]"),
}
_MIGRATIONS = (11, 12, 13)
# MEMCPY.migrationCause (ENUM_CUDA_UNIF_MEM_MIGRATION).
_CAUSES = {
    1: "user prefetch",
    2: "page fault",
    3: "speculative prefetch",
    4: "eviction",
    5: "access counters",
}
_PAGEABLE = 0  # ENUM_CUDA_MEM_KIND
# SYNCHRONIZATION.syncType (ENUM_CUPTI_SYNC_TYPE), in Kineto's words.
_SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
_STREAM_WAIT = 2
_NO_STREAM = 2**32 - 1


def add_device_events(builder: TraceBuilder, events: Events, ranks: Ranks) -> dict[str, int]:
    """Add all device work; returns the row of each table's first event, for references.

    Migrations of unified memory stand in MEMCPY as well as in CUDA_UM_* tables, so only MEMCPY is read.
    """
    names = builder.names
    first = {KERNEL: _add(builder, ranks, events[KERNEL], _kernels(events[KERNEL], names))}
    _add_grids(builder, events[KERNEL], first[KERNEL])
    first[MEMCPY] = _add(builder, ranks, events[MEMCPY], _copies(events[MEMCPY], names))
    memsets: dict[str, Any] = {
        "name": names.code("[CUDA memset]"),
        "copy_kind": names.code("memset"),
        "kind": Kind.MEMORY,
    }
    memsets |= {"bytes": events[MEMSET]["bytes"], "graph": _graph(events[MEMSET])}
    first[MEMSET] = _add(builder, ranks, events[MEMSET], memsets)
    graphs = _graphs_without_nodes(events)
    first[GRAPH] = _add(
        builder, ranks, graphs, {"name": _graph_names(graphs, names), "kind": Kind.COMPUTE, "graph": graphs["graphId"]}
    )
    builder.problem(reading.GRAPH_LEVEL, len(graphs["start"]))
    return first


def _add_grids(builder: TraceBuilder, rows: Rows, first: int) -> None:
    """Those of few blocks; an absent size makes the product no positive number."""
    sizes = {column: rows.pop(column) for column in (*GRID, *BLOCK)}
    x, y, z = (np.asarray(sizes[column], np.int64) for column in GRID)
    known = (x > 0) & (y > 0) & (z > 0) & (x <= FEW) & (y <= FEW) & (z <= FEW)
    places = small(np.where(known, x * y * z, 0), rows["end"] - rows["start"])
    threads = np.prod([np.asarray(sizes[column], np.int64)[places] for column in BLOCK], axis=0)
    blocks = x[places] * y[places] * z[places]
    builder.add("small_grids", len(places), {"event": places + first, "blocks": blocks, "threads": threads})


def _add(builder: TraceBuilder, ranks: Ranks, rows: Rows, values: dict[str, Any]) -> int:
    common = {
        "rank": rank_of(ranks, rows),
        "device": compact(rows["deviceId"]),
        "stream": compact(rows["streamId"]),
        "context": compact(rows["contextId"]),
        "start": rows["start"],
        "end": rows["end"],
        "correlation": _correlation(rows),
    }
    return builder.add("device_events", len(rows["start"]), common | values)


def rank_of(ranks: Ranks, rows: Rows) -> Times:
    """The rank of each device row, shape (n,)."""
    keys, inverse = distinct_pairs(rows["process"], rows["deviceId"])
    found = [ranks.on(process, device) for process, device in keys]
    if len(found) == 1:
        return constant(found[0], len(inverse), np.int64)
    return np.array(found, np.int64)[inverse]


def _correlation(rows: Rows) -> Times:
    # Migrations carry 0: nobody launched them.
    ids = rows["correlationId"]
    if len(ids) and int(ids.min()) > 0:
        return ids
    return np.where(ids == 0, NA, ids.astype(np.int64, copy=False))


def _kernels(rows: Rows, names: NamePool) -> dict[str, Any]:
    used = distinct_values(rows["name"])
    kind = [
        Kind.COMMUNICATION if kinds.is_communication_kernel(names[code]) else Kind.COMPUTE for code in used.tolist()
    ]
    graph: Array = constant(NA, len(rows["name"]), np.int64)
    if not all(is_constant(rows[column]) and int(rows[column][0]) == NA for column in ("graphId", "graphNodeId")):
        graph = np.where(rows["graphId"] == NA, _graph(rows), rows["graphId"].astype(np.int64, copy=False))
        graph = compact(np.where(graph == 0, NA, graph))
    return {"name": rows["name"], "kind": compact(mapped(rows["name"], used, np.array(kind, np.int8))), "graph": graph}


def _graph(rows: Rows) -> Times:
    """CUPTI's node ids hold their graph's id in the upper half; without one there is no graph."""
    node = rows["graphNodeId"].astype(np.int64, copy=False)
    return np.where((node == NA) | (node >> 32 == 0), NA, node >> 32)


def _copies(rows: Rows, names: NamePool) -> dict[str, Any]:
    kind = rows["copyKind"]
    pageable = ((kind == 1) & (rows["srcKind"] == _PAGEABLE)) | ((kind == 2) & (rows["dstKind"] == _PAGEABLE))
    migrates = np.isin(kind, _MIGRATIONS)
    # A second number that tells kinds apart: what moved the pages, or whether the host's side is pageable.
    used, inverse = distinct_pairs(kind, np.where(migrates, rows["migrationCause"], pageable))
    directions: list[int] = []
    labels: list[int] = []
    for code, detail in used:
        direction, label = _COPIES.get(code, ("memcpy", "[CUDA memcpy]"))
        if code in _MIGRATIONS:
            direction += f", {_CAUSES[detail]}" if detail in _CAUSES else ""
        elif detail:
            direction += " pageable"
        directions.append(names.code(direction))
        labels.append(names.code(label))
    return {
        "name": _pick(labels, inverse),
        "copy_kind": _pick(directions, inverse),
        "kind": Kind.MEMORY,
        "bytes": rows["bytes"],
        "graph": _graph(rows),
    }


def _pick(codes: list[int], inverse: Array) -> Codes:
    return np.array(codes, np.int32)[inverse]


def _graphs_without_nodes(events: Events) -> Rows:
    """Graph-level rows, but for the launches whose nodes were recorded as well."""
    rows = events[GRAPH]
    graphs = len(rows["start"])
    if not graphs:
        return rows
    nodes = [take(events[table], events[table]["graphNodeId"] > 0) for table in (KERNEL, MEMCPY, MEMSET)]
    _, process = distinct(np.concatenate([own["process"] for own in (rows, *nodes)]))
    # Correlation ids have 32 bits.
    launch = (process << 33) + np.concatenate([own["correlationId"] for own in (rows, *nodes)])
    return take(rows, ~np.isin(launch[:graphs], launch[graphs:]))


def _graph_names(rows: Rows, names: NamePool) -> Codes:
    used, inverse = distinct(rows["graphId"])
    return _pick([names.code("CUDA graph" if g == NA else f"CUDA graph {g}") for g in used.tolist()], inverse)


def _awaited(waits: Rows, records: Rows) -> dict[str, Times]:
    """Of a stream's wait, the stream and the call (by correlation id) that recorded the event: the record of that
    id where the export links the two, else the event's last one before the wait."""
    stream = np.full(len(waits["start"]), NA, np.int64)
    call = stream.copy()
    linked = bool(len(records["eventId"])) and bool((records["eventSyncId"] > 0).any())
    key = "eventSyncId" if linked else "eventId"
    order = np.lexsort((records["correlationId"], records[key], records["process"]))
    keys = list(
        zip(
            records["process"][order].tolist(),
            records[key][order].tolist(),
            records["correlationId"][order].tolist(),
            strict=True,
        )
    )
    for row in np.flatnonzero(waits["syncType"] == _STREAM_WAIT).tolist():
        process, event, before = (int(waits[name][row]) for name in ("process", key, "correlationId"))
        place = bisect_right(keys, (process, event, before)) - 1
        if place >= 0 and keys[place][:2] == (process, event):
            record = order[place]
            stream[row], call[row] = records["streamId"][record], records["correlationId"][record]
    return {"awaited_stream": stream, "record": call}


def add_syncs(builder: TraceBuilder, events: Events, ranks: Ranks) -> None:
    """Synchronisation records: no work, never counted as time on the device."""
    rows = events[SYNC]
    used, inverse = distinct(rows["syncType"])
    labels = [builder.names.code(_SYNCS.get(kind, "Synchronization")) for kind in used.tolist()]
    stream = rows["streamId"].astype(np.int64, copy=False)
    values = {
        "rank": rank_of(ranks, rows),
        "device": rows["deviceId"],
        "stream": np.where((stream == _NO_STREAM) | (stream < 0), NA, stream),
        "start": rows["start"],
        "end": rows["end"],
        "name": _pick(labels, inverse),
        "correlation": _correlation(rows),
        **_awaited(rows, events[CUDA_EVENT]),
    }
    builder.add("syncs", len(rows["start"]), values)


_POINT_TO_POINT = frozenset({"send", "recv", "send_recv", "all_to_all", "gather", "scatter"})
"""Operations that NCCL carries out by its SendRecv kernel."""
_PER_RANK_SIZE = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})
"""Operations whose logged size is one rank's share of the array."""


@dataclass(frozen=True)
class Call:
    """One NCCL operation as it was called."""

    op: str
    payload: Payload


@dataclass
class _Batch:
    """Calls whose kernels are launched within [start, end] of one thread."""

    start: int
    end: int
    calls: list[Call]
    kernels: list[int] = field(default_factory=list)


@dataclass
class Communicators:
    """What ncclCommInit… recorded: members by communicator, own rank by (process, communicator)."""

    members: dict[str, int] = field(default_factory=dict)
    rank: dict[tuple[int, str], int] = field(default_factory=dict)

    def recorded_ranks(self) -> RecordedRanks:
        """The ranks of the processes in the largest communicator."""
        world = max(self.members, key=lambda name: self.members[name], default="")
        rank = {process: rank for (process, name), rank in self.rank.items() if name == world}
        return RecordedRanks(rank, self.members.get(world), "NCCL communicator")


def read_communicators(events: Events, payloads: Mapping[int, Payload]) -> Communicators:
    """Communicators, from the payloads of the calls that made them."""
    found = Communicators()
    process = events[NVTX]["process"]
    for row, payload in payloads.items():
        if payload.members != NA and payload.rank != NA and payload.communicator:
            found.members[payload.communicator] = payload.members
            found.rank[int(process[row]), payload.communicator] = payload.rank
    return found


def add_collectives(
    builder: TraceBuilder,
    events: Events,
    ranks: Ranks,
    first: int,
    payloads: Mapping[int, Payload],
    communicators: Communicators,
) -> None:
    """Rows for every communication kernel; `first` is the row of the first kernel in device_events.

    Where the call is not recorded the kernel's name gives the operation, and nothing more is known.
    """
    names = builder.names
    kernels = communication_kernels(events, names)
    if not len(kernels):
        return
    calls_of = _calls_by_kernel(events, names, kernels, payloads)
    rank = rank_of(ranks, {name: column[kernels] for name, column in events[KERNEL].items()})
    columns: dict[str, list[Any]] = defaultdict(list)
    size_unknown = 0
    for place, kernel in enumerate(kernels.tolist()):
        row = _merged(_op_of(events, names, kernel), calls_of.get(kernel, []), communicators)
        size_unknown += row.pop("size_unknown")
        group = row["group"]
        row["peer_place"] = row["peer"]
        row["peer"] = _global_peer(row["peer"], group, ranks, communicators)
        columns["rank"].append(int(rank[place]))
        columns["event"].append(first + kernel)
        for name, value in row.items():
            text = name in ("op", "group", "dtype")
            columns[name].append((names.code(value) if value else NO_NAME) if text else value)
    builder.add("collectives", len(kernels), {name: np.array(values) for name, values in columns.items()})
    builder.problem(job.GROUP_SIZE_UNKNOWN, size_unknown)
    _add_groups(builder, ranks, communicators)


def communication_kernels(events: Events, names: NamePool) -> Times:
    """The rows of the kernels that communicate."""
    codes = events[KERNEL]["name"]
    communicating = [code for code in distinct_values(codes).tolist() if kinds.is_communication_kernel(names[code])]
    return np.flatnonzero(np.isin(codes, communicating)) if communicating else np.empty(0, np.int64)


def _calls_by_kernel(
    events: Events, names: NamePool, kernels: Times, payloads: Mapping[int, Payload]
) -> dict[int, list[Call]]:
    """The NCCL calls that each kernel carries out."""
    found: dict[int, list[Call]] = {}
    launches = _launches(events, kernels)
    for thread, batches in _batches(events, names, payloads).items():
        starts = np.array([batch.start for batch in batches], np.int64)
        for time, kernel in launches.get(thread, ()):
            place = int(np.searchsorted(starts, time, "right")) - 1
            if place >= 0 and time <= batches[place].end:
                batches[place].kernels.append(kernel)
        for batch in batches:
            found.update(_distribute(batch, {kernel: _op_of(events, names, kernel) for kernel in batch.kernels}))
    return found


def _op_of(events: Events, names: NamePool, kernel: int) -> str:
    return kinds.collective_op(names[int(events[KERNEL]["name"][kernel])])


def _launches(events: Events, kernels: Times) -> dict[int, list[tuple[int, int]]]:
    """(start of the launching call, kernel) by thread, in order of time."""
    calls, rows = events[RUNTIME], events[KERNEL]
    wanted = np.isin(calls["correlationId"], rows["correlationId"][kernels])
    where = {
        (process, correlation): (thread, start)
        for process, correlation, thread, start in zip(
            *(calls[name][wanted].tolist() for name in ("process", "correlationId", "globalTid", "start")), strict=True
        )
    }
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for kernel in kernels.tolist():
        key = (int(rows["process"][kernel]), int(rows["correlationId"][kernel]))
        if key in where:
            thread, start = where[key]
            found[thread].append((start, kernel))
    return {thread: sorted(launched) for thread, launched in found.items()}


def _batches(events: Events, names: NamePool, payloads: Mapping[int, Payload]) -> dict[int, list[_Batch]]:
    """Calls that are launched together, by thread and in order of time."""
    rows = events[NVTX]
    label = {code: names[code] for code in distinct(rows["name"])[0].tolist()}
    nccl = {code: text.removeprefix("p") for code, text in label.items() if is_nccl_call(text)}
    index = np.flatnonzero(np.isin(rows["name"], list(nccl)))
    index = index[np.argsort(rows["start"][index], kind="stable")]
    found: dict[int, list[_Batch]] = defaultdict(list)
    pending: dict[int, list[Call]] = defaultdict(list)
    depth: dict[int, int] = defaultdict(int)
    for row in index.tolist():
        thread, name = int(rows["globalTid"][row]), nccl[int(rows["name"][row])]
        start, end = int(rows["start"][row]), int(rows["end"][row])
        if name == "ncclGroupStart":
            depth[thread] += 1
        elif name == "ncclGroupEnd":
            depth[thread] = max(depth[thread] - 1, 0)
            if not depth[thread]:
                found[thread].append(_Batch(start, end, pending.pop(thread, [])))
        elif op := kinds.collective_op(name.removeprefix("nccl").replace("Bcast", "Broadcast")):
            call = Call(op, payloads.get(row, Payload()))
            if depth[thread]:
                pending[thread].append(call)
            else:
                found[thread].append(_Batch(start, end, [call]))
    return found


def _distribute(batch: _Batch, ops: Mapping[int, str]) -> dict[int, list[Call]]:
    """Which kernel of a batch carries out which of its calls; a kernel for which that is open is left out."""
    found: dict[int, list[Call]] = {}
    families = {_family(op) for op in ops.values()}
    for family in families:
        kernels = [kernel for kernel, op in ops.items() if _family(op) == family]
        calls = [call for call in batch.calls if family in ("", _family(call.op))]
        groups: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            groups[call.payload.communicator].append(call)
        if len(kernels) == 1:
            found[kernels[0]] = calls
        elif len(kernels) == len(calls):
            found.update({kernel: [call] for kernel, call in zip(kernels, calls, strict=True)})
        elif len(kernels) == len(groups):
            found.update(zip(kernels, groups.values(), strict=True))
    return found


def _family(op: str) -> str:
    return "send_recv" if op in _POINT_TO_POINT else op


def _merged(kernel_op: str, calls: Sequence[Call], communicators: Communicators) -> dict[str, Any]:
    """One row for a kernel that carries out `calls`."""
    op = calls[0].op if len({call.op for call in calls}) == 1 else kernel_op
    groups = {call.payload.communicator for call in calls}
    group = groups.pop() if len(groups) == 1 else ""
    members = communicators.members.get(group, NA)
    peers = {call.payload.peer for call in calls}
    sends = [call for call in calls if call.op == "send"]
    size, share = _total(calls), NA
    if sends and len(calls) > len(sends):
        # Both directions at once: the array is what one of them moves.
        size = max(_total(sends), _total([call for call in calls if call.op == "recv"]))
        if _is_all_to_all(calls):
            op = "all_to_all"
    elif op in _PER_RANK_SIZE and size != NA:
        size, share = (size * members, NA) if members != NA else (NA, size)
    return {
        "op": op or "unknown",
        "group": group,
        "group_size": members,
        "bytes": size,
        "share": share,
        "seq": calls[0].payload.seq if len(calls) == 1 else NA,
        "peer": peers.pop() if len(peers) == 1 and op in kinds.POINT_TO_POINT else NA,
        "dtype": calls[0].payload.dtype if calls else "",
        "size_unknown": op in _PER_RANK_SIZE and size == NA and _total(calls) != NA,
    }


def _total(calls: Iterable[Call]) -> int:
    sizes = [call.payload.bytes for call in calls]
    return NA if not sizes or NA in sizes else sum(sizes)


def _is_all_to_all(calls: Sequence[Call]) -> bool:
    """Equal sends to all ranks 0…n−1 and as many receives: only an all-to-all sends to itself as well."""
    to = sorted(call.payload.peer for call in calls if call.op == "send")
    back = sorted(call.payload.peer for call in calls if call.op == "recv")
    return len(to) > 1 and to == back == list(range(len(to)))


def _global_peer(peer: int, group: str, ranks: Ranks, communicators: Communicators) -> int:
    """A peer is recorded as its rank in the communicator: known for the job where that is the whole job, or
    where the peer's own file is this one."""
    if peer == NA:
        return NA
    for (process, name), rank in communicators.rank.items():
        if name == group and rank == peer and process in ranks.of_process:
            return ranks.of_process[process][0]
    whole_job = ranks.world_size is not None and communicators.members.get(group) == ranks.world_size
    return peer if whole_job else NA


def _add_groups(builder: TraceBuilder, ranks: Ranks, communicators: Communicators) -> None:
    code = builder.names.code
    for (process, name), place in communicators.rank.items():
        for rank in ranks.of_process.get(process, ())[:1]:
            values = {
                "rank": rank,
                "group": code(name),
                "size": communicators.members[name],
                "place": place,
                "backend": code("nccl"),
            }
            builder.add("groups", 1, values)
