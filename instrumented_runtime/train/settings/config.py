"""The configuration of a training run: nested frozen dataclasses that validate themselves and name the option.

An option is written `section.name`, on the command line (`--set ddp.bucket_cap_mb=1`), in a TOML file
and in every message about it. No torch here: the command line reads this before it starts any worker.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeVar, cast

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.capture_options import option_texts

# What the sections of a configuration are made of: an option with its line of help, and its checks.


def option(default: Any, text: str) -> Any:
    """A dataclass field with a line of help."""
    return field(default=default, metadata={"help": text})


def check(good: bool, name: str, problem: str, hint: str | None = None) -> None:
    """Raise `UsageError` that names the option unless `good`."""
    if not good:
        raise UsageError(f"{name}: {problem}", hint=hint)


def at_least(section: str, config: Any, least: int, *names: str) -> None:
    """Raise `UsageError` that names the first of these options of a section that is below `least`."""
    for name in names:
        value = getattr(config, name)
        check(value >= least, f"{section}.{name}", f"must be at least {least}, not {value}")


Section = TypeVar("Section")


def _recording_option(name: str, default: Any) -> Any:
    """An option of recordings, with possibly another default."""
    text = option_texts()[name].help
    return option(default, text[0].lower() + text[1:].rstrip("."))


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The GPT's size. `experts` > 0 makes it the mixture-of-experts form."""

    layers: int = option(2, "transformer blocks")
    width: int = option(128, "hidden size")
    heads: int = option(4, "attention heads")
    vocabulary: int = option(512, "rows of the embedding")
    experts: int = option(0, "experts per MoE block; 0 = dense")
    experts_per_token: int = option(2, "experts each token is routed to")

    def __post_init__(self) -> None:
        at_least("model", self, 1, "layers", "width", "heads", "experts_per_token")
        at_least("model", self, 2, "vocabulary")
        at_least("model", self, 0, "experts")
        check(
            self.width % (2 * self.heads) == 0,
            "model.width",
            f"{self.width} is not an even multiple of model.heads={self.heads}",
            "rotary embeddings need an even size per head",
        )
        if self.experts:
            check(
                self.experts_per_token <= self.experts,
                "model.experts_per_token",
                f"{self.experts_per_token} of model.experts={self.experts}",
            )


@dataclass(frozen=True, slots=True)
class DataConfig:
    """Training data, batch size per rank, and loader processes."""

    path: str = option("", "text or byte file to train on; empty = generated tokens")
    batch: int = option(8, "sequences per data-parallel rank and micro-step")
    sequence: int = option(128, "tokens per sequence")
    workers: int = option(0, "DataLoader worker processes per rank")
    pin_memory: bool = option(True, "page-locked batches where the device is a GPU")

    def __post_init__(self) -> None:
        at_least("data", self, 1, "batch")
        at_least("data", self, 2, "sequence")
        at_least("data", self, 0, "workers")


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW."""

    lr: float = option(3e-4, "learning rate after warm-up")
    warmup: int = option(10, "steps of linear warm-up")
    beta1: float = option(0.9, "decay of the mean")
    beta2: float = option(0.95, "decay of the square")
    weight_decay: float = option(0.1, "decoupled weight decay")
    clip: float = option(1.0, "largest gradient norm; 0 = no clipping")
    fused: bool = option(False, "one kernel for all parameters")

    def __post_init__(self) -> None:
        check(self.lr > 0, "optimizer.lr", f"must be positive, not {self.lr}")
        check(self.clip >= 0, "optimizer.clip", f"must not be negative: {self.clip}")
        at_least("optimizer", self, 0, "warmup")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Distributed checkpoints: when, where, and from where to resume."""

    every: int = option(0, "steps between checkpoints; 0 = none")
    folder: str = option("", "where; empty = checkpoints/ in the run folder")
    resume: str = option("", "run folder or checkpoint to go on from")
    keep: int = option(2, "newest checkpoints kept")

    def __post_init__(self) -> None:
        at_least("checkpoint", self, 0, "every")
        at_least("checkpoint", self, 1, "keep")


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """Recording. The profiler skips `wait` steps, warms up, and records `active` ones."""

    profile: bool = option(True, "record a torch.profiler trace per rank")
    wait: int = _recording_option("wait", 1)
    warmup: int = _recording_option("warmup", 1)
    active: int = _recording_option("active", 8)
    record_shapes: bool = _recording_option("record_shapes", True)
    with_stack: bool = _recording_option("with_stack", False)
    profile_memory: bool = _recording_option("profile_memory", False)
    collectives: bool = _recording_option("collectives", True)
    hang_timeout_s: float = option(0.0, "report a collective that takes longer; 0 = half of train.timeout_s")
    grace_s: float = _recording_option("grace_s", 10.0)

    def __post_init__(self) -> None:
        at_least("capture", self, 0, "wait", "warmup", "hang_timeout_s", "grace_s")
        at_least("capture", self, 1, "active")


