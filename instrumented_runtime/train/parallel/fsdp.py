"""FSDP2: ZeRO-2 (gradients and optimizer sharded), ZeRO-3 (parameters too) and HSDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard

from gpuscope.instrumented_runtime.train.model.gpt import GPT
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.parallel.expert_parallel import same_experts
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallelism import REPLICATE
from gpuscope.instrumented_runtime.train.settings.parallelisms.fsdp import FsdpConfig
from gpuscope.instrumented_runtime.train.settings.parallelisms.pipeline import PP

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def apply(build: Build) -> None:
    """Shard each model over the ranks that average gradients; under HSDP over `SHARD` and the axes inside it."""
    mesh = build.mesh
    shared = mesh.averaged
    assert shared is not None
    inner = tuple(axis for axis in mesh.averaging if axis is not REPLICATE)
    over = mesh.grid(REPLICATE, inner) if build.config.parallel.data == "hsdp" else shared
    for model in build.models:
        _shard(model, build.config, over, experts=same_experts(mesh), expert_divisor=shared.size())


def _shard(
    model: GPT, config: TrainConfig, mesh: DeviceMesh, *, experts: DeviceMesh | None, expert_divisor: int
) -> None:
    """Shard each block, then the rest, over `mesh` (1-D, or 2-D for HSDP: replicate × shard).

    `experts` is the mesh of ranks that hold the same experts, which are sharded over it alone; with
    `None` under expert parallelism they stay as they are. `expert_divisor` is what their summed
    gradients are divided by.
    """
    knobs, reshard = config[FsdpConfig], _reshard(config)
    options = _options(knobs, mesh.device_type)
    blocks = list(model.blocks.values())
    local: set[nn.Parameter] = set()
    for module in _expert_modules(model):
        if experts is None:
            local |= set(module.parameters())
            continue
        sharded = fully_shard(module, mesh=experts, reshard_after_forward=reshard, **options)
        # gloo has no scaled sum: sum, then divide explicitly.
        sharded.set_force_sum_reduction_for_comms(True)
        sharded.set_gradient_divide_factor(float(expert_divisor))
    for part in [*blocks, model]:
        fully_shard(part, mesh=mesh, reshard_after_forward=reshard, ignored_params=local, **options)
    if knobs.prefetch:
        _prefetch([block for block in blocks if isinstance(block, FSDPModule)], knobs.prefetch)


def _reshard(config: TrainConfig) -> bool | int | None:
    """FSDP2's `reshard_after_forward`: as configured; else parameters stay unsharded under ZeRO-2 and where
    each micro-batch of a pipeline would gather them again."""
    wanted = config[FsdpConfig].reshard_after_forward
    if wanted is None and (config.parallel.data == "zero2" or config.parallel.size(PP.name) > 1):
        return False
    return wanted


def _options(config: FsdpConfig, device_type: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if config.mixed_precision != "none":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=_DTYPES[config.mixed_precision], reduce_dtype=_DTYPES[config.reduce_dtype]
        )
    if config.cpu_offload:
        options["offload_policy"] = CPUOffloadPolicy(pin_memory=device_type == "cuda")
    return options


def _expert_modules(model: GPT) -> list[nn.Module]:
    from gpuscope.instrumented_runtime.train.model.moe import Experts

    # Only experts sharded over ranks need their own mesh; others are part of their block.
    return [module for module in model.modules() if isinstance(module, Experts) and module.is_cut]


def _prefetch(blocks: list[FSDPModule], count: int) -> None:
    """All-gather `count` blocks ahead, in forward order and in backward order."""
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + count])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - count) : i][::-1])
