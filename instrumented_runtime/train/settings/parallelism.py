"""What a parallelism is to everything but torch: its name, its axis of the mesh, its options and its checks.

The records stand in `parallelisms/`, one file each; `train/parallel/` holds what they do to a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gpuscope.instrumented_runtime.train.settings.config import TrainConfig


@dataclass(frozen=True)
class Axis:
    """A dimension of the device mesh. Its name is that in manifests and in process groups (`mesh_tp`)."""

    name: str
    place: int
    """Axes are ordered by it, outermost first: ranks of the innermost axis are neighbours."""
    own_sequences: bool = False
    """Its ranks read different sequences."""
    averages_gradients: bool = False
    """Gradients are averaged over it: its ranks see different sequences, or parts of them."""
    own_layers: bool = False
    """Its ranks hold different layers."""


REPLICATE = Axis("replicate", 20, own_sequences=True, averages_gradients=True)
SHARD = Axis("shard", 30, own_sequences=True, averages_gradients=True)
"""The two axes of data parallelism: ranks with all of the parameters, and ranks that share them."""


@dataclass(frozen=True)
class Degrees:
    """The mesh's sizes, outermost axis first; their product is the world size."""

    sizes: Mapping[Axis, int]

    def __getitem__(self, axis: Axis) -> int:
        return self.sizes.get(axis, 1)

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return math.prod(size for axis, size in self.sizes.items() if axis.own_sequences)

    @property
    def gradient_ranks(self) -> int:
        """Ranks over which gradients are averaged."""
        return math.prod(size for axis, size in self.sizes.items() if axis.averages_gradients)

    def as_dict(self) -> dict[str, int]:
        """The sizes by name, outermost first."""
        return {axis.name: size for axis, size in self.sizes.items()}

    def describe(self) -> str:
        """Such as `pp=2 tp=2`; `single` when every size is one."""
        return " ".join(f"{name}={size}" for name, size in self.as_dict().items() if size > 1) or "single"


@dataclass(frozen=True)
class Plan:
    """A configuration, and the mesh it gives in a world."""

    config: TrainConfig
    degrees: Degrees
    data: DataParallelism


@dataclass(frozen=True)
class Need:
    """`options` (a section, or single ones) do something only where `met`; `words` say where that is."""

    options: tuple[str, ...]
    met: Callable[[Plan], bool]
    words: str


Waits = Literal["in torch", "in trainer", "in reducer"]
"""Where a rank waits for a parallelism's communication: inside PyTorch, where nothing tells without a trace; in the
trainer itself, which measures it on a CPU; or behind DDP's reducer, which tells on every device."""


@dataclass(frozen=True, kw_only=True)
class Parallelism:
    """What all parallelisms have."""

    place: int
    """Options, help and documentation list the parallelisms by it."""
    names: tuple[str, ...]
    """As `--parallel` spells it; the first is the usual one."""
    about: str
    """Its line in docs/runtime.md."""
    file: str
    """The module of `train/parallel/` whose `apply(build)` carries it out."""
    section: str = ""
    options: type[Any] | None = None
    """Its section of options, a dataclass; several parallelisms may use the one of another."""
    needs: tuple[Need, ...] = ()
    """What its options need in order to do anything; else they are refused."""
    check: Callable[[Plan], None] = lambda _: None
    """Raises `UsageError` for what it can't be combined with; called for every plan, whether it has this one or not."""
    waits: Callable[[TrainConfig], Waits] = lambda _: "in torch"


@dataclass(frozen=True, kw_only=True)
class ModelParallelism(Parallelism):
    """One that divides the model or a sequence over an axis of its own, whose name is its option in `parallel`."""

    axis: Axis
    size: str
    """Help of its size."""
    divides: tuple[str, ...] = ()
    """Options that must be a multiple of its size."""
    not_with: tuple[Axis, ...] = ()
    """What it can't be combined with, whatever else is changed."""


def replicas(_: TrainConfig, ranks: int) -> tuple[int, int]:
    """All data-parallel ranks are replicas."""
    return ranks, 1


def shards(_: TrainConfig, ranks: int) -> tuple[int, int]:
    """All data-parallel ranks share the parameters."""
    return 1, ranks


@dataclass(frozen=True, kw_only=True)
class DataParallelism(Parallelism):
    """One way for data-parallel ranks to share gradients, and perhaps parameters; a run has exactly one."""

    kind: str
    """Its value of `parallel.data`."""
    split: Callable[[TrainConfig, int], tuple[int, int]] = field(default=replicas)
    """Sizes of `REPLICATE` and `SHARD` for a number of data-parallel ranks. Raises `UsageError`."""
    shards_parameters: bool = False
    cuda_graphs: bool = False
    """Whether blocks captured as CUDA graphs work with it."""
