"""The world of a process, and one DeviceMesh from which every parallelism takes its dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.gloo import gloo_threads
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallelism import Axis, Degrees


@dataclass(frozen=True, slots=True)
class World:
    """This process's rank and peers, from torchrun's environment or alone."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    backend: str | None  # None: no process group

    @property
    def is_cuda(self) -> bool:
        return self.device.type == "cuda"


@contextmanager
def join_world(config: TrainConfig) -> Iterator[World]:
    """The world of this process; the process group is created under torchrun and destroyed at the end."""
    rank, size, local = (int(os.environ.get(name, d)) for name, d in _TORCHRUN)
    device = _device(config, local)
    if "WORLD_SIZE" not in os.environ:
        yield World(rank, size, local, device, None)
        return
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not dist.is_initialized():
        dist.init_process_group(
            backend,
            timeout=timedelta(seconds=config.train.timeout_s),
            device_id=device if device.type == "cuda" else None,
        )
    # A mesh makes groups without a timeout of their own: they would wait half an hour (torch's default).
    with _default_timeout(timedelta(seconds=config.train.timeout_s)):
        yield World(rank, size, local, device, backend)
    # Only after success: on the way out of an error, peers may be stuck in a collective that never ends.
    leave_world()


@contextmanager
def _default_timeout(timeout: timedelta) -> Iterator[None]:
    from torch.distributed import distributed_c10d as c10d

    make = c10d._new_group_with_tag

    def new_group(ranks: Any = None, given: timedelta | None = None, *args: Any, **kwargs: Any) -> Any:
        given = kwargs.pop("timeout", given)
        return make(ranks, timeout if given is None else given, *args, **kwargs)

    c10d._new_group_with_tag = new_group  # type: ignore[assignment]
    try:
        yield
    finally:
        c10d._new_group_with_tag = make


def leave_world() -> None:
    """Destroy all process groups without hanging or leaving a thread that aborts Python's exit."""
    gloo_threads.rest()
    dist.destroy_process_group()


_TORCHRUN = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _device(config: TrainConfig, local_rank: int) -> torch.device:
    wanted = config.train.device
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if not torch.cuda.is_available() or local_rank >= count:
        raise UsageError(
            f"train.device: local rank {local_rank} has no GPU ({count} found)", hint="--set train.device=cpu"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@dataclass(slots=True)
class Mesh:
    """The device mesh of all dimensions larger than one, and flattened views of it by name."""

    degrees: Degrees
    device_mesh: DeviceMesh | None
    _views: dict[tuple[str, ...], DeviceMesh] = field(default_factory=dict)

    def view(self, *axes: Axis) -> DeviceMesh | None:
        """The 1-D mesh over these dimensions together; `None` if that is one rank."""
        names = tuple(axis.name for axis in axes if self.degrees[axis] > 1)
        if not names or self.device_mesh is None:
            return None
        if names not in self._views:
            part = self.device_mesh[names if len(names) > 1 else names[0]]
            self._views[names] = part._flatten("_".join(names)) if len(names) > 1 else part
        return self._views[names]

    def of(self, axis: Axis) -> DeviceMesh:
        """The 1-D mesh of a dimension that has several ranks."""
        view = self.view(axis)
        assert view is not None, f"{axis.name} is one rank"
        return view

    def grid(self, outer: Axis, inner: tuple[Axis, ...]) -> DeviceMesh:
        """The 2-D mesh of one dimension by the `inner` ones together, or 1-D where one of them is single.

        Raises `UsageError` if both are.
        """
        first, second = self.view(outer), self.view(*inner)
        if first is None or second is None:
            view = self.view(outer, *inner)
            if view is None:
                raise UsageError("parallel.data: there is no other data-parallel rank")
            return view
        assert self.device_mesh is not None
        assert first.mesh_dim_names is not None
        assert second.mesh_dim_names is not None
        return self.device_mesh[(*first.mesh_dim_names, *second.mesh_dim_names)]

    def rank(self, *axes: Axis) -> int:
        """This process's place among those that differ from it in these dimensions only."""
        place = 0
        for axis in axes:
            view = self.view(axis)
            place = place * self.degrees[axis] + (0 if view is None else view.get_local_rank())
        return place

    @property
    def data_rank(self) -> int:
        """Which contiguous range of sequences this process reads."""
        return self.rank(*(axis for axis in self.degrees.sizes if axis.own_sequences))

    @property
    def averaging(self) -> tuple[Axis, ...]:
        """The dimensions over which gradients are averaged."""
        return tuple(axis for axis in self.degrees.sizes if axis.averages_gradients)

    @property
    def averaged(self) -> DeviceMesh | None:
        """All ranks over which gradients are averaged."""
        return self.view(*self.averaging)


def make_mesh(degrees: Degrees, world: World) -> Mesh:
    """The mesh for a world whose size `parallel_spec.validate` has checked."""
    sizes = {name: size for name, size in degrees.as_dict().items() if size > 1}
    if world.backend is None or not sizes:
        return Mesh(degrees, None)
    return Mesh(
        degrees,
        init_device_mesh(world.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)),
    )
