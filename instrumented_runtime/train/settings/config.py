"""The configuration of a training run: nested frozen dataclasses that validate themselves and name the option.

An option is written `section.name`, on the command line (`--set ddp.bucket_cap_mb=1`), in a TOML file
and in every message about it. No torch here: the command line reads this before it starts any worker.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.record.capture_options import option_texts
from gpuscope.instrumented_runtime.train.settings.mesh_axes import MODEL_PARALLEL


def _option(default: Any, text: str) -> Any:
    return field(default=default, metadata={"help": text})


def _recording_option(name: str, default: Any) -> Any:
    """An option of recordings, with possibly another default."""
    text = option_texts()[name].help
    return _option(default, text[0].lower() + text[1:].rstrip("."))


def check(good: bool, option: str, problem: str, hint: str | None = None) -> None:
    """Raise `UsageError` that names `option` unless `good`."""
    if not good:
        raise UsageError(f"{option}: {problem}", hint=hint)


def _at_least(section: str, config: Any, least: int, *names: str) -> None:
    for name in names:
        value = getattr(config, name)
        check(value >= least, f"{section}.{name}", f"must be at least {least}, not {value}")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The GPT's size. `experts` > 0 makes it the mixture-of-experts form."""

    layers: int = _option(2, "transformer blocks")
    width: int = _option(128, "hidden size")
    heads: int = _option(4, "attention heads")
    vocabulary: int = _option(512, "rows of the embedding")
    experts: int = _option(0, "experts per MoE block; 0 = dense")
    experts_per_token: int = _option(2, "experts each token is routed to")

    def __post_init__(self) -> None:
        _at_least("model", self, 1, "layers", "width", "heads", "experts_per_token")
        _at_least("model", self, 2, "vocabulary")
        _at_least("model", self, 0, "experts")
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

    path: str = _option("", "text or byte file to train on; empty = generated tokens")
    batch: int = _option(8, "sequences per data-parallel rank and micro-step")
    sequence: int = _option(128, "tokens per sequence")
    workers: int = _option(0, "DataLoader worker processes per rank")
    pin_memory: bool = _option(True, "page-locked batches where the device is a GPU")

    def __post_init__(self) -> None:
        _at_least("data", self, 1, "batch")
        _at_least("data", self, 2, "sequence")
        _at_least("data", self, 0, "workers")


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """DistributedDataParallel's knobs; `None` keeps PyTorch's own default."""

    bucket_cap_mb: float | None = _option(None, "bucket size; none = 25 MiB with a 1 MiB first bucket")
    static_graph: bool = _option(False, "promise that the graph never changes")
    gradient_as_bucket_view: bool = _option(False, "gradients live in the buckets")
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = _option("none", "gradient compression")
    powersgd_rank: int = _option(1, "rank of PowerSGD's approximation")

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None:
            check(self.bucket_cap_mb > 0, "ddp.bucket_cap_mb", f"must be positive, not {self.bucket_cap_mb}")
        _at_least("ddp", self, 1, "powersgd_rank")


