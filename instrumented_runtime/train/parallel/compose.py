"""All parallelisms over one mesh: the order in which they partition the model, and the model to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim import Optimizer

from gpuscope.instrumented_runtime.train.mesh import Mesh, World
from gpuscope.instrumented_runtime.train.model.gpt import GPT, next_token_loss
from gpuscope.instrumented_runtime.train.optimizer import make_adamw
from gpuscope.instrumented_runtime.train.parallel.expert_parallel import ExpertGradients
from gpuscope.instrumented_runtime.train.parallel.local import LocalMicroStep, MicroStep
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.mesh_axes import ALL_DATA, SAME_EXPERTS, MeshAxis


@dataclass(slots=True)
class Parallelized:
    """The model partitioned for this rank, and how to run and train it."""

    parts: list[nn.Module]  # one, or one per pipeline stage of this rank
    optimizers: list[Optimizer]  # one per part
    micro_step: MicroStep
    positions: Tensor | None  # which tokens of a sequence are this rank's; None = all
    expert_gradients: ExpertGradients | None

    def parameters(self) -> list[nn.Parameter]:
        """This rank's parameters."""
        return [parameter for part in self.parts for parameter in part.parameters()]


def parallelize(config: TrainConfig, world: World, mesh: Mesh) -> Parallelized:
    """Build the model with the same weights on every rank and apply `config.parallel`."""
    torch.manual_seed(config.train.seed)
    model = GPT(config.model, config.data.sequence)
    positions = None
    if (context_mesh := mesh.view(MeshAxis.CP)) is not None:
        from gpuscope.instrumented_runtime.train.parallel import context_parallel

        positions = context_parallel.apply(model, config.context, context_mesh, config.data.sequence)
    models, stages = [model], None
    if (pipeline_mesh := mesh.view(MeshAxis.PP)) is not None:
        from gpuscope.instrumented_runtime.train.parallel import pipeline_parallel

        stages = pipeline_parallel.apply(model, config, pipeline_mesh)
        models = [stage.model for stage in stages]
    experts = [p for part in models for p in _cut_inside(part, config, world, mesh)]
    parts = [_share_data(part, config, world, mesh) for part in models]
    around = _around(config, world, mesh)
    micro_step: MicroStep
    if stages is not None and pipeline_mesh is not None:
        micro_step = pipeline_parallel.PipelineMicroStep(
            stages, parts, config, pipeline_mesh, world.device, next_token_loss, around
        )
    else:
        micro_step = LocalMicroStep(parts[0], next_token_loss, config.train.accumulate, around)
    return Parallelized(
        parts,
        [_optimizer(part, config, mesh) for part in parts],
        micro_step,
        positions,
        _expert_gradients(experts, config, mesh),
    )


def _cut_inside(model: GPT, config: TrainConfig, world: World, mesh: Mesh) -> list[nn.Parameter]:
    """Apply the parallelisms inside one model or stage, in place; returns the parameters of sharded experts."""
    model.to(world.device)
    experts: list[nn.Parameter] = []
    if (expert_mesh := mesh.view(MeshAxis.EP)) is not None:
        from gpuscope.instrumented_runtime.train.parallel import expert_parallel

        experts = expert_parallel.apply(model, expert_mesh)
    if (tensor_mesh := mesh.view(MeshAxis.TP)) is not None:
        from gpuscope.instrumented_runtime.train.parallel import tensor_parallel

        tensor_parallel.apply(model, config.tensor, tensor_mesh)
    if config.train.activation_checkpointing != "none":
        _checkpoint_blocks(model, 1 if config.train.activation_checkpointing == "block" else 2)
    if config.train.compile or config.train.cuda_graph:
        from gpuscope.instrumented_runtime.train.parallel import compiled

        if config.train.compile:
            compiled.apply_compile(model)
        else:
            compiled.apply_cuda_graphs(model, config)
    return experts


def _share_data(model: GPT, config: TrainConfig, world: World, mesh: Mesh) -> nn.Module:
    """Make data-parallel ranks share gradients, and under ZeRO parameters too."""
    kind, view = config.parallel.data, mesh.view(*ALL_DATA)
    if view is None:
        return model
    if kind in ("none", "ddp", "zero1"):
        # "none" gets here with context or expert parallelism, whose replicas must be synchronised all the same.
        from gpuscope.instrumented_runtime.train.parallel import ddp

        return ddp.apply(model, config.ddp, view, world.device.type)
    from gpuscope.instrumented_runtime.train.parallel import fsdp

    fsdp.apply(
        model,
        config.fsdp,
        mesh.grid(MeshAxis.REPLICATE, (MeshAxis.SHARD, MeshAxis.CP, MeshAxis.EP)) if kind == "hsdp" else view,
        reshard=_reshard(config),
        experts=mesh.view(*SAME_EXPERTS),
        expert_divisor=view.size(),
    )
    return model


def _reshard(config: TrainConfig) -> bool | int | None:
    """FSDP2's `reshard_after_forward`: as configured; else parameters stay unsharded under ZeRO-2 and where
    each micro-batch of a pipeline would gather them again."""
    if config.fsdp.reshard_after_forward is None and (config.parallel.data == "zero2" or config.parallel.pp > 1):
        return False
    return config.fsdp.reshard_after_forward


def _optimizer(part: nn.Module, config: TrainConfig, mesh: Mesh) -> Optimizer:
    view = mesh.view(*ALL_DATA)
    if config.parallel.data == "zero1" and view is not None:
        from gpuscope.instrumented_runtime.train.parallel import zero1

        return zero1.make_optimizer(part.parameters(), config.optimizer, view)
    return make_adamw(part.parameters(), config.optimizer)


def _expert_gradients(experts: list[nn.Parameter], config: TrainConfig, mesh: Mesh) -> ExpertGradients | None:
    view, same = mesh.view(*ALL_DATA), mesh.view(*SAME_EXPERTS)
    sharded = config.parallel.data in ("zero2", "zero3", "hsdp") and same is not None
    if not experts or view is None or sharded:  # FSDP divides the ones it shards
        return None
    return ExpertGradients(experts, same, view.size())


def _around(config: TrainConfig, world: World, mesh: Mesh) -> Callable[[], AbstractContextManager[Any]]:
    """The context of forward and backward: autocast and the sharded loss."""
    sharded_loss = mesh.view(MeshAxis.TP) is not None and config.tensor.loss_parallel
    half = config.train.precision == "bf16"

    @contextmanager
    def around() -> Iterator[None]:
        with ExitStack() as stack:
            if sharded_loss:
                from torch.distributed.tensor.parallel import loss_parallel

                stack.enter_context(loss_parallel())
            if half:
                stack.enter_context(torch.autocast(world.device.type, torch.bfloat16))
            yield

    return around


def _checkpoint_blocks(model: GPT, every: int) -> None:
    """Activation checkpointing: each `every`-th block recomputes its activations in backward."""
    for index, (name, block) in enumerate(list(model.blocks.items())):
        if index % every == 0:
            model.blocks[name] = checkpoint_wrapper(block)
