"""DistributedDataParallel: every rank holds the model, and gradients are averaged in buckets during backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.instrumented_runtime.train.settings.config import (
    SHARD,
    Axis,
    DataParallelism,
    ModelParallelism,
    Need,
    Plan,
    TrainConfig,
    at_least,
    check,
    option,
    replicas,
    shards,
)

# FSDP2, which is ZeRO-3: parameters are sharded too, and gathered block by block.


@dataclass(frozen=True, slots=True)
class FsdpConfig:
    """FSDP2's knobs, for zero2, zero3 (fsdp) and hsdp."""

    reshard_after_forward: bool | int | None = option(
        None, "none = FSDP2's default (zero2, pp: false); an integer = a smaller reshard group"
    )
    mixed_precision: Literal["none", "bf16", "fp16"] = option("none", "dtype of parameters in compute")
    reduce_dtype: Literal["fp32", "bf16", "fp16"] = option("fp32", "dtype of the gradients' reduction")
    prefetch: int = option(0, "blocks prefetched ahead, forward and backward; 0 = FSDP2's own")
    cpu_offload: bool = option(False, "keep the shards in host memory")

    def __post_init__(self) -> None:
        at_least("fsdp", self, 0, "prefetch")


def _check(plan: Plan) -> None:
    reshard, ranks = plan.config[FsdpConfig].reshard_after_forward, plan.degrees[SHARD]
    if isinstance(reshard, int) and not isinstance(reshard, bool):
        check(
            reshard > 0 and ranks % reshard == 0,
            "fsdp.reshard_after_forward",
            f"{reshard} does not divide the {ranks} ranks of a shard group",
        )


FSDP_PARALLELISM = DataParallelism(
    place=40,
    names=("fsdp", "zero3"),
    kind="zero3",
    about="FSDP2; `fsdp.*`: resharding, mixed precision, prefetch, CPU offload",
    file="data_parallel.fsdp_apply",
    section="fsdp",
    options=FsdpConfig,
    needs=(Need(("fsdp",), lambda plan: plan.data.shards_parameters, "--parallel zero2, fsdp or hsdp"),),
    check=_check,
    split=shards,
    shards_parameters=True,
)


# HSDP: FSDP2 in groups of ranks, and replicas of these groups.


def _split(config: TrainConfig, ranks: int) -> tuple[int, int]:
    shard = config.parallel.shard
    check(ranks % shard == 0, "parallel.shard", f"{shard} does not divide the {ranks} data-parallel ranks")
    check(
        1 < shard < ranks,
        "parallel.shard",
        f"{shard} of {ranks} data-parallel ranks leave hsdp nothing to {'replicate' if shard > 1 else 'shard'}",
        "fsdp, ddp, or more processes",
    )
    return ranks // shard, shard


HSDP_PARALLELISM = DataParallelism(
    place=50,
    names=("hsdp",),
    kind="hsdp",
    about="FSDP2 in groups of `parallel.shard` ranks, replicated over the groups",
    file="data_parallel.fsdp_apply",
    needs=(Need(("parallel.shard",), lambda plan: plan.data.kind == "hsdp", "--parallel hsdp"),),
    split=_split,
    shards_parameters=True,
)


# ZeRO-1: DDP whose optimizer state is sharded over the ranks.

ZERO1_PARALLELISM = DataParallelism(
    place=20,
    names=("zero1",),
    kind="zero1",
    about="DDP with ZeroRedundancyOptimizer",
    file="data_parallel.zero1_apply",
)


# ZeRO-2: gradients and optimizer state are sharded, parameters only outside of forward and backward.

ZERO2_PARALLELISM = DataParallelism(
    place=30,
    names=("zero2",),
    kind="zero2",
    about="FSDP2 with parameters unsharded between forward and backward",
    file="data_parallel.fsdp_apply",
    split=shards,
    shards_parameters=True,
)


# No data parallelism. Ranks of other axes that hold the same parameters are synchronised as by DDP.


