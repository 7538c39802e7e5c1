"""A pipeline fed with so few micro-batches that filling and draining it dominates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, StepFault, require
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import PP, PipelineConfig

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


# A pipeline stage with more to compute than the others, which then wait for its activations.


@dataclass(frozen=True)
class UnbalancedStage(StepFault):
    """The ranks at place `stage` of the pipeline (-1 = the last) run every block's forward `times` times
    more."""

    name = "unbalanced_stage"
    what = "forward of the stage's blocks, repeated for every micro-batch"
    unit = "extra block forwards"
    bound_by = "communication"
    cause = "pipeline_bubble"
    stage: int = -1
    times: int = 2

    def ranks(self, config: TrainConfig, world_size: int) -> list[int]:
        # The mesh's outermost dimension is the pipeline: a stage's ranks lie side by side.
        pp = config.parallel.size(PP.name)
        width = world_size // pp
        return [self.stage % pp * width + rank for rank in range(width)]

    def configure(self, config: TrainConfig, world_size: int) -> TrainConfig:  # noqa: ARG002
        pp = config.parallel.size(PP.name)
        require(pp > 1, self.name, "stage", "needs a pipeline", "--parallel pp")
        require(-1 <= self.stage < pp, self.name, "stage", f"{self.stage} is not one of the {pp} pipeline ranks")
        require(self.times >= 1, self.name, "times", "must be at least 1")
        return config

    def on_model(self, context: StepContext) -> None:
        import torch

        from gpuscope.instrumented_runtime.train.faults.burn import blocks, is_shape_only

        if context.rank not in self.ranks(context.config, context.world_size):
            return

        def again(module: Any, inputs: Any, _output: Any) -> None:
            if not self.due(context.step) or is_shape_only(inputs[0]):
                return
            with torch.no_grad():
                for _ in range(self.times):
                    module.forward(*inputs)
            context.ledger.add(self.name, context.step, count=self.times)

        for block in blocks(context):
            block.register_forward_hook(again)


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
