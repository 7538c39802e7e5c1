"""A pipeline fed with so few micro-batches that filling and draining it dominates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, require
from gpuscope.instrumented_runtime.train.settings.parallelisms.pipeline import PP, PipelineConfig

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(frozen=True)
class FewMicroBatches(Fault):
    """`pipeline.micro_batches` = `count`; 0 = as few as the schedule runs with (GPipe 1, others one per
    stage)."""

    name = "few_micro_batches"
    what = "the pipeline's filling and draining"
    unit = "micro-batches"
    bound_by = "communication"
    cause = "pipeline_bubble"
    count: int = 0

    def truth(self, config: TrainConfig, world_size: int) -> dict[str, Any]:
        pp, m = config.parallel.size(PP.name), config[PipelineConfig].micro_batches
        # Narayanan et al. 2021, section 2.2.1: (p-1)/m of the ideal time, here as a share of the whole.
        bubble = (pp - 1) / (m + pp - 1)
        one_stage = config[PipelineConfig].schedule in ("gpipe", "1f1b")
        return {**super().truth(config, world_size), "ideal_bubble_frac": bubble if one_stage else None}

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:  # noqa: ARG002
        pp = config.parallel.size(PP.name)
        require(pp > 1, self.name, "count", "needs a pipeline", "--parallel pp")
        least = 1 if config[PipelineConfig].schedule == "gpipe" else pp
        require(self.count == 0 or self.count >= least, self.name, "count", f"must be at least {least}")
        return config.replace("pipeline", micro_batches=self.count or least)

    def on_step_end(self, context: StepContext) -> None:
        context.ledger.add(
            self.name,
            context.step,
            count=context.config[PipelineConfig].micro_batches * context.config.train.accumulate,
        )
