"""A run as nsys exports it: one SQLite file of all ranks, a process each; times in ns since the recording began.

Without NVTX payloads, as nsys records PyTorch by default, no collective tells its size, group or number.
"""

from __future__ import annotations

from pathlib import Path

from helpers.nsys import KERNEL, MEMCPY, NVTX, RUNTIME, Export, process

from simulator.kineto_rows import PID, THREADS
from simulator.recorded import Call, Operation, Recorded, Run

SYNCHRONIZATION, EVENT = "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", "CUPTI_ACTIVITY_KIND_CUDA_EVENT"
SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
NONE = (1 << 32) - 1
"""No stream, no event."""
COPY_KINDS = {"HtoD": 1, "DtoH": 2}
MEMORY_KINDS = {"Pageable": 0, "Pinned": 1, "Device": 2}
RECORDING_BEGAN_NS = 1_000_000_000


def write_nsys(folder: Path, run: Run) -> Path:
    """Write the export; returns its path."""
    export = Export()
    for table, names in (("ENUM_CUDA_MEMCPY_OPER", COPY_KINDS), ("ENUM_CUDA_MEM_KIND", MEMORY_KINDS)):
        for name, number in names.items():
            export.add(table, id=number, name=name, label=name)
    for name, number in SYNC_TYPES.items():
        export.add("ENUM_CUPTI_SYNC_TYPE", id=number, name=name.upper().replace(" ", "_"), label=name)
    for recorded in run.ranks.values():
        _rank(export, recorded)
    folder.mkdir(parents=True, exist_ok=True)
    return export.write(folder)


def _rank(export: Export, recorded: Recorded) -> None:
    pid = PID + 1_000 * recorded.rank
    export.add("PROCESSES", globalPid=process(pid), pid=pid, name="python3.11")
    for operation in recorded.operations:
        _operation(export, operation, pid)
    for call in recorded.calls:
        _call(export, call, pid)
    for found in recorded.ranges:
        if found.category == "user_annotation":
            export.add(
                NVTX, start=_at(found.start), end=_at(found.end), text=found.name, textId=None, eventType=59,
                domainId=0, globalTid=process(pid) + pid + THREADS[found.tid],
            )  # fmt: skip


def _at(time: int) -> int:
    return RECORDING_BEGAN_NS + time


def _operation(export: Export, operation: Operation, pid: int) -> None:
    row = {
        "start": _at(operation.start), "end": _at(operation.end), "deviceId": operation.rank, "contextId": 1,
        "streamId": operation.stream, "correlationId": operation.correlation, "globalPid": process(pid),
    }  # fmt: skip
    if operation.category == "gpu_memcpy":
        direction, between = operation.name.removeprefix("Memcpy ").split(" ", 1)
        source, target = between.strip("()").split(" -> ")
        export.add(
            MEMCPY, **row, copyKind=COPY_KINDS[direction], bytes=operation.args["bytes"],
            srcKind=MEMORY_KINDS[source], dstKind=MEMORY_KINDS[target],
        )  # fmt: skip
        return
    name = operation.args["kernel"] if operation.collective else operation.name
    node = operation.graph << 32 | operation.correlation if operation.graph else None
    export.add(KERNEL, **row, demangledName=export.string(name), shortName=export.string(name), graphNodeId=node)


def _call(export: Export, call: Call, pid: int) -> None:
    thread = process(pid) + pid + THREADS[call.tid]
    export.add(
        RUNTIME, start=_at(call.start), end=_at(call.end), correlationId=call.correlation, globalTid=thread,
        nameId=export.string(f"{call.name}_v3020"), returnValue=0,
    )  # fmt: skip
    common = {"deviceId": call.rank, "contextId": 1, "correlationId": call.correlation, "globalPid": process(pid)}
    if call.event is not None and call.sync is None:
        stream, number = call.event
        export.add(EVENT, **common, timestamp=None, streamId=stream, eventId=number, eventSyncId=call.correlation)
    elif call.sync is not None:
        stream = call.sync["stream"]
        awaited = call.sync.get("wait_on_cuda_event_record_corr_id", NONE)
        export.add(
            SYNCHRONIZATION, **common, start=_at(call.sync_start), end=_at(max(call.sync_start, call.end - 1_000)),
            streamId=NONE if stream < 0 else stream, deprecatedSyncType=None,
            syncType=SYNC_TYPES[call.sync["cuda_sync_kind"]],
            eventId=call.sync.get("wait_on_cuda_event_id", NONE), eventSyncId=awaited,
        )  # fmt: skip
