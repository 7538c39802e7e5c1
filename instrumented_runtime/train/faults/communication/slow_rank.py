"""A rank that computes longer than its peers, which then wait for it in the next collective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault, require, require_rank

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(frozen=True)
class SlowRank(StepFault):
    """`rank` spends `ms` more per step in matrix products before its forward. With `rotate` = n the
    next rank is the slow one after every n steps."""

    name = "slow_rank"
    what = "matrix products before the forward"
    unit = "bursts"
    bound_by = "communication"
    cause = "straggler"
    ms: float = 30.0
    rank: int = 1
    rotate: int = 0

    def ranks(self, config: TrainConfig, world_size: int) -> list[int] | None:  # noqa: ARG002
        return None if self.rotate else [self.rank]

    def ns_per_step(self) -> int:
        return round(self.ms * 1e6)

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require_rank(self.rank, world_size, self.name)
        require(self.rotate >= 0, self.name, "rotate", "must not be negative")
        return config

    def slow_rank(self, step: int, world_size: int) -> int:
        """Which rank is the slow one in `step`."""
        turns = (step - self.first) // self.rotate if self.rotate else 0
        return (self.rank + turns) % world_size

    def on_model(self, context: StepContext) -> None:
        from gpuscope.instrumented_runtime.train.faults.burn import Burner

        context.state[self.name] = Burner(context.device)

    def before_forward(self, context: StepContext) -> None:
        if self.due(context.step) and context.rank == self.slow_rank(context.step, context.world_size):
            ns = context.state[self.name].run(self.ns_per_step() // context.config.train.accumulate)
            context.ledger.add(self.name, context.step, ns=ns)
