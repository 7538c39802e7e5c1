"""The world of a process, and one DeviceMesh from which every parallelism takes its dimensions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import AdamW, Optimizer
from torch.utils.data import DataLoader, Dataset, Sampler

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.record import nsys_capture
from gpuscope.instrumented_runtime.train.measures import EXPOSED
from gpuscope.instrumented_runtime.train.settings.config import Axis, Degrees, OptimizerConfig, TrainConfig

if TYPE_CHECKING:
    import numpy as np


# Tokens through a real DataLoader: generated, or bytes of a file.
#
# Sample i of step s is the same however the run is divided over ranks, so that a parallel run can be compared
# with a single process, and a resumed one continues where it stopped.

Tokens = Dataset[Tensor]


class GeneratedTokens(Tokens):
    """Endless sequences that follow a noisy rule, so that the loss can fall. Items are [sequence + 1]."""

    def __init__(self, vocabulary: int, sequence: int, seed: int) -> None:
        self.vocabulary, self.sequence, self.seed = vocabulary, sequence, seed

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + index)
        start, stride = torch.randint(self.vocabulary, (2,), generator=generator).tolist()
        noise = torch.randint(2, (self.sequence + 1,), generator=generator)
        tokens: Tensor = start + (stride % 7 + 1) * torch.arange(self.sequence + 1) + noise
        return tokens % self.vocabulary


class FileTokens(Tokens):
    """Windows of a file, one token per byte, in a shuffled order that repeats. Items are [sequence + 1]."""

    def __init__(self, path: str, vocabulary: int, sequence: int, seed: int) -> None:
        if vocabulary < 256:
            raise UsageError(
                f"model.vocabulary: {vocabulary} is too small for data.path, whose tokens are bytes",
                hint="--set model.vocabulary=256",
            )
        import numpy as np

        if not Path(path).is_file():
            raise InputError(f"data.path: {path} is not a file")
        self.bytes: np.ndarray[tuple[int], np.dtype[np.uint8]] = np.memmap(path, np.uint8, "r")
        self.sequence = sequence
        self.windows = (len(self.bytes) - 1) // sequence
        if self.windows < 1:
            raise InputError(
                f"data.path: {path} holds {len(self.bytes)} bytes, fewer than one sequence of {sequence}",
                hint="a smaller data.sequence",
            )
        self.order = torch.randperm(self.windows, generator=torch.Generator().manual_seed(seed))

    def __getitem__(self, index: int) -> Tensor:
        start = int(self.order[index % self.windows]) * self.sequence
        return torch.from_numpy(self.bytes[start : start + self.sequence + 1].astype("int64"))


def make_dataset(config: TrainConfig) -> Tokens:
    """The dataset of `config.data`."""
    model, data, seed = config.model, config.data, config.train.seed
    if data.path:
        return FileTokens(data.path, model.vocabulary, data.sequence, seed)
    return GeneratedTokens(model.vocabulary, data.sequence, seed)


class ShardSampler(Sampler[list[int]]):
    """Endless batches of indexes: each step's samples are divided over the ranks in contiguous runs."""

    def __init__(self, batch: int, rank: int, ranks: int, first_sample: int = 0) -> None:
        self.batch, self.rank, self.ranks, self.first_sample = batch, rank, ranks, first_sample

    def __iter__(self) -> Iterator[list[int]]:
        start = self.first_sample + self.rank * self.batch
        while True:
            yield list(range(start, start + self.batch))
            start += self.ranks * self.batch


def make_loader(
    dataset: Tokens, config: TrainConfig, rank: int, ranks: int, first_sample: int = 0, *, pin: bool = False
) -> DataLoader[Tensor]:
    """Batches [data.batch, sequence + 1] for data-parallel rank `rank` of `ranks`."""
    return DataLoader(
        dataset,
        batch_sampler=ShardSampler(config.data.batch, rank, ranks, first_sample),
        num_workers=config.data.workers,
        pin_memory=pin and config.data.pin_memory,
        persistent_workers=config.data.workers > 0,
    )


# AdamW for any mix of plain and sharded parameters, its learning rate, and clipping over the mesh.


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
    nsys_capture.rest()
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
