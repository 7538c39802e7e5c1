"""All layouts that a model and a cluster allow, and the best of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gpuscope.analyzers.planning.cluster import Cluster
from gpuscope.analyzers.planning.estimate import USABLE, step_seconds
from gpuscope.analyzers.planning.layout import Layout, memory
from gpuscope.analyzers.planning.transformer import Model

MICRO_BATCHES = (1, 2, 4, 8)
LONG_SEQUENCE = 16384
"""From this length on context parallelism is considered: below it a sequence fits a GPU beside tensor parallelism
(Llama 3, arXiv:2407.21783, section 3.3.2, divides sequences of 131,072 and none of 8,192)."""


@dataclass(frozen=True)
class Scored:
    """A layout with what it takes."""

    layout: Layout
    memory: dict[str, float]
    seconds: float
    fits: bool

    @property
    def complexity(self) -> int:
        """Kinds of parallelism besides plain data parallelism."""
        own = self.layout
        return sum(size > 1 for size in (own.tensor, own.pipeline, own.context, own.expert)) + own.zero + own.recompute


def layouts(model: Model, cluster: Cluster, batch: int) -> Iterator[Layout]:
    """Every layout whose sizes divide what they must."""
    for tensor in _divisors(cluster.gpus_per_host):
        if model.heads % tensor or (model.kv_heads or model.heads) % tensor:
            continue
        for pipeline in _divisors(cluster.gpus // tensor):
            if model.layers % pipeline:
                continue
            yield from _spread(model, cluster, batch, tensor, pipeline)


def _spread(model: Model, cluster: Cluster, batch: int, tensor: int, pipeline: int) -> Iterator[Layout]:
    left = cluster.gpus // (tensor * pipeline)
    for context in _divisors(left) if model.sequence >= LONG_SEQUENCE else (1,):
        data = left // context
        experts = [size for size in _divisors(data) if model.experts % size == 0] if model.experts else [1]
        for micro in MICRO_BATCHES:
            if batch % (data * micro):
                continue
            for expert in experts:
                # Gradients that are divided, or gathered weights, would cross the pipeline once per micro-batch.
                for zero in (0, 1) if pipeline > 1 else (0, 1, 2, 3):
                    if zero and data * context == 1:
                        continue
                    for recompute in (False, True):
                        yield Layout(data, tensor, pipeline, context, expert, zero, micro, recompute)


def scored(model: Model, cluster: Cluster, batch: int) -> list[Scored]:
    """Every layout, the quickest first; of equals the simplest, then the one that needs least memory."""
    rows = []
    for layout in layouts(model, cluster, batch):
        needs = memory(model, layout, batch)
        fits = sum(needs.values()) <= USABLE * cluster.memory
        rows.append(Scored(layout, needs, step_seconds(model, cluster, layout, batch), fits))
    return sorted(rows, key=lambda row: (row.seconds, row.complexity, sum(row.memory.values())))


def best_of_each(rows: list[Scored]) -> list[Scored]:
    """Of those that fit, the first of each combination of sizes."""
    seen: dict[tuple[int, ...], Scored] = {}
    for row in rows:
        own = row.layout
        if row.fits:
            seen.setdefault((own.data, own.tensor, own.pipeline, own.context, own.expert), row)
    return list(seen.values())


def _divisors(number: int) -> tuple[int, ...]:
    return tuple(size for size in range(1, number + 1) if number % size == 0)
