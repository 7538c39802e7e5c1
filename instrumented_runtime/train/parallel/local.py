"""Forward and backward of one micro-step on a rank that holds every layer (all but pipelines)."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from gpuscope.instrumented_runtime.record.ranges import span

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
