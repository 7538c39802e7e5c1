"""Synthetic traces of any size for the dashboard: not recorded, only shaped like a training run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.table import Array
from gpuscope.trace.schema import Category, Kind
from gpuscope.trace.trace import Trace

RANKS = 2
PER_KERNEL = 2.5
"""Events per kernel: itself, its launch, a quarter of an operator and of a nested one."""
KERNELS_PER_STEP = 2_000


def synthetic(events: int, seed: int = 0) -> Trace:
    """About `events` events on two ranks: two streams each, launches, nested operators, steps."""
    random = np.random.default_rng(seed)
    builder = TraceBuilder()
    kernels = max(int(events / RANKS / PER_KERNEL), 8) // 8 * 8
    for rank in range(RANKS):
        source = builder.source(Path(f"synthetic{rank}"), "synthetic", "", events // RANKS, {})
        builder.add("ranks", 1, {"rank": rank, "device": 0, "source": source, "world_size": RANKS})
        _rank(builder, rank, kernels, random)
    return builder.finish()


def _rank(builder: TraceBuilder, rank: int, kernels: int, random: np.random.Generator) -> None:
    length = np.clip(np.exp(random.normal(9, 1.2, kernels)), 500, 5_000_000).astype(np.int64)  # median 8 µs
    start = np.cumsum(length + random.integers(100, 4_000, kernels)) - length
    names = np.array([builder.names.code(f"kernel_{i}") for i in range(60)], np.int32)
    communicating = random.random(kernels) < 0.02
    builder.add("device_events", kernels, {
        "rank": rank, "device": 0, "stream": np.where(communicating, 20, 7), "start": start, "end": start + length,
        "kind": np.where(communicating, Kind.COMMUNICATION, Kind.COMPUTE),
        "name": names[random.integers(0, len(names), kernels)], "correlation": np.arange(kernels),
    })  # fmt: skip
    called = np.maximum(start - 6_000, 0)
    called = np.maximum.accumulate(called)
    room = np.diff(called, append=called[-1] + 10_000)
    _host(builder, rank, called, called + np.minimum(room, 3_000) * 9 // 10, Category.RUNTIME,
          builder.names.code("cudaLaunchKernel"), np.arange(kernels))  # fmt: skip
    outer = called[::4]
    until = np.append(outer[1:], called[-1] + 10_000)
    _host(builder, rank, outer, until - 20, Category.OP, builder.names.code("aten::linear"))
    _host(builder, rank, outer, until - 40, Category.OP, builder.names.code("aten::addmm"))
    steps = called[::KERNELS_PER_STEP]
    ends = np.append(steps[1:], called[-1] + 10_000)
    marks = np.array([builder.names.code(f"ProfilerStep#{i}") for i in range(len(steps))], np.int32)
    _host(builder, rank, steps, ends, Category.ANNOTATION, marks)


def _host(
    builder: TraceBuilder,
    rank: int,
    start: Array,
    end: Array,
    category: Category,
    name: object,
    ids: Array | None = None,
) -> None:
    values = {
        "rank": rank, "thread": builder.thread(rank, 100 + rank, 100 + rank), "start": start,
        "end": np.maximum(end, start), "category": category, "name": name,
    }  # fmt: skip
    builder.add("host_events", len(start), values if ids is None else {**values, "correlation": ids})
