"""A model on its way from that of one process to this rank's part of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from gpuscope.instrumented_runtime.train.mesh import Mesh, World
from gpuscope.instrumented_runtime.train.model.gpt import GPT, next_token_loss
from gpuscope.instrumented_runtime.train.optimizer import make_adamw
from gpuscope.instrumented_runtime.train.parallel.local import LocalMicroStep, MicroStep
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig

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
