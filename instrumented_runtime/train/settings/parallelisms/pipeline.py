"""Pipeline parallelism: each rank holds some of the layers, and micro-batches pass through them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.option import at_least, check, option
from gpuscope.instrumented_runtime.train.settings.parallelism import Axis, ModelParallelism, Need, Plan
from gpuscope.instrumented_runtime.train.settings.parallelisms.fsdp import FsdpConfig

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


def _check(plan: Plan) -> None:
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


PARALLELISM = ModelParallelism(
    place=70,
    names=("pp",),
    axis=PP,
    size="pipeline ranks",
    about="GPipe, 1F1B, interleaved 1F1B, interleaved zero bubble, ZBV (`pipeline.*`)",
    file="pipeline_parallel",
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
    check=_check,
    waits=lambda _: "in trainer",
)
