"""Work on the devices: kernels, copies, memsets, migrations, whole graphs; and synchronisation records."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np

from gpuscope.problems import completeness
from gpuscope.sources.nsys.rows.event_tables import (
    BLOCK,
    CUDA_EVENT,
    GRAPH,
    GRID,
    KERNEL,
    MEMCPY,
    MEMSET,
    SYNC,
    Events,
    Rows,
    take,
)
from gpuscope.sources.nsys.rows.process_ranks import Ranks
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct, distinct_pairs, distinct_values, mapped
from gpuscope.trace.columns.name_pool import Codes, NamePool
from gpuscope.trace.columns.table import Array, Times, compact, constant, is_constant
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.small_grids import FEW, small

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
    builder.problem(completeness.GRAPH_LEVEL, len(graphs["start"]))
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
