"""A synthetic training job of dp × tp × pp ranks, simulated: no machine ran it.

Each step every pipeline stage runs its layers forward and backward, with an all-reduce over the tensor-parallel
group per layer and a message per stage boundary; gradients are summed over the data-parallel group, and one number
over all ranks. A collective starts on a rank when it gets there and ends `transfer` after the last one's start.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

US, MS = 1_000, 1_000_000
EPOCH = 1_700_000_000 * 10**9
HOST_RANKS = 8
Grid = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Job:
    """What is simulated. The late rank computes `late_ns` longer before the first collective of each step."""

    dp: int = 4
    tp: int = 4
    pp: int = 4
    layers: int = 2
    steps: int = 4
    kernels: int = 1
    """Kernels between two collectives of a rank."""
    late_rank: int | None = None
    late_ns: int = 5 * MS
    seed: int = 0

    @property
    def ranks(self) -> int:
        return self.dp * self.tp * self.pp


@dataclass
class Recording:
    """Collectives over all ranks, in order; times have the shape (dp, pp, tp)."""

    op: list[str] = field(default_factory=list)
    phase: list[str] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    stages: list[slice] = field(default_factory=list)
    """Pipeline stages that take part."""
    free: list[Grid] = field(default_factory=list)
    """When each rank had ended what it communicated before."""
    start: list[Grid] = field(default_factory=list)
    end: list[Grid] = field(default_factory=list)


def simulate(job: Job) -> Recording:
    """Run the job, all ranks at once."""
    generator = np.random.default_rng(job.seed)
    now = np.full((job.dp, job.pp, job.tp), EPOCH, np.int64)
    made = Recording()

    def meet(op: str, phase: str, step: int, stages: slice, axes: tuple[int, ...], compute: int) -> None:
        part = now[:, stages, :]
        spent = (compute * (1 + 0.02 * generator.standard_normal(part.shape))).astype(np.int64)
        start = part + spent + extra[:, stages, :]
        extra[:, stages, :] = 0
        leaving = generator.integers(0, 3 * US, part.shape)  # the ranks leave a collective within 3 µs
        end = start.max(axis=axes, keepdims=True) + 50 * US + leaving
        for column, value in ((made.free, part), (made.start, start), (made.end, end)):
            column.append(value.copy())
        for words, word in ((made.op, op), (made.phase, phase)):
            words.append(word)
        made.step.append(step)
        made.stages.append(stages)
        now[:, stages, :] = end

    for step in range(job.steps):
        extra = np.zeros_like(now)
        if job.late_rank is not None:
            extra.reshape(-1)[job.late_rank] = job.late_ns
        for phase in ("forward", "backward"):
            order = range(job.pp) if phase == "forward" else range(job.pp - 1, -1, -1)
            for stage in order:
                for _ in range(job.layers):
                    meet("all_reduce", phase, step, slice(stage, stage + 1), (2,), 300 * US)
                coming = stage + 1 if phase == "forward" else stage - 1
                if 0 <= coming < job.pp:
                    low = min(stage, coming)
                    meet("forward" if coming > stage else "back", phase, step, slice(low, low + 2), (1,), 20 * US)
        meet("reduce_scatter", "backward", step, slice(None), (0,), 100 * US)
        meet("norm", "optimizer", step, slice(None), (0, 1, 2), 50 * US)
    return made


def trace_of(job: Job, made: Recording, rank: int) -> Trace:
    """The trace of one rank, as a source would have read it."""
    d, p, t = np.unravel_index(rank, (job.dp, job.pp, job.tp))
    builder = TraceBuilder()
    source = builder.source(Path(f"synthetic/rank{rank}"), "synthetic", "1", 0, {})
    code = builder.names.code
    builder.add(
        "ranks",
        1,
        {
            "rank": rank,
            "device": 0,
            "source": source,
            "world_size": job.ranks,
            "host": code(f"host{rank // HOST_RANKS}"),
            "backend": code("nccl"),
        },
    )
    own = [i for i, stages in enumerate(made.stages) if p in range(*stages.indices(job.pp))]
    at = [(d, p - (made.stages[i].start or 0), t) for i in own]
    free, start, end = (
        np.array([column[i][place] for i, place in zip(own, at, strict=True)], np.int64)
        for column in (made.free, made.start, made.end)
    )
    count, pieces = len(own), job.kernels
    edges = free[:, None] + (start - free)[:, None] * np.arange(pieces + 1) // pieces
    begin = np.concatenate((edges[:, :-1].ravel(), start))
    until = np.concatenate((edges[:, 1:].ravel(), end))
    thread = builder.thread(rank, 1, 1)
    builder.add(
        "host_events",
        len(begin),
        {
            "rank": rank,
            "thread": thread,
            "start": begin - 5 * US,
            "end": begin - 4 * US,
            "category": Category.RUNTIME,
            "name": code("cudaLaunchKernel"),
            "correlation": np.arange(len(begin)),
        },
    )
    kinds = np.repeat([Kind.COMPUTE, Kind.COMMUNICATION], [count * pieces, count])
    names = np.repeat([code("gemm"), code("ncclDevKernel")], [count * pieces, count])
    builder.add(
        "device_events",
        len(begin),
        {
            "rank": rank,
            "device": 0,
            "stream": np.where(kinds == Kind.COMPUTE, 7, 13),
            "start": begin,
            "end": until,
            "kind": kinds,
            "name": names,
            "correlation": np.arange(len(begin)),
        },
    )
    _ranges(builder, made, own, rank, thread, free, start)
    _collectives(builder, job, made, own, rank, (int(d), int(p), int(t)), start, end, count * pieces)
    return builder.finish()


def _ranges(
    builder: TraceBuilder, made: Recording, own: list[int], rank: int, thread: int, free: Grid, start: Grid
) -> None:
    """A range per step and one per phase and step, from its first launch to its last."""
    spans: dict[str, tuple[int, int]] = {}
    for place, i in enumerate(own):
        for name in (f"ProfilerStep#{made.step[i]}", f"{made.phase[i]} {made.step[i]}"):
            low = min(spans.get(name, (int(free[place]),))[0], int(free[place]))
            spans[name] = (low - 6 * US if name not in spans else low, int(start[place]) - 4 * US)
    for name, (low, high) in spans.items():
        label = name if name.startswith("Profiler") else name.split()[0]
        builder.add(
            "host_events",
            1,
            {
                "rank": rank,
                "thread": thread,
                "start": low,
                "end": high,
                "category": Category.ANNOTATION,
                "name": builder.names.code(label),
            },
        )


def _collectives(
    builder: TraceBuilder,
    job: Job,
    made: Recording,
    own: list[int],
    rank: int,
    place: tuple[int, int, int],
    start: Grid,
    end: Grid,
    first: int,
) -> None:
    d, p, t = place
    grid = np.arange(job.ranks).reshape(job.dp, job.pp, job.tp)
    groups = {
        "all_reduce": ("tp", grid[d, p]),
        "reduce_scatter": ("dp", grid[:, p, t]),
        "norm": ("world", grid.ravel()),
        "forward": ("pp", grid[d, :, t]),
        "back": ("pp", grid[d, :, t]),
    }
    code = builder.names.code
    lists = {op: code(",".join(map(str, members.tolist()))) for op, (_, members) in groups.items()}
    seq = {"tp": 0, "dp": 0, "world": 0, "pp": 0}
    columns: dict[str, list[Any]] = {
        name: [] for name in ("op", "group", "group_size", "group_ranks", "seq", "bytes", "peer")
    }
    for i in own:
        name, members = groups[made.op[i]]
        seq[name] += name != "pp"
        sends = (made.stages[i].start == p) == (made.op[i] == "forward")
        op = ("send" if sends else "recv") if name == "pp" else "all_reduce" if name != "dp" else "reduce_scatter"
        other = p + 1 if made.stages[i].start == p else p - 1
        values = (
            code(op),
            code(name),
            len(members),
            lists[made.op[i]],
            seq[name] if name != "pp" else NA,
            {"tp": 1 << 20, "dp": 1 << 26, "world": 4, "pp": 1 << 18}[name],
            int(grid[d, other, t]) if name == "pp" else NA,
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    builder.add(
        "collectives",
        len(own),
        {"rank": rank, "event": first + np.arange(len(own)), "start": start, "end": end, **columns},
    )
