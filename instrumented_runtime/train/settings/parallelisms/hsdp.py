"""HSDP: FSDP2 in groups of ranks, and replicas of these groups."""

from __future__ import annotations

from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.option import check
from gpuscope.instrumented_runtime.train.settings.parallelism import DataParallelism, Need


def _split(config: TrainConfig, ranks: int) -> tuple[int, int]:
    shard = config.parallel.shard
    check(ranks % shard == 0, "parallel.shard", f"{shard} does not divide the {ranks} data-parallel ranks")
    check(
        1 < shard < ranks,
        "parallel.shard",
        f"{shard} of {ranks} data-parallel ranks leave hsdp nothing to {'replicate' if shard > 1 else 'shard'}",
        "fsdp, ddp, or more processes",
    )
    return ranks // shard, shard


PARALLELISM = DataParallelism(
    place=50,
    names=("hsdp",),
    kind="hsdp",
    about="FSDP2 in groups of `parallel.shard` ranks, replicated over the groups",
    file="fsdp",
    needs=(Need(("parallel.shard",), lambda plan: plan.data.kind == "hsdp", "--parallel hsdp"),),
    split=_split,
    shards_parameters=True,
)
