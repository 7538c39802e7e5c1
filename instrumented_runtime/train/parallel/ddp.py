"""DistributedDataParallel, with its knobs and communication hooks."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from gpuscope.instrumented_runtime.record.gloo.power_sgd import power_sgd_hook
from gpuscope.instrumented_runtime.train.parallel.build import Build
from gpuscope.instrumented_runtime.train.settings.parallelisms.ddp import DdpConfig


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
