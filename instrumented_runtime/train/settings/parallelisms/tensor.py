"""Tensor parallelism: each rank holds a part of every matrix."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.instrumented_runtime.train.settings.option import check, option
from gpuscope.instrumented_runtime.train.settings.parallelism import Axis, ModelParallelism, Need, Plan

TP = Axis("tp", 60)


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """Tensor parallelism's options."""

    sequence_parallel: bool = option(True, "shard norms and residuals over the sequence")
    loss_parallel: bool = option(True, "keep the logits sharded over the vocabulary in the loss")


def _check(plan: Plan) -> None:
    if plan.degrees[TP] == 1:
        return
    check(
        plan.data.shards_parameters or plan.degrees.gradient_ranks == 1,
        "parallel.data",
        f"{plan.data.kind!r} takes no tensor-parallel parameters, which cp or dp beside tp would need",
        "use fsdp with tp",
    )
    check(
        plan.config.model.experts == 0,
        "parallel.tp",
        "cuts no mixture-of-experts blocks",
        "--parallel ep for these, or model.experts=0",
    )


PARALLELISM = ModelParallelism(
    place=60,
    names=("tp",),
    axis=TP,
    size="tensor-parallel ranks",
    about="column- and row-sharded layers, with sequence and loss parallelism (`tensor.*`)",
    file="tensor_parallel",
    section="tensor",
    options=TensorConfig,
    needs=(Need(("tensor",), lambda plan: plan.degrees[TP] > 1, "--parallel tp"),),
    divides=("model.heads", "model.vocabulary", "data.sequence"),
    check=_check,
)
