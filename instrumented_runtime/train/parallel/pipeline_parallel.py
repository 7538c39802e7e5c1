"""Pipeline parallelism: the model cut into stages, micro-batches sent through them on a schedule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules

from gpuscope.instrumented_runtime.train.model.gpt import cut, next_token_loss
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.parallel.local import Hooks
from gpuscope.instrumented_runtime.train.parallel.pipeline_stage import RangedStage, range_transfers
from gpuscope.instrumented_runtime.train.settings.parallelisms.pipeline import (
    PP,
    PipelineConfig,
    layers_of_stages,
    stages_per_rank,
)

_SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}


def apply(build: Build) -> None:
    """Replace the model by this rank's stages of it; one, or several under the looped and V schedules."""
    config, mesh, [model] = build.config, build.mesh.of(PP), build.models
    rank, ranks = mesh.get_local_rank(), mesh.size()
    count = ranks * stages_per_rank(config)
    layers = layers_of_stages(config.model.layers, count, config[PipelineConfig].layers_per_stage)
    down_and_up = config[PipelineConfig].schedule == "zbv"
    mine = [rank, count - 1 - rank] if down_and_up else list(range(rank, count, ranks))
    build.models = [cut(model, layers[i], first=i == 0, last=i == count - 1) for i in mine]
    build.make_micro_step = lambda build: PipelineMicroStep(mine, build, mesh)


class PipelineMicroStep:
    """One run of the schedule: forwards and backwards of all micro-batches of one loader batch."""

    def __init__(self, stages: list[int], build: Build, mesh: DeviceMesh) -> None:
        config, pipeline = build.config, build.config[PipelineConfig]
        count = mesh.size() * stages_per_rank(config)
        self.around = build.around
        self.parts = pipeline.micro_batches * config.train.accumulate
        self.is_first = 0 in stages
        self.knows_loss = count - 1 in stages
        ranged = [
            RangedStage(module, stage, count, build.world.device, group=mesh.get_group())
            for stage, module in zip(stages, build.parts, strict=True)
        ]
        range_transfers()
        kind = _SCHEDULES[pipeline.schedule]
        # Scaled here and not by the schedule, which would scale what earlier micro-steps added up again.
        self.schedule: Any = kind(
            ranged[0] if kind in (schedules.ScheduleGPipe, schedules.Schedule1F1B) else ranged,
            pipeline.micro_batches,
            loss_fn=lambda output, labels: next_token_loss(output, labels) / self.parts,
            scale_grads=False,
        )

    def __call__(self, inputs: Tensor, labels: Tensor, hooks: Hooks, *, last: bool) -> Tensor | None:  # noqa: ARG002
        """See `local.MicroStep`. Gradients are synchronised in each call: the schedule knows no other."""
        losses: list[Tensor] = []
        hooks.before_forward()
        with self.around():
            self.schedule.step(
                *([inputs] if self.is_first else []),
                target=labels if self.knows_loss else None,
                losses=losses if self.knows_loss else None,
                return_outputs=False,
            )
        hooks.before_backward(None)
        return torch.stack(losses).mean().detach() * self.parts if self.knows_loss else None
