"""Small Kineto traces written by hand; times in µs, as the format has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def span(cat: str, name: str, ts: Any, dur: Any, tid: Any = 1, pid: Any = 1, **args: Any) -> Event:
    """A complete event of any category."""
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(
    ts: Any, dur: Any, correlation: int | None = None, name: str = "gemm", stream: int = 7, **args: Any
) -> Event:
    """A kernel on device 0."""
    told = {"device": 0, "stream": stream, **args}
    if correlation is not None:
        told["correlation"] = correlation
    return span("kernel", name, ts, dur, tid=stream, pid=0, **told)


def copy(ts: Any, dur: Any, correlation: int, name: str = "Memcpy HtoD (Pinned -> Device)", **args: Any) -> Event:
    """A copy on device 0."""
    told = {"device": 0, "stream": 7, "correlation": correlation, **args}
    return span("gpu_memcpy", name, ts, dur, tid=7, pid=0, **told)


def call(ts: Any, dur: Any, correlation: int, name: str = "cudaLaunchKernel", tid: int = 1) -> Event:
    """A runtime call."""
    return span("cuda_runtime", name, ts, dur, tid=tid, correlation=correlation)


def op(ts: Any, dur: Any, name: str = "aten::mm", tid: int = 1, **args: Any) -> Event:
    """An operator."""
    return span("cpu_op", name, ts, dur, tid=tid, **args)


def note(ts: Any, dur: Any, name: str, tid: int = 1) -> Event:
    """A user annotation."""
    return span("user_annotation", name, ts, dur, tid=tid)


def python(ts: Any, dur: Any, name: str, tid: int = 1) -> Event:
    """A Python function of a recorded stack."""
    return span("python_function", name, ts, dur, tid=tid)


def node(ts: Any, dur: Any, correlation: int, number: int, name: str = "gemm", stream: int = 7) -> Event:
    """A node of CUDA graph 3 that is a kernel, as the CUPTI back end of torch 2.15 numbers it."""
    return kernel(ts, dur, correlation, name, stream, **{"graph id": 3, "graph node id": number})


def helper(ts: Any, dur: Any, correlation: int, stream: int = 7, cat: str = "graph_host_node") -> Event:
    """A node of CUDA graph 3 that is no work on the device."""
    name = "HostNode: callback" if cat == "graph_host_node" else "EventRecord"
    return span(cat, name, ts, dur, tid=stream, pid=0, device=0, stream=stream, correlation=correlation)


def arrow(number: int, source: Event, target: Event) -> list[Event]:
    """A dependency between nodes of a graph: from the end of one to the start of the other."""
    tail = {"ph": "s", "pid": source["pid"], "tid": source["tid"], "ts": source["ts"] + source["dur"]}
    head = {"ph": "f", "pid": target["pid"], "tid": target["tid"], "ts": target["ts"], "bp": "e"}
    return [{**end, "id": (1 << 40) + number, "cat": "ac2g", "name": "ac2g"} for end in (tail, head)]


def write(path: Path, *events: Event, rank: int | None = 0, world_size: int = 1, **header: Any) -> Path:
    """A trace file of those events."""
    document: dict[str, Any] = {"schemaVersion": 1, **header}
    if rank is not None:
        document["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
    document["traceEvents"] = list(events)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
