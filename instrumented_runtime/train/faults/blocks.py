"""The transformer blocks of a model, however it is wrapped, and a test for real forwards."""

from __future__ import annotations

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from gpuscope.instrumented_runtime.train.faults import StepContext
from gpuscope.instrumented_runtime.train.model.gpt import Block


def blocks(context: StepContext) -> list[nn.Module]:
    """The blocks this rank holds, of all its pipeline stages."""
    return [module for part in context.parts for module in part.modules() if isinstance(module, Block)]


def is_shape_only(tensor: Tensor) -> bool:
    """Whether this forward only infers shapes: before 2.13 a pipeline does so first, computing nothing."""
    return isinstance(tensor, FakeTensor) or tensor.device.type == "meta"