@dataclass(frozen=True, slots=True)
class FsdpConfig:
    """FSDP2's knobs, for zero2, zero3 (fsdp) and hsdp."""

    reshard_after_forward: bool | int | None = _option(
        None, "none = FSDP2's default (zero2, pp: false); an integer = a smaller reshard group"
    )
    mixed_precision: Literal["none", "bf16", "fp16"] = _option("none", "dtype of parameters in compute")
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = _option("fp32", "dtype of the gradients' reduction")
    prefetch: int = _option(0, "blocks prefetched ahead, forward and backward; 0 = FSDP2's own")
    cpu_offload: bool = _option(False, "keep the shards in host memory")

    def __post_init__(self) -> None:
        _at_least("fsdp", self, 0, "prefetch")


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """Tensor parallelism's options."""

    sequence_parallel: bool = _option(True, "shard norms and residuals over the sequence")
    loss_parallel: bool = _option(True, "keep the logits sharded over the vocabulary in the loss")


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Pipeline parallelism's schedule."""

    schedule: Literal["gpipe", "1f1b", "interleaved1f1b", "zbv", "interleaved_zero_bubble"] = _option(
        "1f1b", "order of the micro-batches"
    )
    micro_batches: int = _option(4, "micro-batches that data.batch is cut into")
    stages_per_rank: int = _option(2, "virtual stages per rank of the interleaved schedules")
    layers_per_stage: str = _option("", "layers of each stage, such as 3,1; empty = even")

    def __post_init__(self) -> None:
        _at_least("pipeline", self, 1, "micro_batches", "stages_per_rank")


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Context parallelism's method."""

    method: Literal["ring", "ulysses"] = _option("ring", "ring attention or all-to-all over heads")
    rotation: Literal["allgather", "alltoall"] = _option("alltoall", "how the ring moves keys and values")
    balance: bool = _option(True, "give each rank a head and a tail chunk, so causal work is even (ring)")


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """AdamW."""

    lr: float = _option(3e-4, "learning rate after warm-up")
    warmup: int = _option(10, "steps of linear warm-up")
    beta1: float = _option(0.9, "decay of the mean")
    beta2: float = _option(0.95, "decay of the square")
    weight_decay: float = _option(0.1, "decoupled weight decay")
    clip: float = _option(1.0, "largest gradient norm; 0 = no clipping")
    fused: bool = _option(False, "one kernel for all parameters")

    def __post_init__(self) -> None:
        check(self.lr > 0, "optimizer.lr", f"must be positive, not {self.lr}")
        check(self.clip >= 0, "optimizer.clip", f"must not be negative: {self.clip}")
        _at_least("optimizer", self, 0, "warmup")


@dataclass(frozen=True, slots=True)
class CheckpointConfig:
    """Distributed checkpoints: when, where, and from where to resume."""

    every: int = _option(0, "steps between checkpoints; 0 = none")
    folder: str = _option("", "where; empty = checkpoints/ in the run folder")
    resume: str = _option("", "run folder or checkpoint to go on from")
    keep: int = _option(2, "newest checkpoints kept")

    def __post_init__(self) -> None:
        _at_least("checkpoint", self, 0, "every")
        _at_least("checkpoint", self, 1, "keep")


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """Recording. The profiler skips `wait` steps, warms up, and records `active` ones."""

    profile: bool = _option(True, "record a torch.profiler trace per rank")
    wait: int = _recording_option("wait", 1)
    warmup: int = _recording_option("warmup", 1)
    active: int = _recording_option("active", 8)
    record_shapes: bool = _recording_option("record_shapes", True)
    with_stack: bool = _recording_option("with_stack", False)
    profile_memory: bool = _recording_option("profile_memory", False)
    collectives: bool = _recording_option("collectives", True)
    hang_timeout_s: float = _option(0.0, "report a collective that takes longer; 0 = half of train.timeout_s")

    def __post_init__(self) -> None:
        _at_least("capture", self, 0, "wait", "warmup", "hang_timeout_s")
        _at_least("capture", self, 1, "active")


