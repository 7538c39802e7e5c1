"""FSDP2, which is ZeRO-3: parameters are sharded too, and gathered block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.instrumented_runtime.train.settings.option import at_least, check, option
from gpuscope.instrumented_runtime.train.settings.parallelism import SHARD, DataParallelism, Need, Plan, shards


@dataclass(frozen=True, slots=True)
class FsdpConfig:
    """FSDP2's knobs, for zero2, zero3 (fsdp) and hsdp."""

    reshard_after_forward: bool | int | None = option(
        None, "none = FSDP2's default (zero2, pp: false); an integer = a smaller reshard group"
    )
    mixed_precision: Literal["none", "bf16", "fp16"] = option("none", "dtype of parameters in compute")
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = option("fp32", "dtype of the gradients' reduction")
    prefetch: int = option(0, "blocks prefetched ahead, forward and backward; 0 = FSDP2's own")
    cpu_offload: bool = option(False, "keep the shards in host memory")

    def __post_init__(self) -> None:
        at_least("fsdp", self, 0, "prefetch")


def _check(plan: Plan) -> None:
    reshard, ranks = plan.config[FsdpConfig].reshard_after_forward, plan.degrees[SHARD]
    if isinstance(reshard, int) and not isinstance(reshard, bool):
        check(
            reshard > 0 and ranks % reshard == 0,
            "fsdp.reshard_after_forward",
            f"{reshard} does not divide the {ranks} ranks of a shard group",
        )


PARALLELISM = DataParallelism(
    place=40,
    names=("fsdp", "zero3"),
    kind="zero3",
    about="FSDP2; `fsdp.*`: resharding, mixed precision, prefetch, CPU offload",
    file="fsdp",
    section="fsdp",
    options=FsdpConfig,
    needs=(Need(("fsdp",), lambda plan: plan.data.shards_parameters, "--parallel zero2, fsdp or hsdp"),),
    check=_check,
    split=shards,
    shards_parameters=True,
)
