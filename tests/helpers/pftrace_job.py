"""A job as Kineto's events, and what differs between two readings of it."""

from __future__ import annotations

from typing import Any

from gpuscope.trace.trace import Trace
from helpers.kineto import Event, call, kernel, note, op, span


def rows(trace: Trace, table: str, column: str) -> list[Any]:
    values = trace.tables[table][column]
    return values.astype(object).where(values.notna(), None).tolist()


def differing(one: Trace, other: Trace) -> dict[tuple[str, str], list[tuple[Any, Any]]]:
    """Unequal values by table and column."""
    found = {}
    for table in one.tables:
        if table == "groups":
            continue
        for column in one.tables[table].columns:
            pairs = zip(rows(one, table, column), rows(other, table, column), strict=True)
            if unequal := [(left, right) for left, right in pairs if left != right]:
                found[table, column] = unequal
    return found


def counter(ts: int, name: str, value: float) -> Event:
    return {"ph": "C", "name": name, "pid": "GPU 0 Counters", "ts": ts, "args": {"": value}}


def collective(ts: int, dur: int, size: int, seq: int) -> Event:
    """The framework's range around a launch, as `ParamCommsUtils.hpp` fills it."""
    told = {
        "Collective name": "allreduce",
        "In msg nelems": size,
        "Out msg nelems": size,
        "dtype": "Float",
        "Group size": 2,
        "Process Group Name": "0",
        "Process Group Description": "default_pg",
        "Process Group Ranks": "[0, 1]",
        "Rank": 1,
        "Seq": seq,
    }
    return op(ts, dur, "record_param_comms", **told)


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


def job(steps: int = 3) -> list[Event]:
    """A job of rank 1: operators with shapes, launches, a copy, a graph, collectives, waits and counters."""
    events: list[Event] = []
    for step in range(steps):
        at, first = step * 1000, step * 10
        events += [
            note(at, 900, f"ProfilerStep#{step}"),
            op(
                at + 5,
                60,
                "aten::mm",
                **{
                    "External id": first + 1,
                    "Input Dims": [[8, 16], [16, 4]],
                    "Input type": ["float", "float"],
                    "Concrete Inputs": ["", ""],
                },
            ),
            op(at + 6, 20, "aten::empty", **{"External id": first + 2, "Input Dims": [], "Input type": []}),
            call(at + 10, 5, first + 1),
            kernel(at + 30, 100, first + 1),
            call(at + 20, 5, first + 2, "cudaMemcpyAsync"),
            span(
                "gpu_memcpy",
                "Memcpy",
                at + 140,
                20,
                tid=7,
                pid=0,
                device=0,
                stream=7,
                correlation=first + 2,
                bytes=4096,
            ),
            call(at + 100, 3, first + 3, "cudaEventRecord"),
            call(at + 104, 3, first + 4, "cudaStreamWaitEvent"),
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
            collective(at + 108, 30, 1 << 20, step + 1),
            call(at + 110, 5, first + 5),
            kernel(at + 200, 300, first + 5, NCCL, stream=20),
            call(at + 150, 9, first + 6, "cudaGraphLaunch"),
            kernel(at + 520, 40, first + 6, "node_a", **{"graph id": 3, "graph node id": 1}),
            kernel(at + 560, 40, first + 6, "node_b", **{"graph id": 3, "graph node id": 2}),
            call(at + 600, 250, first + 7, "cudaStreamSynchronize"),
            span(
                "cuda_sync",
                "Stream Sync",
                at + 601,
                240,
                tid=7,
                pid=0,
                cuda_sync_kind="Stream Sync",
                stream=7,
                device=0,
                correlation=first + 7,
            ),
            counter(at, "SM Active (%)", 62.327),
            counter(at + 500, "SM Active (%)", 80.5),
            counter(at, "Power (W)", 350.0),
        ]
    return [*events, span("overhead", "Lazy Function Loading", 12, 3, tid=0, pid=-1)]
