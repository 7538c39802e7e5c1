"""ZeRO-1: DDP whose optimizer state is sharded over the ranks."""

from __future__ import annotations

from gpuscope.instrumented_runtime.train.settings.parallelism import DataParallelism

PARALLELISM = DataParallelism(
    place=20,
    names=("zero1",),
    kind="zero1",
    about="DDP with ZeroRedundancyOptimizer",
    file="zero1",
)
