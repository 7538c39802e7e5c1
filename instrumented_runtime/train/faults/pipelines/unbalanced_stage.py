"""A pipeline stage with more to compute than the others, which then wait for its activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.instrumented_runtime.train.faults import StepContext, StepFault, require
from gpuscope.instrumented_runtime.train.settings.parallelisms.pipeline import PP

if TYPE_CHECKING:
    from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


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

        from gpuscope.instrumented_runtime.train.faults.blocks import blocks, is_shape_only

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