def _alone(config: TrainConfig, ranks: int) -> tuple[int, int]:
    check(
        ranks == 1,
        "parallel.data",
        f"'none' leaves {ranks} data-parallel ranks that would never synchronise",
        "choose ddp, zero1, zero2, fsdp or hsdp, or fewer processes",
    )
    return replicas(config, ranks)


SINGLE_PARALLELISM = DataParallelism(
    place=0,
    names=("single",),
    kind="none",
    about="one process; replicas that other parallelisms leave are synchronised as under `ddp`",
    file="data_parallel",
    split=_alone,
    cuda_graphs=True,
    waits=lambda _: "in reducer",
)


# Tensor parallelism: each rank holds a part of every matrix.

TP = Axis("tp", 60)


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """Tensor parallelism's options."""

    sequence_parallel: bool = option(True, "shard norms and residuals over the sequence")
    loss_parallel: bool = option(True, "keep the logits sharded over the vocabulary in the loss")


def _tensor_check(plan: Plan) -> None:
    if plan.degrees[TP] == 1:
        return
    check(
        plan.data.shards_parameters or plan.degrees.gradient_ranks == 1,
        "parallel.data",
        f"{plan.data.kind!r} takes no tensor-parallel parameters, which cp or dp beside tp would need",
        "use fsdp with tp",
    )
    check(
        plan.config.model.experts == 0,
        "parallel.tp",
        "cuts no mixture-of-experts blocks",
        "--parallel ep for these, or model.experts=0",
    )


TENSOR_PARALLELISM = ModelParallelism(
    place=60,
    names=("tp",),
    axis=TP,
    size="tensor-parallel ranks",
    about="column- and row-sharded layers, with sequence and loss parallelism (`tensor.*`)",
    file="model_parallel",
    section="tensor",
    options=TensorConfig,
    needs=(Need(("tensor",), lambda plan: plan.degrees[TP] > 1, "--parallel tp"),),
    divides=("model.heads", "model.vocabulary", "data.sequence"),
    check=_tensor_check,
)


# Context parallelism: each rank holds a part of every sequence.

CP = Axis("cp", 40, averages_gradients=True)


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """Context parallelism's method."""

    method: Literal["ring", "ulysses"] = option("ring", "ring attention or all-to-all over heads")
    rotation: Literal["allgather", "alltoall"] = option("alltoall", "how the ring moves keys and values")
    balance: bool = option(True, "give each rank a head and a tail chunk, so causal work is even (ring)")

    @property
    def is_balanced(self) -> bool:
        """Whether each rank holds a head and a tail chunk; only the ring has uneven work to balance."""
        return self.balance and self.method == "ring"


def _context_check(plan: Plan) -> None:
    config, ranks = plan.config, plan.degrees[CP]
    context, heads = config[ContextConfig], config.model.heads // plan.degrees[TP]
    check(
        context.method != "ulysses" or heads % ranks == 0,
        "model.heads",
        f"{heads} per rank is not a multiple of parallel.cp={ranks}",
    )
    check(
        ranks == 1 or not context.is_balanced or config.data.sequence % (2 * ranks) == 0,
        "data.sequence",
        f"{config.data.sequence} does not cut into 2 × parallel.cp={ranks} chunks",
        "--set context.balance=false",
    )


CONTEXT_PARALLELISM = ModelParallelism(
    place=80,
    names=("cp",),
    axis=CP,
    size="context-parallel ranks",
    about="ring attention, or Ulysses' all-to-all (`context.*`)",
    file="model_parallel.context_parallel_apply",
    section="context",
    options=ContextConfig,
    needs=(
        Need(("context",), lambda plan: plan.degrees[CP] > 1, "--parallel cp"),
        Need(
            ("context.rotation", "context.balance"),
            lambda plan: plan.config[ContextConfig].method == "ring",
            "context.method=ring",
        ),
    ),
    divides=("data.sequence",),
    check=_context_check,
    waits=lambda config: "in torch" if config[ContextConfig].method == "ring" else "in trainer",
)


