"""Small whole inputs of every format, from which the fuzzer's are made. All synthetic."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import allocator, nccl_logs, operations
from helpers.flight_recorder import dump, entry
from helpers.kineto import Event, call, copy, kernel, note, op, python, span
from helpers.nsys import Export
from helpers.nsys import process as helpers_process
from helpers.pftrace import write_pftrace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS = 4


@dataclass(frozen=True)
class Seed:
    """One format: its file's name, and the data or bytes that its files hold."""

    name: str
    file: str
    data: Callable[[Path], Any]
    """Plain data, tables, or bytes of a whole file; the folder is to make it in."""
    write: Callable[[Path, Any], None] | None = None
    """Writes plain data as a file; none where the seed is bytes alone."""
    tabular: str = ""
    """`sqlite`, `parquetdir`, `arrowdir` or `parquet` where the data are tables."""


def job() -> list[Event]:
    """Four steps of operators, launches, kernels, a copy, a collective, waits and counters, as Kineto has them."""
    told = {
        "Collective name": "allreduce",
        "In msg nelems": 4096,
        "Out msg nelems": 4096,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Ranks": "[0, 1]",
    }
    events: list[Event] = []
    for step in range(STEPS):
        at, first = 10_000 + step * 1_000, step * 10
        events += [
            note(at, 950, f"ProfilerStep#{step}"),
            op(
                at + 5,
                60,
                **{
                    "External id": first + 1,
                    "Input Dims": [[8, 16], [16, 4]],
                    "Input type": ["float", "float"],
                    "Concrete Inputs": ["", ""],
                },
            ),
            python(at + 4, 100, "train.py(3): step"),
            call(at + 10, 5, first + 1),
            kernel(at + 30, 100, first + 1, bytes=64),
            call(at + 70, 5, first + 2, "cudaMemcpyAsync"),
            copy(at + 140, 20, first + 2, bytes=4096),
            span(
                "cuda_sync",
                "Stream Wait Event",
                at + 104,
                1,
                tid=20,
                pid=0,
                cuda_sync_kind="Stream Wait Event",
                stream=20,
                device=0,
                correlation=first + 4,
                wait_on_stream=-1,
                wait_on_cuda_event_record_corr_id=first + 3,
            ),
            call(at + 110, 5, first + 5),
            kernel(at + 200, 300, first + 5, NCCL, stream=20, Seq=step, **told),
            call(at + 600, 250, first + 7, "cudaStreamSynchronize"),
            {"ph": "C", "name": "SM Active (%)", "pid": "GPU 0 Counters", "ts": at, "args": {"": 62.5}},
            {
                "ph": "i",
                "name": "[memory]",
                "ts": at + 1,
                "pid": 1,
                "tid": 1,
                "s": "t",
                "args": {"Device Type": 1, "Device Id": 0, "Total Allocated": 100 + step, "Total Reserved": 200},
            },
        ]
    return events


def kineto(_: Path) -> dict[str, Any]:
    info = {
        "backend": "nccl",
        "rank": 0,
        "world_size": 2,
        "pg_config": [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": 2, "ranks": [0, 1]}],
    }
    named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "ts": 0, "args": {"name": "python"}}
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100"}],
        "distributedInfo": info,
        "baseTimeNanoseconds": 1_700_000_000_000_000_000,
        "traceEvents": [named, *job()],
    }


def ascend(_: Path) -> list[dict[str, Any]]:
    start = 1_700_000_000_000_000
    processes = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
        for pid, name in ((10, "Ascend Hardware"), (20, "HCCL"), (30, "Python"))
    ]
    rows = [
        (10, 2, "MatMul", 0, 10, {"Task Type": "AI_CORE"}),
        (10, 2, "MEMCPY_ASYNC", 26, 2, {"Task Type": "MEMCPY"}),
        (20, 5, "hcom_allReduce__437_3_1", 5, 20, {"count": 1024, "data_type": "FP32"}),
        (10, 2, "Add", 30, 10, {"Task Type": "AI_VECTOR_CORE"}),
    ]
    spans = [
        {"ph": "X", "pid": pid, "tid": tid, "name": name, "ts": f"{start + at}.000", "dur": dur, "args": args}
        for pid, tid, name, at, dur, args in rows
    ]
    host = {
        "ph": "X",
        "pid": 30,
        "tid": 1,
        "cat": "cpu_op",
        "name": "aten::add",
        "ts": f"{start + 27}.000",
        "dur": 2,
        "args": {},
    }
    arrow = {
        "ph": "s",
        "pid": 30,
        "tid": 1,
        "cat": "async_npu",
        "name": "async_npu",
        "id": (start + 30) * 1000,
        "ts": f"{start + 28}.000",
    }
    return [*processes, *spans, host, arrow]


