"""ZeRO-2: gradients and optimizer state are sharded, parameters only outside of forward and backward."""

from __future__ import annotations

from gpuscope.instrumented_runtime.train.settings.parallelism import DataParallelism, shards

PARALLELISM = DataParallelism(
    place=30,
    names=("zero2",),
    kind="zero2",
    about="FSDP2 with parameters unsharded between forward and backward",
    file="fsdp",
    split=shards,
    shards_parameters=True,
)
