"""All parallelisms over one mesh: the order in which they partition the model, and the model to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim import Optimizer

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.mesh import Mesh, World
from gpuscope.instrumented_runtime.train.model.gpt import GPT
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.parallel.local import MicroStep
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallelism import Parallelism
from gpuscope.instrumented_runtime.train.settings.sections import DATA, MODEL


@dataclass(slots=True)
class Parallelized:
    """The model partitioned for this rank, and how to run and train it."""

    parts: list[nn.Module]  # one, or one per pipeline stage of this rank
    optimizers: list[Optimizer]  # one per part
    micro_step: MicroStep
    positions: Tensor | None  # which tokens of a sequence are this rank's; None = all
    after_backward: list[Callable[[], None]]  # called once per optimizer step, after the last backward

    def parameters(self) -> list[nn.Parameter]:
        """This rank's parameters."""
        return [parameter for part in self.parts for parameter in part.parameters()]


def parallelize(config: TrainConfig, world: World, mesh: Mesh) -> Parallelized:
    """Build the model with the same weights on every rank and apply `config.parallel`.

    Outermost axis first: a pipeline's layers are taken out before the model moves to the device, and each
    further parallelism finds what the ones before it have left. Data parallelism comes last, around all of it.
    """
    torch.manual_seed(config.train.seed)
    build = Build(config, world, mesh, [GPT(config.model, config.data.sequence)])
    used = sorted((one for one in MODEL if mesh.view(one.axis) is not None), key=lambda one: one.axis.place)
    for one in used:
        if one.axis.own_layers:
            _apply(one, build)
    for model in build.models:
        model.to(world.device)
    for one in used:
        if not one.axis.own_layers:
            _apply(one, build)
    _prepare_blocks(build)
    build.parts = list(build.models)
    if mesh.averaged is not None:
        _apply(DATA[config.parallel.data], build)
    if config.train.precision == "bf16":
        build.contexts.append(partial(torch.autocast, world.device.type, torch.bfloat16))
    return Parallelized(
        build.parts,
        [build.optimizer(part) for part in build.parts],
        build.micro_step(),
        build.positions,
        build.after_backward,
    )


def _apply(one: Parallelism, build: Build) -> None:
    import_module(f"{__package__}.{one.file}").apply(build)


def _prepare_blocks(build: Build) -> None:
    """Activation checkpointing, torch.compile and CUDA graphs, before data parallelism wraps the blocks."""
    train = build.config.train
    for model in build.models:
        if train.activation_checkpointing != "none":
            _checkpoint_blocks(model, 1 if train.activation_checkpointing == "block" else 2)
        if train.compile:
            apply_compile(model)
        elif train.cuda_graph:
            apply_cuda_graphs(model, build.config)


def _checkpoint_blocks(model: GPT, every: int) -> None:
    """Activation checkpointing: each `every`-th block recomputes its activations in backward."""
    for index, (name, block) in enumerate(list(model.blocks.items())):
        if index % every == 0:
            model.blocks[name] = checkpoint_wrapper(block)


def apply_compile(model: GPT) -> None:
    """Compile each block in place; all blocks are identical, so they share the first one's code."""
    for block in model.blocks.values():
        block.compile()


def apply_cuda_graphs(model: GPT, config: TrainConfig) -> None:
    """Capture each block's forward and backward as CUDA graphs, in place.

    Per block, so that DDP can reduce a block's gradients while the next one's graph runs.
    Raises `UsageError` without a GPU.
    """
    device = next(model.parameters()).device
    if device.type != "cuda":
        raise UsageError("train.cuda_graph: needs a GPU", hint="leave it out on the CPU")
    blocks = tuple(model.blocks.values())
    shape = (config.data.batch, config.data.sequence, config.model.width)
    samples = tuple((torch.zeros(shape, device=device, requires_grad=True),) for _ in blocks)
    # Autocast's cache of cast weights would be captured and go stale.
    half = config.train.precision == "bf16"
    with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=False):
        torch.cuda.make_graphed_callables(blocks, samples)
