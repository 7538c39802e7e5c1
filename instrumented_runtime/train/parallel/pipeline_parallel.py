"""Pipeline parallelism: the model cut into stages, micro-batches sent through them on a schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import schedules

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.model.gpt import GPT, cut
from gpuscope.instrumented_runtime.train.parallel.local import Hooks, Loss
from gpuscope.instrumented_runtime.train.parallel.pipeline_stage import RangedStage, range_transfers
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import stages_per_rank

_SCHEDULES: dict[str, Callable[..., Any]] = {
    "gpipe": schedules.ScheduleGPipe,
    "1f1b": schedules.Schedule1F1B,
    "interleaved1f1b": schedules.ScheduleInterleaved1F1B,
    "interleaved_zero_bubble": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of this rank: its number among all, and its part of the model."""

    index: int
    model: GPT


def apply(model: GPT, config: TrainConfig, mesh: DeviceMesh) -> list[Stage]:
    """This rank's stages of `model`; one, or several under the looped and V schedules."""
    rank, ranks = mesh.get_local_rank(), mesh.size()
    count = ranks * stages_per_rank(config)
    layers = layers_of_stages(config.model.layers, count, config.pipeline.layers_per_stage)
    down_and_up = config.pipeline.schedule == "zbv"
    mine = [rank, count - 1 - rank] if down_and_up else list(range(rank, count, ranks))
    return [Stage(i, cut(model, layers[i], first=i == 0, last=i == count - 1)) for i in mine]


def layers_of_stages(layers: int, stages: int, wanted: str = "") -> list[range]:
    """Layers of each stage: as `wanted` ("3,1") gives them, else as even as possible.

    The earlier stages take the remainder, since the last one also has the head.
    """
    if wanted:
        counts = [int(part) for part in wanted.split(",") if part.strip().isdigit()]
        if len(counts) != stages or sum(counts) != layers or min(counts) < 1:
            raise UsageError(
                f"pipeline.layers_per_stage: {wanted!r} is not {stages} positive counts that sum to {layers}"
            )
    else:
        counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    ends = [sum(counts[: i + 1]) for i in range(stages)]
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


class PipelineMicroStep:
    """One run of the schedule: forwards and backwards of all micro-batches of one loader batch."""

    def __init__(
        self,
        stages: list[Stage],
        modules: list[nn.Module],
        config: TrainConfig,
        mesh: DeviceMesh,
        device: torch.device,
        loss: Loss,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        count = mesh.size() * stages_per_rank(config)
        self.around = around
        self.parts = config.pipeline.micro_batches * config.train.accumulate
        self.is_first = any(stage.index == 0 for stage in stages)
        self.knows_loss = any(stage.index == count - 1 for stage in stages)
        ranged = [
            RangedStage(module, stage.index, count, device, group=mesh.get_group())
            for stage, module in zip(stages, modules, strict=True)
        ]
        range_transfers()
        kind = _SCHEDULES[config.pipeline.schedule]
        # Scaled here and not by the schedule, which would scale what earlier micro-steps added up again.
        self.schedule: Any = kind(
            ranged[0] if kind in (schedules.ScheduleGPipe, schedules.Schedule1F1B) else ranged,
            config.pipeline.micro_batches,
            loss_fn=lambda output, labels: loss(output, labels) / self.parts,
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
