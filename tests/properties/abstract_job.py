"""A job as nothing but its spans, and the same job in every format that can hold it. Times are ns; all synthetic."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from helpers.kineto import Event, span
from helpers.nsys import Export, process
from helpers.pftrace import BASE_NS, write_pftrace
from hypothesis import strategies as st

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
LAUNCHES = {"compute": "cudaLaunchKernel", "communication": "cudaLaunchKernel", "copy": "cudaMemcpyAsync"}
FORMATS = ("Kineto JSON", ".pftrace", "SQLite", "parquetdir", "arrowdir")
PID = 100


@dataclass(frozen=True)
class Work:
    """A launch and what it launched."""

    kind: str
    call: tuple[int, int]
    device: tuple[int, int]
    stream: int
    name: str


@dataclass(frozen=True)
class Rank:
    """What one rank did."""

    rank: int
    work: tuple[Work, ...]
    blocked: tuple[tuple[int, int], ...]
    """Calls of cudaDeviceSynchronize."""
    steps: tuple[tuple[int, int], ...]

    def moved(self, scale: int = 1, shift: int = 0) -> Rank:
        """The same at other times."""

        def at(span: tuple[int, int]) -> tuple[int, int]:
            return span[0] * scale + shift, span[1] * scale + shift

        work = tuple(replace(one, call=at(one.call), device=at(one.device)) for one in self.work)
        return replace(self, work=work, blocked=tuple(map(at, self.blocked)), steps=tuple(map(at, self.steps)))


@st.composite
def ranks(draw: st.DrawFn, number: int = 0) -> Rank:
    """A rank of one to four steps: launches one after the other, operations in order on each of two streams."""
    host, free = 1_000, {7: 0, 20: 0}
    work: list[Work] = []
    blocked: list[tuple[int, int]] = []
    steps: list[tuple[int, int]] = []
    for _ in range(draw(st.integers(1, 4))):
        begun = host
        for _ in range(draw(st.integers(1, 5))):
            kind = draw(st.sampled_from(["compute", "compute", "communication", "copy"]))
            host += draw(st.integers(100, 60_000))
            call = (host, host + draw(st.integers(1_000, 8_000)))
            host = call[1]
            stream = 20 if kind == "communication" else 7
            start = max(call[1], free[stream]) + draw(st.integers(0, 5_000))
            end = start + draw(st.integers(1_000, 200_000))
            free[stream] = end
            name = NCCL if kind == "communication" else f"gemm_{draw(st.integers(0, 2))}"
            work.append(Work(kind, call, (start, end), stream, name))
        if draw(st.booleans()):
            ended = max(host + 500, *free.values())
            blocked.append((host + 200, ended))
            host = ended
        host += draw(st.integers(10, 3_000))
        steps.append((begun, host))
        host += draw(st.integers(1, 1_000))
    return Rank(number, tuple(work), tuple(blocked), tuple(steps))


def kineto_events(rank: Rank) -> list[Event]:
    """As Kineto writes it, in µs."""
    events = [_span("user_annotation", f"ProfilerStep#{n}", one) for n, one in enumerate(rank.steps)]
    for correlation, one in enumerate(rank.work, 1):
        told: dict[str, Any] = {"device": 0, "stream": one.stream, "correlation": correlation}
        events.append(_span("cuda_runtime", LAUNCHES[one.kind], one.call, correlation=correlation))
        if one.kind == "copy":
            events.append(_span("gpu_memcpy", "Memcpy", one.device, one.stream, 0, bytes=64, **told))
        else:
            events.append(_span("kernel", one.name, one.device, one.stream, 0, **told))
    for number, one in enumerate(rank.blocked):
        events.append(_span("cuda_runtime", "cudaDeviceSynchronize", one, correlation=1_000 + number))
    return events


def _span(category: str, name: str, at: tuple[int, int], tid: int = PID, pid: int = PID, **args: Any) -> Event:
    return span(category, name, at[0] / 1_000, (at[1] - at[0]) / 1_000, tid=tid, pid=pid, **args)


def write_kineto(path: Path, rank: Rank, events: list[Event] | None = None, world: int = 1) -> Path:
    """One rank's file; `events` in another order than they were made."""
    document = {
        "schemaVersion": 1,
        "baseTimeNanoseconds": BASE_NS,
        "deviceProperties": [{"id": 0, "name": "GPU"}],
        "distributedInfo": {"rank": rank.rank, "world_size": world, "backend": "nccl"},
        "traceEvents": kineto_events(rank) if events is None else events,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def write_nsys(folder: Path, job: list[Rank], backend: str, name: str = "export") -> Path:
    """All ranks in one export."""
    export = Export()
    export.host("node", [f"GPU-{rank.rank}" for rank in job], BASE_NS)
    export.environment(WORLD_SIZE=len(job), **({"RANK": job[0].rank} if len(job) == 1 else {}))
    for rank in job:
        pid = PID + rank.rank
        for number, (start, end) in enumerate(rank.steps):
            export.range(start, end, f"ProfilerStep#{number}", pid=pid)
        for correlation, one in enumerate(rank.work, 1):
            export.call(*one.call, correlation, LAUNCHES[one.kind], pid=pid)
            if one.kind == "copy":
                export.copy(*one.device, correlation, kind=0, pid=pid)
            else:
                export.kernel(*one.device, correlation, one.name, pid=pid)
                export.tables["CUPTI_ACTIVITY_KIND_KERNEL"][-1]["streamId"] = one.stream
        for number, (start, end) in enumerate(rank.blocked):
            export.call(start, end, 1_000 + number, "cudaDeviceSynchronize", pid=pid)
        export.add("PROCESSES", globalPid=process(pid), pid=pid, name="python")
    return export.write(folder, backend, name)


def written(folder: Path, rank: Rank, fmt: str) -> Path:
    """One rank in one format; the file's name tells the rank where the format does not."""
    if fmt == "Kineto JSON":
        return write_kineto(folder / f"rank{rank.rank}.json", rank)
    if fmt == ".pftrace":
        return write_pftrace(folder / f"rank{rank.rank}.pftrace", *kineto_events(rank))
    return write_nsys(folder, [rank], fmt)