def nsys(_: Path) -> dict[str, list[dict[str, Any]]]:
    export = Export()
    export.host("node", ["GPU-1"], 1_700_000_000_000_000_000)
    export.environment(RANK=0, WORLD_SIZE=2)
    us, process = 1_000, helpers_process(10)
    for step in range(STEPS):
        at, first = step * 1000 * us, step * 10
        export.range(at, at + 950 * us, f"step_{step}")
        export.call(at + 10 * us, at + 15 * us, first + 1)
        export.kernel(at + 30 * us, at + 130 * us, first + 1)
        export.call(at + 70 * us, at + 75 * us, first + 2, "cudaMemcpyAsync_v3020")
        export.copy(at + 140 * us, at + 160 * us, first + 2, srcKind=0, dstKind=2)
        export.call(at + 110 * us, at + 115 * us, first + 5)
        export.kernel(at + 200 * us, at + 500 * us, first + 5, NCCL, graphNodeId=(3 << 32) + 1)
        export.call(at + 600 * us, at + 850 * us, first + 7, "cudaStreamSynchronize_v3020")
        export.add(
            "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION",
            start=at + 601 * us,
            end=at + 840 * us,
            deviceId=0,
            streamId=7,
            correlationId=first + 7,
            globalPid=process,
            syncType=3,
            eventId=0,
        )
    export.add("PROCESSES", globalPid=process, pid=10, name="python")
    return export.tables


def recorder(folder: Path) -> dict[str, Any]:
    group = ("0", "default_pg", [0, 1])
    path = dump(folder, 0, [group], [entry(group, number, done=number < 2) for number in range(4)])
    found: dict[str, Any] = pickle.loads(path.read_bytes())  # its own, just written
    found["pg_status"] = {
        "0": {"last_enqueued_collective": 3, "last_started_collective": 2, "last_completed_collective": 1}
    }
    return found


def recorder_json(folder: Path) -> dict[str, Any]:
    return json.loads(json.dumps(recorder(folder)))  # type: ignore[no-any-return]


def snapshot(folder: Path) -> dict[str, Any]:
    path = allocator.snapshot(
        folder / "made.pickle",
        [allocator.segment(1 << 30, (1 << 20, "active_allocated"), (1 << 20, "inactive"))],
        allocator.events(
            ("segment_alloc", 1 << 30, 2 << 20),
            ("alloc", 1 << 30, 1 << 20),
            ("free", 1 << 30, 1 << 20),
            ("oom", 512, 1 << 30),
        ),
    )
    return pickle.loads(path.read_bytes())  # type: ignore[no-any-return]


def nccl_log(_: Path) -> list[str]:
    return [
        *nccl_logs.variables(NCCL_ALGO="Ring", NCCL_MIN_NCHANNELS="4"),
        *nccl_logs.communicator(2),
        *nccl_logs.chosen({1 << 10: "RING LL", 1 << 20: "RING SIMPLE"}),
        *nccl_logs.nccl_tests({1024: 20.0, 1 << 20: 60.0, 1 << 28: 3000.0}),
    ]


def inspector(_: Path) -> list[dict[str, Any]]:
    return [
        {
            "header": {"id": "0x7f", "rank": rank, "n_ranks": 2, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": 5,
                "hostname": "n0",
                "pid": 3,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_msg_size_bytes": 1 << (10 + number),
                "coll_exec_time_us": 30 + number,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.5,
                "coll_busbw_gbs": 1.5,
            },
        }
        for rank in range(2)
        for number in range(3)
    ]


