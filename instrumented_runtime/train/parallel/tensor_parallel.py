"""Tensor parallelism: column- and row-sharded linear layers, with sequence and loss parallelism."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import Placement

from gpuscope.instrumented_runtime.train.model.gpt import GPT
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.settings.parallelisms.tensor import TP, TensorConfig


class ReplicatedNorm(ParallelStyle):
    """A norm that every rank computes in full: its weight becomes a replicated DTensor."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        from torch.distributed.tensor import distribute_module

        return distribute_module(
            module,
            device_mesh,
            # Both may return a replacement by their documentation, unlike their annotation.
            input_fn=_as_replicated,  # type: ignore[arg-type]
            output_fn=_as_local,  # type: ignore[arg-type]
        )


def _as_replicated(_: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> DTensor:
    return DTensor.from_local(inputs[0], mesh, [Replicate()])


def _as_local(_: nn.Module, output: DTensor, mesh: DeviceMesh) -> Tensor:  # noqa: ARG001
    return output.to_local()


def _gathered(between: Placement) -> PrepareModuleInput:
    return PrepareModuleInput(input_layouts=(between,), desired_input_layouts=(Replicate(),))


def apply(build: Build) -> None:
    """Shard the layers of each model, and the loss."""
    config, mesh = build.config[TensorConfig], build.mesh.of(TP)
    for model in build.models:
        _shard(model, config, mesh)
    if config.loss_parallel:
        build.contexts.append(loss_parallel)


def _shard(model: GPT, config: TensorConfig, mesh: DeviceMesh) -> None:
    """Shard a model or a pipeline stage, in place.

    Between layers the activations are whole on each rank, or with sequence parallelism each rank's
    slice of the sequence: then an all-gather and a reduce-scatter replace each all-reduce.
    """
    between: Placement = Shard(1) if config.sequence_parallel else Replicate()
    norm = SequenceParallel() if config.sequence_parallel else ReplicatedNorm()
    for block in model.blocks.values():
        plan: dict[str, ParallelStyle] = {
            "attention_norm": norm,
            "attention": _gathered(between),
            "attention.query": ColwiseParallel(),
            "attention.key": ColwiseParallel(),
            "attention.value": ColwiseParallel(),
            "attention.out": RowwiseParallel(output_layouts=between),
            "mlp_norm": norm,
            "mlp": _gathered(between),
            "mlp.up": ColwiseParallel(),
            "mlp.down": RowwiseParallel(output_layouts=between),
        }
        parallelize_module(block, mesh, plan)
    ends: dict[str, ParallelStyle] = {}
    if model.embedding is not None:
        ends["embedding"] = RowwiseParallel(input_layouts=Replicate(), output_layouts=between)
    if model.norm is not None and model.head is not None:
        ends["norm"] = norm
        ends["head"] = ColwiseParallel(
            input_layouts=between,
            output_layouts=Shard(-1) if config.loss_parallel else Replicate(),
            use_local_output=not config.loss_parallel,
        )
    parallelize_module(model, mesh, ends)
