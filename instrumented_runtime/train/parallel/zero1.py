"""ZeRO-1: DDP with the optimizer state sharded over the ranks, each of which updates its shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import AdamW

from gpuscope.instrumented_runtime.train.optimizer import adamw_options
from gpuscope.instrumented_runtime.train.parallel import ddp
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.settings.config import OptimizerConfig

_MOMENTS = ("exp_avg", "exp_avg_sq")


def apply(build: Build) -> None:
    """Each model is wrapped as in DDP; only the optimizer differs."""
    ddp.apply(build)
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