def profiler(_: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    for rank in range(2):
        details = {
            "func": "AllReduce",
            "count": 64,
            "dtype": "ncclFloat32",
            "algo": "RING",
            "proto": "LL",
            "channels": 4,
        }
        events += [
            {"type": "ProfilerLifecycle", "func": "ProfilerInit", "commId": 9, "rank": rank, "details": {"nranks": 2}},
            {"type": "ncclProfileColl", "commId": 9, "rank": rank, "gpuUuid": f"g{rank}", "details": details},
            {
                "type": "KERNEL",
                "name": "_Z39ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                "duration": 2.5,
                "gpuUuid": f"g{rank}",
                "details": {},
            },
        ]
    return events


TOPOLOGY = b"""<system version="1"><cpu numaid="0" arch="x86_64"><pci busid="0000:10:00.0" class="0x060400"
 link_width="16" link_speed="16.0 GT/s PCIe"><pci busid="0000:11:00.0" class="0x030200" link_width="16">
 <gpu dev="0" sm="80" rank="0"><nvlink target="0000:12:00.0" count="12" tclass="0x030200"/></gpu></pci>
 <nic><net name="mlx5_0" dev="0" speed="200000" port="1"/></nic></pci></cpu></system>"""
MATRIX = b"""\tGPU0\tGPU1\tmlx5_0\tCPU Affinity
GPU0\t X \tNV12\tPIX\t0-31
GPU1\tNV12\t X \tSYS\t32-63
mlx5_0\tPIX\tSYS\t X

Legend:
  X    = Self
"""


def stages(_: Path) -> dict[str, list[dict[str, Any]]]:
    text = (
        "0 forward-compute 0-10 10-20\n0 backward-compute 40-60 60-80\n1 forward-compute 10-20 20-30\n"
        "1 backward-compute 30-40 40-60"
    )
    return {"rows": [row for step in range(2) for row in operations.rows(text, step=step)]}


def reduced(folder: Path) -> bytes:
    from gpuscope.cli import main

    (folder / "whole.json").write_text(json.dumps(kineto(folder)))
    with suppress(SystemExit), redirect_stderr(io.StringIO()):
        main(["reduce", str(folder / "whole.json"), "--out", str(folder / "parts")])
    return next((folder / "parts").glob("*.gsr")).read_bytes()


def _json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data))


def _json_gz(path: Path, data: Any) -> None:
    path.write_bytes(gzip.compress(json.dumps(data).encode(), 1))


def digest(_: Path) -> list[dict[str, Any]]:
    def step(number: int) -> dict[str, Any]:
        return {
            "step": number,
            "rank": 0,
            "first": False,
            "end_ns": (number + 1) * 10**8,
            "step_ns": 10**8,
            "exposed_communication_ns": 10**7,
            "data_wait_ns": 10**6,
            "ran_ns": 8 * 10**7,
            "core_wait_ns": 0,
            "phases": [["input", 10**6], ["forward", 4 * 10**7], ["backward", 59 * 10**6]],
            "waits": [[9 * 10**7, 10**7]],
            "pauses": [[10**6, 10**6]],
            "gpu": {"samples": 1, "sm_mhz": 1900, "power_mw": 600_000},
            "collectives": [[0, number, 8 * 10**7, 2 * 10**7]],
            "collectives_every": 1,
            "collectives_in_all": {"all_reduce 0": [1, 4096, 2 * 10**7, 10**7]},
        }

    header = {"gpuscope_digest": 2, "rank": 0, "world_size": 2, "host": "node", "pid": 7}
    group = {"group": "0", "description": "default_pg", "ranks": [0, 1]}
    kind = {"kind": 0, "op": "all_reduce", "group": "0", "bytes": 4096, "dtype": "float32"}
    return [header, group, kind, *map(step, range(STEPS))]


def _lines(path: Path, data: Any) -> None:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in data) + "\n")


def _pickle(path: Path, data: Any) -> None:
    path.write_bytes(pickle.dumps(data, protocol=2))


def _perfetto(folder: Path) -> bytes:
    return write_pftrace(folder / "made.pftrace", *job()).read_bytes()


SEEDS: tuple[Seed, ...] = (
    Seed("kineto", "rank0.json", kineto, _json),
    Seed("kineto gz", "rank0.json.gz", kineto, _json_gz),
    Seed("pftrace", "rank0.pftrace", _perfetto),
    Seed("ascend", "trace_view.json", ascend, _json),
    Seed("nsys SQLite", "rank0.sqlite", nsys, tabular="sqlite"),
    Seed("nsys parquetdir", "export_pqtdir", nsys, tabular="parquetdir"),
    Seed("nsys arrowdir", "export_arwdir", nsys, tabular="arrowdir"),
    Seed("operations", "stages.parquet", stages, tabular="parquet"),
    Seed("flight recorder", "nccl_trace_rank_0", recorder, _pickle),
    Seed("flight recorder JSON", "nccl_trace_rank_0.json", recorder_json, _json),
    Seed("allocator snapshot", "rank0.pickle", snapshot, _pickle),
    Seed("NCCL log", "nccl.log", nccl_log, _lines),
    Seed("NCCL inspector", "inspector.jsonl", inspector, _lines),
    Seed("NCCL profiler", "profiler.jsonl", profiler, _lines),
    Seed("digest", "rank0.digest", digest, _lines),
    Seed("NCCL topology", "topo.xml", lambda _: TOPOLOGY),
    Seed("nvidia-smi topo", "topo.txt", lambda _: MATRIX),
    Seed("reduced", "part.gsr", reduced),
)
