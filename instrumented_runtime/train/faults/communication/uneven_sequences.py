"""Ranks whose sequences differ in length: those with short ones wait for those with long ones."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault, require
from gpuscope.instrumented_runtime.train.settings.sections import MODEL

if TYPE_CHECKING:
    from torch import Tensor

    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(frozen=True)
class UnevenSequences(StepFault):
    """`rank` keeps its sequences whole, the others' are cut to `short` of their length. With `rank` = -1
    each rank draws a length between `short` and whole for every step (from `seed`)."""

    name = "uneven_sequences"
    what = "sequence length of the batches, and with it forward and backward"
    unit = "tokens per sequence"
    bound_by = "communication"
    cause = "straggler"
    rank: int = 0
    short: float = 0.25
    seed: int = 0

    def ranks(self, config: TrainConfig, world_size: int) -> list[int] | None:  # noqa: ARG002
        return None if self.rank < 0 else [self.rank]

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:
        require(0 < self.short < 1, self.name, "short", f"must lie between 0 and 1, not {self.short}")
        require(self.rank < world_size, self.name, "rank", f"{self.rank} is not below the {world_size} processes")
        require(
            all(config.parallel.size(one.axis.name) == 1 for one in MODEL),
            self.name,
            "rank",
            "needs ranks that each run their own sequences",
            "--parallel ddp or fsdp",
        )
        return config

    def length(self, step: int, rank: int, whole: int) -> int:
        """Tokens per sequence of `rank` in `step`, where a whole sequence has `whole`."""
        if self.rank >= 0:
            share = 1.0 if rank == self.rank else self.short
        else:
            # Its own generator per step and rank: the same wherever and in whatever order it is called.
            share = random.Random(f"{self.seed} {step} {rank}").uniform(self.short, 1)
        return max(1, round(whole * share))

    def on_batch(self, context: StepContext, batch: Tensor) -> Tensor:
        if not self.due(context.step):
            return batch
        length = self.length(context.step, context.rank, batch.shape[1] - 1)
        if context.micro_step == 0:
            context.ledger.add(self.name, context.step, count=length)
        return batch[:, : length + 1]
