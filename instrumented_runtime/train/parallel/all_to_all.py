"""A differentiable all-to-all with even or uneven splits along the first dimension."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gpuscope.instrumented_runtime.record.ranges import span
from gpuscope.instrumented_runtime.train.measures.exposed_time import EXPOSED

Splits = list[int] | None


def all_to_all(x: Tensor, group: dist.ProcessGroup, sent: Splits = None, received: Splits = None) -> Tensor:
    """Send the i-th split of `x` to rank i and concatenate what comes back; even splits by default."""
    return _AllToAll.apply(x, group, sent, received)  # type: ignore[no-any-return,no-untyped-call]


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup, sent: Splits, received: Splits) -> Tensor:
        ctx.group, ctx.sent, ctx.received = group, sent, received
        return _exchange(x, group, sent, received)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Each token's gradient takes the reverse path.
        return _exchange(gradients[0], ctx.group, ctx.received, ctx.sent), None, None, None


def _exchange(x: Tensor, group: dist.ProcessGroup, sent: Splits, received: Splits) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x) if received is None else x.new_empty(sum(received), *x.shape[1:])
    with span("all_to_all", nbytes=x.numel() * x.element_size()), EXPOSED.waiting(x):
        dist.all_to_all_single(out, x, received, sent, group=group)
    return out
