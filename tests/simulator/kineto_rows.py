"""A run as torch.profiler writes it: one JSON file per rank, times in decimal µs since `baseTimeNanoseconds`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

from simulator.job import Job
from simulator.recorded import Call, Operation, Range, Recorded, Run

BASE_NS = 1_751_410_836_000_000_000
SINCE_BASE_NS = 2_000_000_000
PID = 4_200
"""Of rank 0; a rank's threads are numbered from its process."""
THREADS = (0, 512, 640)
DEVICE_NAME = "NVIDIA H100 80GB HBM3"
CALLBACK_IDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaMemsetAsync": 51,
    "cudaGraphLaunch": 311,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
    "cudaStreamSynchronize": 131,
    "cudaDeviceSynchronize": 165,
    "cudaEventSynchronize": 137,
    "cudaMalloc": 20,
    "cudaFree": 22,
}
Row = dict[str, Any]


@dataclass(frozen=True)
class Profiler:
    """What the recording holds."""

    cuda_sync: bool = True
    """Synchronisations and stream waits as rows of their own."""
    shapes: bool = True
    collective_arguments: bool = True
    flows: bool = False
    kept: float = 1.0
    """Operators kept, with their calls and kernels, as by a tool that samples."""
    left_out: tuple[int, ...] = ()
    """Ranks that no file holds."""
    per_host: int = 0
    """Ranks on each host, whose name is recorded; 0: it is not."""
    clock_offsets: Mapping[int, int] = field(default_factory=dict)
    """How far a rank's clock is ahead, ns."""


def write_kineto(folder: Path, job: Job, run: Run, profiler: Profiler | None = None) -> list[Path]:
    """A file per rank that is not left out; returns their paths."""
    profiler = profiler or Profiler()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank, recorded in run.ranks.items():
        if rank not in profiler.left_out:
            path = folder / f"rank{rank}.json"
            path.write_text(json.dumps(document(job, recorded, profiler)), encoding="utf-8")
            written.append(path)
    return written


def document(job: Job, recorded: Recorded, profiler: Profiler) -> dict[str, Any]:
    """One rank's file."""
    writer = _Writer(recorded.rank, profiler)
    kept = writer.kept
    rows = [*_threads(recorded), *(writer.range(r) for r in recorded.ranges if kept(r.external, r.category))]
    for call in recorded.calls:
        if kept(call.external):
            rows += writer.call(call)
    rows += [writer.operation(o) for o in recorded.operations if kept(o.external)]
    world: Row = {"rank": recorded.rank, "world_size": job.ranks}
    if job.parallel != "single":
        world |= {
            "backend": "nccl",
            "pg_count": len(_groups(job)),
            "pg_config": _groups(job),
            "nccl_version": "2.21.5",
        }
    return {
        "schemaVersion": 1,
        "deviceProperties": [
            {
                "id": n,
                "name": DEVICE_NAME,
                "totalGlobalMem": 85018279936,
                "computeMajor": 9,
                "computeMinor": 0,
                "numSms": 132,
                "warpSize": 32,
            }
            for n in range(job.ranks)
        ],
        "distributedInfo": world,
        "cuda_runtime_version": 12040,
        "record_shapes": int(profiler.shapes),
        "with_stack": 0,
        **({"host_name": f"node{recorded.rank // profiler.per_host}"} if profiler.per_host else {}),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
        "trace_id": f"{crc32(job.name.encode()):032X}",
        "traceEvents": rows,
    }


