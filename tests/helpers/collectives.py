"""Traces of collectives only, written by hand; times in µs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers.kineto import Event, kernel, write

KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)",
    "send": "ncclDevKernel_SendRecv(x)",
    "recv": "ncclDevKernel_SendRecv(x)",
}


def collective(ts: int, dur: int, nbytes: int, seq: int, ranks: int = 2, op: str = "allreduce", **told: Any) -> Event:
    """An NCCL kernel with the arguments that torch.profiler records."""
    arguments = {
        "Collective name": op, "In msg nelems": nbytes // 4, "Out msg nelems": nbytes // 4, "dtype": "Float",
        "Group size": ranks, "Process Group Name": "0", "Process Group Ranks": str(list(range(ranks))), "Seq": seq,
        **told,
    }  # fmt: skip
    return kernel(ts, dur, None, KERNELS[op], 13, **arguments)


def run_of(folder: Path, *ranks: Sequence[Event], gpu: str = "NVIDIA H100 80GB HBM3") -> Path:
    """A folder with one trace per rank, all on one host with a GPU of that model each."""
    for rank, events in enumerate(ranks):
        moved = [
            event | {"args": event["args"] | {"device": rank}} if "device" in event["args"] else event
            for event in events
        ]
        properties = [{"id": number, "name": gpu} for number in range(len(ranks))]
        write(folder / f"rank{rank}.json", kernel(0, 10, device=rank), *moved, rank=rank, world_size=len(ranks),
              deviceProperties=properties)  # fmt: skip
    return folder
