"""DistributedDataParallel, with its knobs and communication hooks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from gpuscope.instrumented_runtime.record.nsys_capture import power_sgd_hook
from gpuscope.instrumented_runtime.train.mesh import adamw_options
from gpuscope.instrumented_runtime.train.model import GPT
from gpuscope.instrumented_runtime.train.parallel.compose import Build
from gpuscope.instrumented_runtime.train.parallel.model_parallel import same_experts
from gpuscope.instrumented_runtime.train.settings.config import REPLICATE, OptimizerConfig, TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import PP, DdpConfig, FsdpConfig


def apply(build: Build) -> None:
    """Wrap each model, so that its gradients are averaged."""
    config, mesh = build.config[DdpConfig], build.mesh.averaged
    assert mesh is not None
    build.parts = [_wrapped(model, config, mesh, build.world.device.type) for model in build.models]


def _wrapped(model: nn.Module, config: DdpConfig, mesh: DeviceMesh, device_type: str) -> DistributedDataParallel:
    """`model` with its gradients averaged over `mesh` in buckets during backward.

    Parameters of sharded experts are left out, as no other rank holds them, and so are buffers, as they are constant.
    """
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(  # type: ignore[no-untyped-call]
        model,
        [name for name, parameter in model.named_parameters() if isinstance(parameter, DTensor)]
        + [name for name, _ in model.named_buffers()],
    )
    # Passing bucket_cap_mb at all, even 25, also makes the first bucket that size.
    bucket: dict[str, Any] = {} if config.bucket_cap_mb is None else {"bucket_cap_mb": config.bucket_cap_mb}
    ddp = DistributedDataParallel(
        model,
        process_group=mesh.get_group(),
        static_graph=config.static_graph,
        gradient_as_bucket_view=config.gradient_as_bucket_view,
        **bucket,
    )
    _register_hook(ddp, config, mesh.get_group())
    if device_type == "cpu":  # every step is timed, not one in a hundred; on a GPU that would make the host wait
        ddp._set_ddp_runtime_logging_sample_rate(1)  # type: ignore[no-untyped-call]
    return ddp


def _register_hook(ddp: DistributedDataParallel, config: DdpConfig, group: dist.ProcessGroup) -> None:
    if config.comm_hook == "fp16":
        ddp.register_comm_hook(group, default_hooks.fp16_compress_hook)
    elif config.comm_hook == "bf16":
        ddp.register_comm_hook(group, default_hooks.bf16_compress_hook)
    elif config.comm_hook == "powersgd":
        state: Any = powerSGD_hook.PowerSGDState(
            process_group=group, matrix_approximation_rank=config.powersgd_rank, start_powerSGD_iter=3
        )
        ddp.register_comm_hook(state, power_sgd_hook(dist.get_backend(group)))


# ZeRO-1: DDP with the optimizer state sharded over the ranks, each of which updates its shard.

_MOMENTS = ("exp_avg", "exp_avg_sq")


def zero1_apply(build: Build) -> None:
    """Each model is wrapped as in DDP; only the optimizer differs."""
    apply(build)
    mesh = build.mesh.averaged
    assert mesh is not None
    build.make_optimizer = lambda part: make_optimizer(part.parameters(), build.config.optimizer, mesh)


def make_optimizer(
    parameters: Iterable[nn.Parameter], config: OptimizerConfig, mesh: DeviceMesh
) -> ZeroRedundancyOptimizer:
    """AdamW over this rank's shard of `parameters`; the updated values are broadcast after the step."""
    return ZeroRedundancyOptimizer(parameters, AdamW, process_group=mesh.get_group(), **adamw_options(config))


def get_state(part: nn.Module, optimizer: ZeroRedundancyOptimizer) -> dict[str, Any]:
    """This rank's shard of the optimizer state, named as `get_optimizer_state_dict` names that of an
    unsharded AdamW, so that either loads what the other saved. No communication."""
    flat: dict[str, Any] = {}
    for name, parameter, group in _share(part, optimizer):
        # Before the first step there is no state; the step starts from zeros.
        known = optimizer.optim.state.get(parameter, {})
        flat[f"state.{name}.step"] = known.get("step", torch.tensor(0.0))
        for moment in _MOMENTS:
            flat[f"state.{name}.{moment}"] = known.get(moment, torch.zeros_like(parameter))
        flat |= {f"param_groups.{name}.{key}": value for key, value in group.items() if key != "params"}
    return flat


def set_state(part: nn.Module, optimizer: ZeroRedundancyOptimizer, flat: dict[str, Any]) -> None:
    """Load this rank's shard from a state that holds it."""
    for name, parameter, group in _share(part, optimizer):
        optimizer.optim.state[parameter] = {key: flat[f"state.{name}.{key}"] for key in ("step", *_MOMENTS)}
        for key in group:
            if key != "params":
                group[key] = flat.get(f"param_groups.{name}.{key}", group[key])


def _share(part: nn.Module, optimizer: ZeroRedundancyOptimizer) -> Iterator[tuple[str, nn.Parameter, dict[str, Any]]]:
    """Each parameter that this rank updates: its name without wrappers, itself, its group of options."""
    names = dict(zip(part.parameters(), get_model_state_dict(part), strict=True))
    for group in optimizer.optim.param_groups:
        for parameter in group["params"]:
            yield names[parameter], parameter, group


# FSDP2: ZeRO-2 (gradients and optimizer sharded), ZeRO-3 (parameters too) and HSDP.

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def fsdp_apply(build: Build) -> None:
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
    from gpuscope.instrumented_runtime.train.model import Experts

    # Only experts sharded over ranks need their own mesh; others are part of their block.
    return [module for module in model.modules() if isinstance(module, Experts) and module.is_cut]


def _prefetch(blocks: list[FSDPModule], count: int) -> None:
    """All-gather `count` blocks ahead, in forward order and in backward order."""
    for i, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[i + 1 : i + 1 + count])
        block.set_modules_to_backward_prefetch(blocks[max(0, i - count) : i][::-1])