def _groups(job: Job) -> list[Row]:
    groups = {"0": ("default_pg", job.group)}
    if job.parallel == "tensor":
        groups |= {f"tp{n}": ("mesh_tp", (2 * n, 2 * n + 1)) for n in range(job.ranks // 2)}
        groups |= {f"dp{n}": ("mesh_dp", job.group[n::2]) for n in range(2)}
    return [
        {
            "pg_name": name,
            "pg_desc": description,
            "backend_config": "cuda:nccl",
            "pg_size": len(ranks),
            "ranks": list(ranks),
        }
        for name, (description, ranks) in groups.items()
    ]


def _threads(recorded: Recorded) -> list[Row]:
    pid = PID + 1_000 * recorded.rank
    rows = [{"name": "process_name", "ph": "M", "ts": 0, "pid": pid, "tid": 0, "args": {"name": "python3.11"}}]
    names = {pid + THREADS[0]: "python3.11", pid + THREADS[1]: "pt_autograd_0"}
    rows += [
        {"name": "thread_name", "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": {"name": f"thread {tid} ({name})"}}
        for tid, name in names.items()
    ]
    return rows


class _Writer:
    def __init__(self, rank: int, profiler: Profiler) -> None:
        self.rank, self.profiler = rank, profiler
        self._shift = SINCE_BASE_NS + profiler.clock_offsets.get(rank, 0)
        self._pid = PID + 1_000 * rank

    def kept(self, external: int, category: str = "cpu_op") -> bool:
        if self.profiler.kept >= 1.0 or category == "user_annotation":
            return True
        return crc32(f"{self.rank}:{external}".encode()) % 10_000 < 10_000 * self.profiler.kept

    def _row(self, category: str, name: str, start: int, end: int, pid: int, tid: int, args: Row) -> Row:
        ts = round((start + self._shift) / 1_000, 3)
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": ts,
            "dur": round((end - start) / 1_000, 3),
            "args": args,
        }

    def range(self, found: Range) -> Row:
        told = dict(found.args)
        if not self.profiler.shapes:
            told = {key: value for key, value in told.items() if not key.startswith("Input ")}
        if found.external:
            told = {"External id": found.external, "Record function id": 0, **told, "Ev Idx": found.external - 1}
        tid = self._pid + THREADS[found.tid]
        return self._row(found.category, found.name, found.start, found.end, self._pid, tid, told)

    def call(self, call: Call) -> list[Row]:
        told: Row = {"External id": call.external} if call.external else {}
        told |= {"cbid": CALLBACK_IDS.get(call.name, 0), "correlation": call.correlation}
        tid = self._pid + THREADS[call.tid]
        rows = [self._row("cuda_runtime", call.name, call.start, call.end, self._pid, tid, told)]
        if self.profiler.flows:
            ts = rows[0]["ts"]
            rows.append(
                {
                    "ph": "s",
                    "id": call.correlation,
                    "pid": self._pid,
                    "tid": tid,
                    "ts": ts,
                    "cat": "ac2g",
                    "name": "ac2g",
                }
            )
        if self.profiler.cuda_sync and call.sync is not None:
            stream = call.sync["stream"]
            args = {**call.sync, "correlation": call.correlation, "device": self.rank, "context": 1}
            args = {"External id": call.external, **args} if call.external else args
            name = str(call.sync["cuda_sync_kind"])
            end = max(call.sync_start, call.end - 1_000)
            rows.append(self._row("cuda_sync", name, call.sync_start, end, self.rank, stream, args))
        return rows

    def operation(self, operation: Operation) -> Row:
        told: Row = {"External id": operation.external} if operation.external else {}
        told |= {"device": self.rank, "context": 1, "stream": operation.stream, "correlation": operation.correlation}
        if operation.category == "kernel":
            told |= {"queued": 0, "registers per thread": 32, "shared memory": 0}
        if operation.graph:
            told |= {"graph id": operation.graph, "graph node id": operation.graph << 32 | operation.correlation}
        name, extra = operation.name, dict(operation.args)
        if operation.collective is not None:
            name = extra.pop("kernel")
            extra |= {"grid": [16, 1, 1], "block": [544, 1, 1]}
            if not self.profiler.collective_arguments:
                extra = {"grid": extra["grid"], "block": extra["block"]}
        return self._row(
            operation.category, name, operation.start, operation.end, self.rank, operation.stream, told | extra
        )
