"""The losses of the first steps, from the tensors whose `backward()` the script calls. They are read at the end, since
reading one on a GPU waits for it."""

from __future__ import annotations

import functools
from contextlib import suppress
from typing import Any

from gpuscope.instrumented_runtime.record.compiler import leave_uncompiled

STEPS = 20
"""Steps whose losses are kept."""


class Losses:
    """Copies of each step's losses, on their device."""

    def __init__(self) -> None:
        self._now: list[Any] = []
        self._steps: list[list[Any]] = []

    def backward(self, tensors: Any, gradients: Any) -> None:
        """A backward pass begins: from a loss, if that is one number and the caller gives no gradient."""
        if len(self._steps) < STEPS and gradients is None:
            for one in [tensors] if not isinstance(tensors, list | tuple) else tensors:
                local = getattr(one, "_local_tensor", one)  # of a DTensor: reading all of it would communicate
                if local.numel() == 1 and not _capturing(local):
                    self._now.append(local.detach().clone())

    def step(self) -> None:
        """A step has ended."""
        if len(self._steps) < STEPS:
            self._steps.append(self._now)
            self._now = []

    def read(self) -> list[float | None]:
        """Per step the sum of its losses (several where gradients are accumulated); None for a step without."""
        if not any(self._steps):  # as of a stage of a pipeline that is not the last
            return []
        return [sum(float(one) for one in step) if step else None for step in self._steps]


def _capturing(tensor: Any) -> bool:
    """Whether a CUDA graph is captured, which a copy would become part of."""
    import torch

    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def watch() -> Losses:
    """Have torch's one way to a backward pass tell the losses."""
    import torch.autograd

    losses, run = Losses(), torch.autograd.backward

    @functools.wraps(run)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> None:
        with suppress(Exception):  # a loss that is not known must not stop the job
            losses.backward(tensors, grad_tensors)
        run(tensors, grad_tensors, *args, **kwargs)

    leave_uncompiled(backward)
    torch.autograd.backward = backward
    return losses