@dataclass(frozen=True, slots=True)
class MeasureConfig:
    """Measures of each step."""

    write: bool = _option(True, "write measures/rank{r}.jsonl")
    peak_tflops: float = _option(0.0, "peak of a device, for MFU; 0 = by its name")
    loss_every: int = _option(10, "steps between readings of the loss on a GPU, each of which waits for it")

    def __post_init__(self) -> None:
        _at_least("measures", self, 0, "peak_tflops")
        _at_least("measures", self, 1, "loss_every")


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """The training loop."""

    steps: int = _option(10, "optimizer steps in the whole run, resumed ones included")
    accumulate: int = _option(1, "micro-steps whose gradients are summed before each optimizer step")
    precision: Literal["fp32", "bf16"] = _option("fp32", "autocast dtype of compute")
    activation_checkpointing: Literal["none", "block", "every_second"] = _option(
        "none", "recompute blocks in backward to save memory"
    )
    compile: bool = _option(False, "torch.compile each block")
    cuda_graph: bool = _option(False, "replay forward and backward as CUDA graphs (single and ddp on GPUs)")
    gc_every: int = _option(0, "collect garbage by hand, between steps, every so many; 0 = leave it to Python")
    seed: int = _option(0, "seed of the weights and of generated tokens")
    device: Literal["auto", "cpu", "cuda"] = _option("auto", "auto = a GPU where there is one")
    timeout_s: float = _option(300.0, "seconds a collective may take")

    def __post_init__(self) -> None:
        _at_least("train", self, 1, "steps", "accumulate")
        _at_least("train", self, 0, "gc_every")
        check(self.timeout_s > 0, "train.timeout_s", f"must be positive, not {self.timeout_s}")


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    """Which parallelisms, and how many ways each; 0 = what the world size leaves over.

    `dp` counts data-parallel ranks other than the expert-parallel ones; hsdp splits it into
    dp / shard replicas of `shard` shards.
    """

    data: Literal["none", "ddp", "zero1", "zero2", "zero3", "hsdp"] = _option(
        "none", "how data-parallel ranks share parameters and gradients"
    )
    dp: int = _option(0, "data-parallel ranks")
    shard: int = _option(2, "ranks in each shard group of hsdp")
    tp: int = _option(1, "tensor-parallel ranks")
    pp: int = _option(1, "pipeline ranks")
    cp: int = _option(1, "context-parallel ranks")
    ep: int = _option(1, "expert-parallel ranks")

    def __post_init__(self) -> None:
        _at_least("parallel", self, 0, "dp")
        _at_least("parallel", self, 1, "shard", *MODEL_PARALLEL)


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """Everything about one run; `parallel_spec.validate` checks it against a world size."""

    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    ddp: DdpConfig = field(default_factory=DdpConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    tensor: TensorConfig = field(default_factory=TensorConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    capture: CaptureConfig = field(default_factory=CaptureConfig)
    measures: MeasureConfig = field(default_factory=MeasureConfig)
    train: LoopConfig = field(default_factory=LoopConfig)

    def replace(self, section: str, **values: Any) -> TrainConfig:
        """A copy with options of one section changed, checked again."""
        changed = dataclasses.replace(getattr(self, section), **values)
        return dataclasses.replace(self, **{section: changed})

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Sections of plain values, as `from_dict` takes them."""
        return dataclasses.asdict(self)


def options() -> Iterator[tuple[str, str, Any, str]]:
    """Every option as (name, type, default, help), in order."""
    for section in dataclasses.fields(TrainConfig):
        kind = section.default_factory
        assert isinstance(kind, type)
        for item in dataclasses.fields(kind):
            yield f"{section.name}.{item.name}", str(item.type), item.default, item.metadata["help"]


def from_dict(sections: Mapping[str, Mapping[str, Any]]) -> TrainConfig:
    """A checked configuration from sections of options; text is converted ("4" → 4, "none" → None).

    Raises `UsageError` naming the option that is unknown, of the wrong type, or out of range.
    """
    known = [name for name, *_ in options()]
    plain: dict[str, dict[str, Any]] = {}
    for section, values in sections.items():
        for name, value in values.items():
            option = f"{section}.{name}"
            if option not in known:
                raise UsageError(f"{option}: no such option", hint=_nearest(option, known))
            none_is_text = option in _NONE_IS_A_WORD
            plain.setdefault(section, {})[name] = None if value == "none" and not none_is_text else value
    try:
        return msgspec.convert(plain, TrainConfig, strict=False)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"{place.rstrip('`') or 'config'}: {message}") from None


_NONE_IS_A_WORD = {"parallel.data", "ddp.comm_hook", "fsdp.mixed_precision", "train.activation_checkpointing"}


def _nearest(option: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(option, known, 1, 0.5)
    listing = "`gpuscope train --list-options` lists them"
    return f"did you mean {close[0]}? {listing}" if close else listing
