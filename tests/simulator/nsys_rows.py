"""A run as nsys exports it: one SQLite file of all ranks, a process each; times in ns since the recording began.

Without NVTX payloads, as nsys records PyTorch by default, no collective tells its size, group or number. With them
(`Payloads`) NCCL's calls tell size and communicator, but not how many ranks are in it, which only a capture that began
before `ncclCommInitRank` knows.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from helpers.nsys import KERNEL, MEMCPY, NVTX, RUNTIME, Export, payload, process

from simulator.kineto_rows import PID, THREADS
from simulator.recorded import Call, Operation, Recorded, Run

SYNCHRONIZATION, EVENT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
NONE = (1 << 32) - 1
"""No stream, no event."""
COPY_KINDS = {"HtoD": 1, "DtoH": 2}
MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2}
RECORDING_BEGAN_NS = 1_000_000_000


_CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll",
    "broadcast": "ncclBroadcast",
}
_SHARES = ("all_gather", "reduce_scatter", "all_to_all")
"""Operations of which NCCL logs one rank's share."""
_COLLECTIVE, _PEER = 902, 904


@dataclass(frozen=True)
class Payloads:
    """NCCL's ranges with what they say of each call."""

    common_ids: bool = True
    """Whether a communicator has one id on all its ranks (NCCL 2.25 and later)."""
    environment: tuple[tuple[str, str], ...] = ()
    """Variables of the profiled command."""


def write_nsys(folder: Path, run: Run, payloads: Payloads | None = None) -> Path:
    """Write the export; returns its path."""
    export = Export() if payloads is None else _with_layouts(payloads)
    for table, names in (("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS), ("ENUM_CUDA_MEM_KIND", MEMORY_KINDS)):
        for name, number in names.items():
            export.add(table, id=number, name=name, label=name)
    for name, number in SYNC_TYPES.items():
        export.add("ENUM_CUPTI_SYNC_TYPE", id=number, name=name.upper().replace(" ", "_"), label=name)
    for recorded in run.ranks.values():
        _rank(export, recorded, payloads)
    folder.mkdir(parents=True, exist_ok=True)
    return export.write(folder)


def _with_layouts(payloads: Payloads) -> Export:
    export = Export(EXPORT_PARAM_INCLUDE_BLOBS="true")
    fields = [("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8), ("Peer rank", 5, 16)]
    for schema, count in ((_COLLECTIVE, 2), (_PEER, 3)):
        for index, (name, kind, offset) in enumerate(fields[:count]):
            export.add(
                "NVTX_PAYLOAD_SCHEMA_ENTRIES",
                domainId=1,
                schemaId=schema,
                idx=index,
                type=kind,
                name=name,
                offset=offset or None,
            )
    export.environment(**dict(payloads.environment))
    return export


def _nccl_call(export: Export, operation: Operation, call: Call, pid: int, payloads: Payloads) -> None:
    """The range that NCCL opens around the call that launches an operation."""
    told = operation.collective
    assert told is not None
    own = f"{told.group} {told.ranks}" + ("" if payloads.common_ids else f" {operation.rank}")
    size = told.bytes // len(told.ranks) if told.op in _SHARES else told.bytes
    body = struct.pack("<QQ", 1 << 32 | zlib.crc32(own.encode()), size)
    schema, name = _COLLECTIVE, _CALLS.get(told.op, "")
    if told.op == "send_recv":
        source, target = told.args["Src Rank"], told.args["Dst Rank"]
        name, peer = ("ncclSend", target) if source == operation.rank else ("ncclRecv", source)
        body, schema = body + struct.pack("<i4x", told.ranks.index(peer)), _PEER
    export.add(
        NVTX,
        start=_at(call.start),
        end=_at(call.end),
        text=None,
        textId=export.string(name),
        eventType=59,
        domainId=1,
        globalTid=process(pid) + pid + THREADS[call.tid],
        binaryData=payload(schema, body),
    )


def _rank(export: Export, recorded: Recorded, payloads: Payloads | None) -> None:
    pid = PID + 1_000 * recorded.rank
    export.add("PROCESSES", globalPid=process(pid), pid=pid, name="python3.11")
    for operation in recorded.operations:
        _operation(export, operation, pid)
    for call in recorded.calls:
        _call(export, call, pid)
    calls = {call.correlation: call for call in recorded.calls}
    for operation in recorded.operations:
        if payloads is not None and operation.collective is not None and not operation.graph:
            _nccl_call(export, operation, calls[operation.correlation], pid, payloads)
    for found in recorded.ranges:
        if found.category == "user_annotation":
            export.add(
                NVTX,
                start=_at(found.start),
                end=_at(found.end),
                text=found.name,
                textId=None,
                eventType=59,
                domainId=0,
                globalTid=process(pid) + pid + THREADS[found.tid],
            )


def _at(time: int) -> int:
    return RECORDING_BEGAN_NS + time


def _operation(export: Export, operation: Operation, pid: int) -> None:
    row = {
        "start": _at(operation.start),
        "end": _at(operation.end),
        "deviceId": operation.rank,
        "contextId": 1,
        "streamId": operation.stream,
        "correlationId": operation.correlation,
        "globalPid": process(pid),
    }
    if operation.category == "gpu_memcpy":
        direction, between = operation.name.removeprefix("Memcpy ").split(" ", 1)
        source, target = between.strip("()").split(" -> ")
        export.add(
            MEMCPY,
            **row,
            copyKind=COPY_KINDS[direction],
            bytes=operation.args["bytes"],
            srcKind=MEMORY_KINDS[source],
            dstKind=MEMORY_KINDS[target],
        )
        return
    name = operation.args["kernel"] if operation.collective else operation.name
    node = operation.graph << 32 | operation.correlation if operation.graph else None
    export.add(KERNEL, **row, demangledName=export.string(name), shortName=export.string(name), graphNodeId=node)


def _call(export: Export, call: Call, pid: int) -> None:
    thread = process(pid) + pid + THREADS[call.tid]
    export.add(
        RUNTIME,
        start=_at(call.start),
        end=_at(call.end),
        correlationId=call.correlation,
        globalTid=thread,
        nameId=export.string(f"{call.name}_v3020"),
        returnValue=0,
    )
    common = {"deviceId": call.rank, "contextId": 1, "correlationId": call.correlation, "globalPid": process(pid)}
    if call.event is not None and call.sync is None:
        stream, number = call.event
        export.add(EVENT, **common, timestamp=None, streamId=stream, eventId=number, eventSyncId=call.correlation)
    elif call.sync is not None:
        stream = call.sync["stream"]
        awaited = call.sync.get("wait_on_cuda_event_record_corr_id", NONE)
        export.add(
            SYNCHRONIZATION,
            **common,
            start=_at(call.sync_start),
            end=_at(max(call.sync_start, call.end - 1_000)),
            streamId=NONE if stream < 0 else stream,
            deprecatedSyncType=None,
            syncType=SYNC_TYPES[call.sync["cuda_sync_kind"]],
            eventId=call.sync.get("wait_on_cuda_event_id", NONE),
            eventSyncId=awaited,
        )
