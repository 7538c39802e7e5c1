"""A run of two ranks for the dashboard's tests: a synthetic Kineto trace whose kernel names hold HTML."""

from __future__ import annotations

from pathlib import Path

from helpers.kineto import call, kernel, note, op, python, write

SCRIPT = "<script>window.broken=1</script>"
IMAGE = "<img src=x onerror='window.broken=1'><b>bold</b>"


REDUCE = "ncclDevKernel_AllReduce_Sum_f32"


def write_pair(folder: Path) -> Path:
    """Two ranks, two steps; a matmul launched by an operator in a Python function, and an all-reduce.

    Rank 1 computes 100 µs longer than rank 0, which waits in the all-reduce. Names hold HTML.
    """
    for rank in (0, 1):
        events = []
        for step in (0, 1):
            at = 1000 * step + 1000
            late = 100 * rank
            nccl = {
                "Collective name": "allreduce",
                "Process Group Name": "0",
                "Group size": 2,
                "dtype": "Float",
                "In msg nelems": 1024,
                "Out msg nelems": 1024,
                "Seq": step,
                "Process Group Ranks": "[0, 1]",
            }
            events += [
                note(at, 900, f"ProfilerStep#{step}"),
                python(at + 5, 300, "train.py(7): step"),
                op(at + 10, 60, "aten::mm"),
                call(at + 20, 10, 10 * step + 1),
                kernel(at + 50, 300 + late, 10 * step + 1, SCRIPT),
                op(at + 100, 60, "c10d::allreduce_"),
                call(at + 110, 10, 10 * step + 2),
                kernel(at + 400 + late, 200 - late, 10 * step + 2, REDUCE, stream=20, **nccl),
                call(at + 700, 10, 10 * step + 3),
                kernel(at + 720, 50, 10 * step + 3, IMAGE),
            ]
        write(folder / f"rank{rank}.json", *events, rank=rank, world_size=2)
    return folder
