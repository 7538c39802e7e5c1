"""Traces of collectives only, written by hand; times in µs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.kineto import Event, kernel, write

KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "alltoall": "ncclDevKernel_SendRecv(x)",
    "send": "ncclDevKernel_SendRecv(x)",
    "recv": "ncclDevKernel_SendRecv(x)",
}


def collective(
    ts: int,
    dur: int,
    nbytes: int,
    seq: int,
    ranks: int = 2,
    op: str = "allreduce",
    launch: int | None = None,
    **told: Any,
) -> Event:
    """An NCCL kernel with the arguments that torch.profiler records; `launch` is its correlation id."""
    arguments = {
        "Collective name": op,
        "In msg nelems": nbytes // 4,
        "Out msg nelems": nbytes // 4,
        "dtype": "Float",
        "Group size": ranks,
        "Process Group Name": "0",
        "Process Group Ranks": str(list(range(ranks))),
        "Seq": seq,
        **told,
    }
    return kernel(ts, dur, launch, KERNELS[op], 13, **arguments)


def run_of(folder: Path, *ranks: Sequence[Event], gpu: str = "NVIDIA H100 80GB HBM3", compute: bool = True) -> Path:
    """A folder with one trace per rank, all on one host with a GPU of that model each; with `compute` each begins
    with a kernel of 10 µs."""
    for rank, events in enumerate(ranks):
        moved = [
            event | {"args": event["args"] | {"device": rank}} if "device" in event["args"] else event
            for event in events
        ]
        properties = [{"id": number, "name": gpu} for number in range(len(ranks))]
        first = [kernel(0, 10, device=rank)] if compute else []
        write(
            folder / f"rank{rank}.json", *first, *moved, rank=rank, world_size=len(ranks), deviceProperties=properties
        )
    return folder
