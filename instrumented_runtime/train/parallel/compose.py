"""All parallelisms over one mesh: the order in which they partition the model, and the model to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.mesh import Mesh, World, make_adamw
from gpuscope.instrumented_runtime.train.model import GPT, next_token_loss
from gpuscope.instrumented_runtime.train.settings.config import Parallelism, TrainConfig
from gpuscope.instrumented_runtime.train.settings.sections import DATA, MODEL

# Forward and backward of one micro-step on a rank that holds every layer (all but pipelines).

Loss = Callable[[Tensor, Tensor], Tensor]


class Hooks(Protocol):
    """Hooks of a micro-step, at which faults can act."""

    def before_forward(self) -> None: ...

    def before_backward(self, loss: Tensor | None) -> None: ...


class MicroStep(Protocol):
    """Runs forward and backward of [batch, sequence] tokens and labels; gradients accumulate."""

    knows_loss: bool
    """Whether this rank computes the loss."""

    def __call__(self, inputs: Tensor, labels: Tensor, hooks: Hooks, *, last: bool) -> Tensor | None:
        """The mean loss, detached, or None on pipeline ranks without the last stage.

        `last`: the optimizer runs next, so gradients must be synchronised now.
        """
        ...


class LocalMicroStep:
    """Plain forward and backward of one model."""

    knows_loss = True

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        accumulate: int,
        around: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.model, self.loss, self.accumulate, self.around = model, loss, accumulate, around

    def __call__(self, inputs: Tensor, labels: Tensor, hooks: Hooks, *, last: bool) -> Tensor:
        with sync_gradients(self.model, last):
            hooks.before_forward()
            with self.around():
                with span("forward"):
                    loss = self.loss(self.model(inputs), labels)
                hooks.before_backward(loss)
                with span("backward"):
                    torch.autograd.backward(loss / self.accumulate)
        return loss.detach()


def sync_gradients(model: nn.Module, wanted: bool) -> AbstractContextManager[Any]:
    """Inside, backward synchronises gradients over data-parallel ranks, or only accumulates them."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)
        return nullcontext()
    if not wanted and isinstance(model, DistributedDataParallel):
        return model.no_sync()
    return nullcontext()


# A model on its way from that of one process to this rank's part of a job.

Kind = TypeVar("Kind", bound=nn.Module)


@dataclass(slots=True)
class Build:
    """What each parallelism's `apply` changes in place."""

    config: TrainConfig
    world: World
    mesh: Mesh
    models: list[GPT]
    """The model, or the pipeline stages that this rank holds."""
    parts: list[nn.Module] = field(default_factory=list)
    """The same, with what data parallelism has wrapped around them."""
    positions: Tensor | None = None
    """Which tokens of a sequence are this rank's; None = all."""
    contexts: list[Callable[[], AbstractContextManager[Any]]] = field(default_factory=list)
    """Entered around each forward and backward."""
    after_backward: list[Callable[[], None]] = field(default_factory=list)
    """Called once per optimizer step, after the last backward: what is left to do for the gradients."""
    make_micro_step: Callable[[Build], MicroStep] | None = None
    make_optimizer: Callable[[nn.Module], Optimizer] | None = None

    def modules(self, kind: type[Kind]) -> list[Kind]:
        """Those of `models` that are of a kind."""
        return [module for model in self.models for module in model.modules() if isinstance(module, kind)]

    @contextmanager
    def around(self) -> Iterator[None]:
        """The context of forward and backward."""
        with ExitStack() as stack:
            for context in self.contexts:
                stack.enter_context(context())
            yield

    def micro_step(self) -> MicroStep:
        """Forward and backward of `parts`."""
        if self.make_micro_step is not None:
            return self.make_micro_step(self)
        return LocalMicroStep(self.parts[0], next_token_loss, self.config.train.accumulate, self.around)

    def optimizer(self, part: nn.Module) -> Optimizer:
        """The optimizer of one of `parts`."""
        if self.make_optimizer is not None:
            return self.make_optimizer(part)
        return make_adamw(part.parameters(), self.config.optimizer)


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
    file, _, function = one.file.partition(".")
    getattr(import_module(f"{__package__}.{file}"), function or "apply")(build)


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