# Pipeline parallelism: each rank holds some of the layers, and micro-batches pass through them.

PP = Axis("pp", 10, own_layers=True)
_INTERLEAVED = ("interleaved1f1b", "interleaved_zero_bubble")


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Pipeline parallelism's schedule."""

    schedule: Literal["gpipe", "1f1b", "interleaved1f1b", "zbv", "interleaved_zero_bubble"] = option(
        "1f1b", "order of the micro-batches"
    )
    micro_batches: int = option(4, "micro-batches that data.batch is cut into")
    stages_per_rank: int = option(2, "virtual stages per rank of the interleaved schedules")
    layers_per_stage: str = option("", "layers of each stage, such as 3,1; empty = even")

    def __post_init__(self) -> None:
        at_least("pipeline", self, 1, "micro_batches", "stages_per_rank")


def stages_per_rank(config: TrainConfig) -> int:
    """Pipeline stages each rank holds under the chosen schedule."""
    pipeline = config[PipelineConfig]
    if pipeline.schedule == "zbv":
        return 2
    return pipeline.stages_per_rank if pipeline.schedule in _INTERLEAVED else 1


def layers_of_stages(layers: int, stages: int, wanted: str = "") -> list[range]:
    """Layers of each stage: as `wanted` ("3,1") gives them, else as even as possible.

    The earlier stages take the remainder, since the last one also has the head. Raises `UsageError` unless
    `wanted` is a positive count per stage and all of them sum to `layers`.
    """
    if wanted:
        counts = [int(part) if part.strip().isdigit() else 0 for part in wanted.split(",")]
    else:
        counts = [layers // stages + (stage < layers % stages) for stage in range(stages)]
    check(
        not wanted or (len(counts) == stages and min(counts) > 0 and sum(counts) == layers),
        "pipeline.layers_per_stage",
        f"{wanted!r} is not {stages} positive counts that sum to {layers}",
    )
    ends = [sum(counts[: i + 1]) for i in range(stages)]
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


def _pipeline_check(plan: Plan) -> None:
    config, ranks = plan.config, plan.degrees[PP]
    if ranks == 1:
        return
    pipeline, stages = config[PipelineConfig], ranks * stages_per_rank(config)
    check(
        config.model.layers >= stages,
        "model.layers",
        f"{config.model.layers} do not fill {stages} pipeline stages",
        f"--set model.layers={stages}",
    )
    check(
        config.data.batch % pipeline.micro_batches == 0,
        "pipeline.micro_batches",
        f"{pipeline.micro_batches} does not divide data.batch={config.data.batch}",
    )
    check(
        pipeline.schedule not in _INTERLEAVED or pipeline.micro_batches % ranks == 0,
        "pipeline.micro_batches",
        f"{pipeline.schedule} needs a multiple of parallel.pp={ranks}, not {pipeline.micro_batches}",
    )
    layers_of_stages(config.model.layers, stages, pipeline.layers_per_stage)
    _check_schedule(plan, pipeline.schedule)


def _check_schedule(plan: Plan, schedule: str) -> None:
    """What PyTorch's schedules with several stages per rank can't do with data parallelism."""
    shared = plan.degrees.gradient_ranks > 1
    check(
        not (schedule in (*_INTERLEAVED, "zbv") and shared and not plan.data.shards_parameters),
        "pipeline.schedule",
        f"{schedule} does not synchronise DDP's gradients",
        "use fsdp, or the schedule gpipe or 1f1b",
    )
    split_backward = schedule in ("interleaved_zero_bubble", "zbv")
    check(
        not (split_backward and shared and plan.config[FsdpConfig].reshard_after_forward not in (None, False)),
        "fsdp.reshard_after_forward",
        f"{schedule} loses the gradients of parameters that were resharded",
        "leave it out, or the schedule 1f1b",
    )


PIPELINE_PARALLELISM = ModelParallelism(
    place=70,
    names=("pp",),
    axis=PP,
    size="pipeline ranks",
    about="GPipe, 1F1B, interleaved 1F1B, interleaved zero bubble, ZBV (`pipeline.*`)",
    file="model_parallel.pipeline_parallel_apply",
    section="pipeline",
    options=PipelineConfig,
    needs=(
        Need(("pipeline",), lambda plan: plan.degrees[PP] > 1, "--parallel pp"),
        Need(
            ("pipeline.stages_per_rank",),
            lambda plan: plan.config[PipelineConfig].schedule in _INTERLEAVED,
            "pipeline.schedule=interleaved1f1b or interleaved_zero_bubble",
        ),
    ),
    check=_pipeline_check,
    waits=lambda _: "in trainer",
)


# Expert parallelism: each rank holds some of the experts, and tokens are sent to theirs.

EP = Axis("ep", 50, own_sequences=True, averages_gradients=True)


def _expert_check(plan: Plan) -> None:
    if plan.degrees[EP] == 1:
        return
    check(plan.config.model.experts > 0, "model.experts", "expert parallelism needs experts", "--preset tiny-moe")
    check(plan.data.kind != "zero1", "parallel.data", "zero1 shards no expert-parallel optimizer", "use ddp")


EXPERT_PARALLELISM = ModelParallelism(
    place=90,
    names=("ep",),
    axis=EP,
    size="expert-parallel ranks",
    about="experts over ranks, uneven all-to-all; needs `--preset tiny-moe` or `model.experts`",
    file="model_parallel.expert_parallel_apply",
    divides=("model.experts",),
    not_with=(TP, PP),
    check=_expert_check,
    waits=lambda _: "in trainer",
)


@dataclass(frozen=True, slots=True)
class DdpConfig:
    """DistributedDataParallel's knobs; `None` keeps PyTorch's own default."""

    bucket_cap_mb: float | None = option(None, "bucket size; none = 25 MiB with a 1 MiB first bucket")
    static_graph: bool = option(False, "promise that the graph never changes")
    gradient_as_bucket_view: bool = option(False, "gradients live in the buckets")
    comm_hook: Literal["none", "fp16", "bf16", "powersgd"] = option("none", "gradient compression")
    powersgd_rank: int = option(1, "rank of PowerSGD's approximation")

    def __post_init__(self) -> None:
        if self.bucket_cap_mb is not None:
            check(self.bucket_cap_mb > 0, "ddp.bucket_cap_mb", f"must be positive, not {self.bucket_cap_mb}")
        at_least("ddp", self, 1, "powersgd_rank")


DDP_PARALLELISM = DataParallelism(
    place=10,
    names=("ddp",),
    kind="ddp",
    about="DistributedDataParallel; `ddp.*`: bucket size, static graph, bucket views, hooks fp16, bf16, PowerSGD",
    file="data_parallel",
    section="ddp",
    options=DdpConfig,
    needs=(
        Need(("ddp",), lambda plan: not plan.data.shards_parameters, "--parallel ddp or zero1"),
        Need(("ddp",), lambda plan: plan.degrees.gradient_ranks > 1, "more than one data-parallel rank"),
        Need(
            ("ddp.powersgd_rank",),
            lambda plan: plan.config[DdpConfig].comm_hook == "powersgd",
            "ddp.comm_hook=powersgd",
        ),
    ),
    cuda_graphs=True,
    waits=lambda _: "in reducer",
)


PARALLELISMS = (
    CONTEXT_PARALLELISM,
    DDP_PARALLELISM,
    EXPERT_PARALLELISM,
    FSDP_PARALLELISM,
    HSDP_PARALLELISM,
    PIPELINE_PARALLELISM,
    SINGLE_PARALLELISM,
    TENSOR_PARALLELISM,
    ZERO1_PARALLELISM,
    ZERO2_PARALLELISM,
)
