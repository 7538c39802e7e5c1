"""Context parallelism: each rank holds a part of every sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.instrumented_runtime.train.settings.option import check, option
from gpuscope.instrumented_runtime.train.settings.parallelism import Axis, ModelParallelism, Need, Plan
from gpuscope.instrumented_runtime.train.settings.parallelisms.tensor import TP

CP = Axis("cp", 40, averages_gradients=True)


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Context parallelism's method."""

    method: Literal["ring", "ulysses"] = option("ring", "ring attention or all-to-all over heads")
    rotation: Literal["allgather", "alltoall"] = option("alltoall", "how the ring moves keys and values")
    balance: bool = option(True, "give each rank a head and a tail chunk, so causal work is even (ring)")

    @property
    def is_balanced(self) -> bool:
        """Whether each rank holds a head and a tail chunk; only the ring has uneven work to balance."""
        return self.balance and self.method == "ring"


def _check(plan: Plan) -> None:
    config, ranks = plan.config, plan.degrees[CP]
    context, heads = config[ContextConfig], config.model.heads // plan.degrees[TP]
    check(
        context.method != "ulysses" or heads % ranks == 0,
        "model.heads",
        f"{heads} per rank is not a multiple of parallel.cp={ranks}",
    )
    check(
        ranks == 1 or not context.is_balanced or config.data.sequence % (2 * ranks) == 0,
        "data.sequence",
        f"{config.data.sequence} does not cut into 2 × parallel.cp={ranks} chunks",
        "--set context.balance=false",
    )


PARALLELISM = ModelParallelism(
    place=80,
    names=("cp",),
    axis=CP,
    size="context-parallel ranks",
    about="ring attention, or Ulysses' all-to-all (`context.*`)",
    file="context_parallel",
    section="context",
    options=ContextConfig,
    needs=(
        Need(("context",), lambda plan: plan.degrees[CP] > 1, "--parallel cp"),
        Need(
            ("context.rotation", "context.balance"),
            lambda plan: plan.config[ContextConfig].method == "ring",
            "context.method=ring",
        ),
    ),
    divides=("data.sequence",),
    check=_check,
    waits=lambda config: "in torch" if config[ContextConfig].method == "ring" else "in trainer",
)
