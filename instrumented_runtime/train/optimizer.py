"""AdamW for any mix of plain and sharded parameters, its learning rate, and clipping over the mesh."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer

from gpuscope.instrumented_runtime.train.measures.exposed_time import EXPOSED
from gpuscope.instrumented_runtime.train.settings.config import OptimizerConfig


def adamw_options(config: OptimizerConfig) -> dict[str, Any]:
    """AdamW's keyword arguments."""
    return {
        "lr": config.lr,
        "betas": (config.beta1, config.beta2),
        "weight_decay": config.weight_decay,
        "fused": config.fused or None,
    }


def make_adamw(parameters: Iterable[nn.Parameter], config: OptimizerConfig) -> Optimizer:
    """AdamW with one group per mesh: its multi-tensor kernels can't mix plain and sharded parameters."""
    groups = [{"params": group} for group in by_mesh(parameters).values()]
    return AdamW(groups, **adamw_options(config))


def by_mesh(parameters: Iterable[nn.Parameter]) -> dict[DeviceMesh | None, list[nn.Parameter]]:
    """Parameters by the mesh they are sharded over; plain ones under `None`."""
    groups: dict[DeviceMesh | None, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return groups


def set_learning_rate(optimizer: Optimizer, config: OptimizerConfig, step: int) -> None:
    """Linear warm-up, then constant."""
    rate = config.lr * min(1.0, (step + 1) / config.warmup) if config.warmup else config.lr
    for group in optimizer.param_groups:
        group["lr"] = rate


def clip_gradients(parameters: list[nn.Parameter], largest: float, pipeline: DeviceMesh | None) -> Tensor:
    """Scale the gradients so that their norm over all ranks and stages is at most `largest`.

    Returns the norm before. Each group of parameters gives the norm over its own mesh; a pipeline's
    stages add theirs.
    """
    groups = [
        [parameter for parameter in group if parameter.grad is not None] for group in by_mesh(parameters).values()
    ]
    squares = [_norm(group) ** 2 for group in groups if group]
    total = torch.stack(squares).sum()
    if pipeline is not None:
        with EXPOSED.waiting(total):
            dist.all_reduce(total, group=pipeline.get_group())
    norm = total.sqrt()
    for group in groups:
        clip_grads_with_norm_(group, largest, norm)
    return norm


def _norm(parameters: list[nn.Parameter]) -> Tensor:
    norm = get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
    if not isinstance(norm, DTensor):
        return norm
    with EXPOSED.waiting(norm):
        return norm.full_tensor()
