"""Whole small exports with a row or more in every table that is read, and copies with columns taken away."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from helpers.nsys import NVTX, Export, process

Tables = dict[str, list[dict[str, Any]]]
ROWS = 60
"""Of each table of a real export: columns matter here, not how many rows there are."""
_NOT_READ = ("ENUM_", "COMPOSITE_EVENTS", "SCHED_EVENTS", "DX12", "VULKAN", "sqlite_")
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def everything() -> Tables:
    """A made-up export of two processes on two devices, with the tables of old and new versions."""
    export = Export(EXPORT_PARAM_INCLUDE_BLOBS="true")
    export.host("node", ["GPU-a", "GPU-b"], 1_700_000_000_000_000_000)
    export.environment(WORLD_SIZE=2)
    export.add("EXPORT_META_DATA", name="EXPORT_PRODUCT_VERSION", value="2024.1.1")
    export.add("META_DATA_CAPTURE", name="CAPTURE_EVENT_TYPE", value="Cuda")
    for row in export.tables["TARGET_INFO_GPU"]:
        row |= {"busLocation": f"0000:0{row['id']}:00.0", "smCount": 132}
    for rank, pid in enumerate((10, 11)):
        _process(export, rank, pid)
    export.add("DIAGNOSTIC_EVENT", severity=3, text="Not all CUDA events might have been collected.", timestamp=1)
    for table in ("MPI_RANKS",):
        for rank, pid in enumerate((10, 11)):
            export.add(table, globalTid=process(pid) + pid, rank=rank)
    export.add("MPI_COMMUNICATORS", rank=0, commHandle=7, size=2)
    _counters(export)
    return export.tables


def _process(export: Export, rank: int, pid: int) -> None:
    thread = process(pid) + pid
    export.uses(pid, rank, rank)
    export.add("PROCESSES", globalPid=process(pid), pid=pid, name="python")
    export.add("ThreadNames", nameId=export.string("python"), priority=1, globalTid=thread)
    for step in range(4):
        at, first = 100_000 * step, 10 * step
        export.range(at, at + 95_000, f"step_{step}", pid=pid)
        export.range(at, at + 9_000, "aten::mm, seq = 1, op_id = 3, sizes = [[2, 3], [3, 2]]", pid=pid)
        export.range(at + 10_000, at + 14_000, None, pid=pid, textId=export.string("ncclAllReduce"), domainId=1)
        export.tables[NVTX][-1] |= {
            "binaryData": None,
            "jsonTextId": export.string('{"Message size [bytes]": 64}'),
            "jsonText": '{"Message size [bytes]": 64}',
            "rangeId": step,
        }
        export.call(at + 1_000, at + 2_000, first + 1, pid=pid, eventClass=0, callchainId=0)
        export.kernel(
            at + 3_000,
            at + 40_000,
            first + 1,
            pid=pid,
            device=rank,
            shortName=export.string("gemm"),
            mangledName=export.string("_Z4gemm"),
            graphNodeId=(3 << 32) + 1,
            graphId=3,
        )
        export.call(at + 11_000, at + 12_000, first + 2, pid=pid)
        export.kernel(at + 40_000, at + 60_000, first + 2, NCCL, pid=pid, device=rank)
        export.call(at + 15_000, at + 16_000, first + 3, "cudaMemcpyAsync_v3020", pid=pid)
        export.copy(at + 60_000, at + 62_000, first + 3, pid=pid, srcKind=0, dstKind=2, migrationCause=None)
        on_device = {"deviceId": rank, "streamId": 7, "globalPid": process(pid)}
        export.add(
            "CUPTI_ACTIVITY_KIND_MEMSET",
            start=at + 63_000,
            end=at + 64_000,
            correlationId=first + 4,
            bytes=8,
            graphNodeId=None,
            **on_device,
        )
        export.add(
            "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
            start=at + 65_000,
            end=at + 70_000,
            correlationId=first + 5,
            graphId=9,
            **on_device,
        )
        export.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=at + 71_000,
            end=at + 72_000,
            correlationId=first + 6,
            syncType=2,
            eventId=1,
            eventSyncId=step + 1,
            **on_device,
        )
        export.add(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT", correlationId=first + 5, eventId=1, eventSyncId=step + 1, **on_device
        )
        for table, name in (
            ("OSRT_API", "poll"),
            ("PROFILER_OVERHEAD", "flush"),
            ("CUPTI_ACTIVITY_KIND_OVERHEAD", "buffer"),
        ):
            export.add(table, start=at + 73_000, end=at + 74_000, globalTid=thread, nameId=export.string(name))
        for table, name in (
            ("MPI_COLLECTIVES_EVENTS", "MPI_Allreduce"),
            ("MPI_P2P_EVENTS", "MPI_Send"),
            ("MPI_START_WAIT_EVENTS", "MPI_Wait"),
            ("MPI_OTHER_EVENTS", "MPI_Comm_rank"),
        ):
            export.add(
                table,
                start=at + 80_000,
                end=at + 81_000,
                globalTid=thread,
                textId=export.string(name),
                commHandle=7,
                size=64,
                recvSize=64,
                remoteRank=1 - rank,
            )


def _counters(export: Export) -> None:
    export.add("TARGET_INFO_NIC_INFO", nicId=1, name="mlx5_0")
    export.add("NIC_ID_MAP", globalId=5, nicId=1)
    export.add("TARGET_INFO_NETWORK_METRICS", metricsListId=1, metricsIdx=0, name="Bytes sent", unit="bytes")
    export.add("NET_IB_DEVICE_INFO", guid=6, name="switch")
    export.add("ENUM_NET_IB_CONGESTION_EVENT_TYPE", id=1, label="FECN")
    export.add("TARGET_INFO_GPU_METRICS", metricId=1, metricName="NVLink TX", typeId=1 << 8)
    for number in range(3):
        at = {"start": 1_000 * number, "end": 1_000 * number + 999}
        for table, device in (("NET_NIC_METRIC", 5), ("NET_IB_SWITCH_METRIC", 6)):
            export.add(table, **at, globalId=device, portId=1, metricsListId=1, metricsIdx=0, value=number)
        export.add(
            "NET_IB_SWITCH_CONGESTION_EVENT", start=at["start"], globalId=6, congestionType=1, switchEgressPort=2
        )
        export.add("GPU_METRICS", timestamp=at["start"], typeId=1 << 8, metricId=1, value=50)


def shortened(path: Path) -> Tables:
    """The first rows of every table of an SQLite export, and the strings that they name."""
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
    connection.row_factory = sqlite3.Row
    names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    found = {
        name: [dict(row) for row in connection.execute(f'SELECT * FROM "{name}" LIMIT {ROWS}')]
        for name in names
        if name != "StringIds" and not name.startswith(_NOT_READ)
    }
    used = {value for rows in found.values() for row in rows for value in row.values() if isinstance(value, int)}
    strings = connection.execute("SELECT * FROM StringIds") if "StringIds" in names else ()
    found["StringIds"] = [dict(row) for row in strings if row["id"] in used]
    connection.close()
    return {name: rows for name, rows in found.items() if rows}


def without(tables: Tables, gone: set[tuple[str, str]]) -> Tables:
    """A copy without these columns (table, column)."""
    return {
        name: [{column: value for column, value in row.items() if (name, column) not in gone} for row in rows]
        for name, rows in tables.items()
    }


def columns(tables: Tables) -> list[tuple[str, str]]:
    """Every column of every table."""
    return sorted({(name, column) for name, rows in tables.items() for row in rows for column in row})


def sets(tables: Tables, count: int, random: Random) -> Iterator[set[tuple[str, str]]]:
    """Random sets of columns, few to most of all."""
    every = columns(tables)
    for _ in range(count):
        share = random.choice([0.03, 0.1, 0.3, 0.6, 0.9])
        yield {one for one in every if random.random() < share}
