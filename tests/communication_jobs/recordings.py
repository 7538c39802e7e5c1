"""Writes a run as torch.profiler does that records the device alone, or as nsys does with NCCL's payloads."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

from helpers.nsys import KERNEL, NVTX, RUNTIME, Export, payload, process

from communication_jobs.engine import Operation, Rank
from communication_jobs.jobs import Collective, Job

SINCE_NS = 1_000_000_000
_KERNELS = {
    "all_reduce": "ncclDevKernel_AllReduce_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_gather": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "reduce_scatter": "ncclDevKernel_ReduceScatter_Sum_{}_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "all_to_all": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv",
}
_CALLS = {
    "all_reduce": "ncclAllReduce",
    "all_gather": "ncclAllGather",
    "reduce_scatter": "ncclReduceScatter",
    "all_to_all": "ncclAlltoAll",
}
_TYPES = {1: ("Byte", "u8"), 2: ("BFloat16", "bf16"), 4: ("Float", "f32")}


def write(folder: Path, job: Job, ranks: list[Rank]) -> Path:
    """The recording; returns what is to be opened."""
    path = folder / job.name
    path.mkdir(parents=True, exist_ok=True)
    if job.recorder == "nsys":
        return _nsys(path, job, ranks)
    for rank, recorded in enumerate(ranks):
        text = json.dumps(_kineto(job, rank, recorded), indent=None)
        (path / f"trace_{rank}.json").write_text(text, encoding="utf-8")
    return path


def _name(what: Any) -> str:
    if not isinstance(what, Collective):
        return str(what.name)
    return _KERNELS[what.op].replace("{}", _TYPES[what.element][1])


def _kineto(job: Job, rank: int, recorded: Rank) -> dict[str, Any]:
    def row(category: str, name: str, start: float, end: float, tid: int, **told: Any) -> dict[str, Any]:
        device = category == "kernel"
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": rank if device else 7_000 + rank,
            "tid": tid,
            "ts": (SINCE_NS + round(start)) / 1_000,
            "dur": (round(end) - round(start)) / 1_000,
            "args": told,
        }

    rows, sequence = [], dict[str, int]()
    for number, operation in enumerate(recorded.operations):
        what = operation.what
        told: dict[str, Any] = {"device": rank, "context": 1, "stream": what.stream, "correlation": number + 1}
        if isinstance(what, Collective):
            told |= _arguments(what, rank, sequence)
        rows.append(row("kernel", _name(what), operation.start, operation.end, what.stream, **told))
        rows.append(
            row("cuda_runtime", "cudaLaunchKernelExC", *operation.launched, 7_000 + rank, correlation=number + 1)
        )
    for number, (start, end) in enumerate(recorded.waits):
        calls = len(recorded.operations) + number + 1
        rows.append(row("cuda_runtime", "cudaStreamSynchronize", start, end, 7_000 + rank, correlation=calls))
    if job.marks:
        ends = [*recorded.steps[1:], max(one.launched[1] for one in recorded.operations) + 20_000]
        for number, (start, end) in enumerate(zip(recorded.steps, ends, strict=True)):
            rows.append(row("user_annotation", job.marks.replace("{}", str(number + 40)), start, end, 7_000 + rank))
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": n, "name": "NVIDIA A100-SXM4-80GB"} for n in range(job.ranks)],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": job.ranks},
        "baseTimeNanoseconds": 0,
        "traceEvents": rows,
    }


def _arguments(what: Collective, rank: int, sequence: dict[str, int]) -> dict[str, Any]:
    elements, members = what.nbytes // what.element, len(what.members)
    sequence[what.group] = sequence.get(what.group, 0) + 1
    return {
        "Collective name": _NAMES[what.op],
        "dtype": _TYPES[what.element][0],
        "In msg nelems": elements // members if what.op == "all_gather" else elements,
        "Out msg nelems": elements // members if what.op == "reduce_scatter" else elements,
        "Group size": members,
        "Process Group Name": what.group,
        "Process Group Ranks": str(list(what.members)),
        "Seq": sequence[what.group],
        "Rank": what.members.index(rank),
    }


def _nsys(folder: Path, job: Job, ranks: list[Rank]) -> Path:
    export = Export(EXPORT_PARAM_INCLUDE_BLOBS="true")
    for index, (name, kind, offset) in enumerate([("NCCL communicator ID", 18, 0), ("Message size [bytes]", 22, 8)]):
        export.add(
            "NVTX_PAYLOAD_SCHEMA_ENTRIES",
            domainId=1,
            schemaId=902,
            idx=index,
            type=kind,
            name=name,
            offset=offset or None,
        )
    for number in range(job.ranks):
        export.add("TARGET_INFO_GPU", id=number, name="NVIDIA A100-SXM4-80GB", uuid=f"u{number}", cuDevice=number)
    for rank, recorded in enumerate(ranks):
        pid = 9_000 + 10 * rank
        export.add("PROCESSES", globalPid=process(pid), pid=pid, name="python3")
        for number, operation in enumerate(recorded.operations):
            _exported(export, operation, pid, number + 1)
        for number, (start, end) in enumerate(recorded.waits):
            export.add(
                RUNTIME,
                start=_at(start),
                end=_at(end),
                correlationId=len(recorded.operations) + number + 1,
                globalTid=process(pid) + pid,
                nameId=export.string("cudaStreamSynchronize_v3020"),
                returnValue=0,
            )
        if job.marks:
            ends = [*recorded.steps[1:], max(one.launched[1] for one in recorded.operations) + 20_000]
            for number, (start, end) in enumerate(zip(recorded.steps, ends, strict=True)):
                export.add(
                    NVTX,
                    start=_at(start),
                    end=_at(end),
                    text=job.marks.replace("{}", str(number)),
                    textId=None,
                    eventType=59,
                    domainId=0,
                    globalTid=process(pid) + pid,
                )
    return export.write(folder)


def _at(time: float) -> int:
    return SINCE_NS + round(time)


def _exported(export: Export, operation: Operation, pid: int, number: int) -> None:
    what, (start, end), thread = operation.what, operation.launched, process(pid) + pid
    name = export.string(_name(what))
    export.add(
        KERNEL,
        start=_at(operation.start),
        end=_at(operation.end),
        deviceId=operation.rank,
        contextId=1,
        streamId=what.stream,
        correlationId=number,
        globalPid=process(pid),
        demangledName=name,
        shortName=name,
    )
    export.add(
        RUNTIME,
        start=_at(start),
        end=_at(end),
        correlationId=number,
        globalTid=thread,
        nameId=export.string("cudaLaunchKernelExC_v11060"),
        returnValue=0,
    )
    if isinstance(what, Collective):
        size = what.nbytes if what.op == "all_reduce" else what.nbytes // len(what.members)
        body = struct.pack("<QQ", 1 << 33 | zlib.crc32(f"{what.group} {what.members}".encode()), size)
        export.add(
            NVTX,
            start=_at(start),
            end=_at(end),
            text=None,
            textId=export.string(_CALLS[what.op]),
            eventType=59,
            domainId=1,
            globalTid=thread,
            binaryData=payload(902, body),
        )
