"""Expert parallelism: each rank holds some of the experts, and tokens are sent to theirs."""

from __future__ import annotations

from gpuscope.instrumented_runtime.train.settings.option import check
from gpuscope.instrumented_runtime.train.settings.parallelism import Axis, ModelParallelism, Plan
from gpuscope.instrumented_runtime.train.settings.parallelisms.pipeline import PP
from gpuscope.instrumented_runtime.train.settings.parallelisms.tensor import TP

EP = Axis("ep", 50, own_sequences=True, averages_gradients=True)


def _check(plan: Plan) -> None:
    if plan.degrees[EP] == 1:
        return
    check(plan.config.model.experts > 0, "model.experts", "expert parallelism needs experts", "--preset tiny-moe")
    check(plan.data.kind != "zero1", "parallel.data", "zero1 shards no expert-parallel optimizer", "use ddp")


PARALLELISM = ModelParallelism(
    place=90,
    names=("ep",),
    axis=EP,
    size="expert-parallel ranks",
    about="experts over ranks, uneven all-to-all; needs `--preset tiny-moe` or `model.experts`",
    file="expert_parallel",
    divides=("model.experts",),
    not_with=(TP, PP),
    check=_check,
    waits=lambda _: "in trainer",
)