@dataclass(frozen=True, slots=True)
class MeasureConfig:
    """Measures of each step."""

    write: bool = option(True, "write measures/rank{r}.jsonl")
    peak_tflops: float = option(0.0, "peak of a device, for MFU; 0 = by its name")
    loss_every: int = option(10, "steps between readings of the loss on a GPU, each of which waits for it")

    def __post_init__(self) -> None:
        at_least("measures", self, 0, "peak_tflops")
        at_least("measures", self, 1, "loss_every")


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """The training loop."""

    steps: int = option(10, "optimizer steps in the whole run, resumed ones included")
    accumulate: int = option(1, "micro-steps whose gradients are summed before each optimizer step")
    precision: Literal["fp32", "bf16"] = option("fp32", "autocast dtype of compute")
    activation_checkpointing: Literal["none", "block", "every_second"] = option(
        "none", "recompute blocks in backward to save memory"
    )
    compile: bool = option(False, "torch.compile each block")
    cuda_graph: bool = option(False, "replay forward and backward as CUDA graphs (single and ddp on GPUs)")
    gc_every: int = option(0, "collect garbage by hand, between steps, every so many; 0 = leave it to Python")
    seed: int = option(0, "seed of the weights and of generated tokens")
    device: Literal["auto", "cpu", "cuda"] = option("auto", "auto = a GPU where there is one")
    timeout_s: float = option(300.0, "seconds a collective may take")

    def __post_init__(self) -> None:
        at_least("train", self, 1, "steps", "accumulate")
        at_least("train", self, 0, "gc_every")
        check(self.timeout_s > 0, "train.timeout_s", f"must be positive, not {self.timeout_s}")


@dataclass(frozen=True)
class ParallelConfig:
    """Which parallelisms, and how many ways each; 0 = what the world size leaves over.

    `dp` counts data-parallel ranks other than the expert-parallel ones; hsdp splits it into
    dp / shard replicas of `shard` shards. `sections` adds the sizes of model parallelisms, and the kinds of `data`.
    """

    data: str = option("none", "how data-parallel ranks share parameters and gradients")
    dp: int = option(0, "data-parallel ranks")
    shard: int = option(2, "ranks in each shard group of hsdp")

    def __post_init__(self) -> None:
        at_least("parallel", self, 0, "dp")
        at_least("parallel", self, 1, *(item.name for item in dataclasses.fields(self)[2:]))

    def size(self, name: str) -> int:
        """Ranks of a model parallelism."""
        size: int = getattr(self, name)
        return size


class TrainConfig:
    """Everything about one run: these sections, and behind `parallel` those of parallelisms, which are read by their
    class (`config[PipelineConfig]`). `sections.from_dict` makes it, `parallel_spec.validate` checks it against a world
    size."""

    model: ModelConfig
    data: DataConfig
    parallel: ParallelConfig
    optimizer: OptimizerConfig
    checkpoint: CheckpointConfig
    capture: CaptureConfig
    measures: MeasureConfig
    train: LoopConfig

    def __getitem__(self, section: type[Section]) -> Section:
        return next(value for value in vars(self).values() if isinstance(value, section))

    def replace(self, section: str, **values: Any) -> Self:
        """A copy with options of one section changed, checked again."""
        changed = dataclasses.replace(getattr(self, section), **values)
        return dataclasses.replace(cast(Any, self), **{section: changed})  # type: ignore[no-any-return]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain values, as `from_dict` takes them."""
        return dataclasses.asdict(cast(Any, self))


# What a parallelism is to everything but torch: its name, its axis of the mesh, its options and its checks.
#
# The records stand in `parallelisms/`, one file each; `train/parallel/` holds what they do to a model.


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
