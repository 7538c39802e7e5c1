"""The configuration of a training run: nested frozen dataclasses that validate themselves and name the option.

An option is written `section.name`, on the command line (`--set ddp.bucket_cap_mb=1`), in a TOML file
and in every message about it. No torch here: the command line reads this before it starts any worker.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeVar, cast

from gpuscope.instrumented_runtime.record.capture_options import option_texts
from gpuscope.instrumented_runtime.train.settings.option import at_least, check, option

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
