"""`--parallel pp=2+tp=2+fsdp` as options, and the checks that need the world size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig, check
from gpuscope.instrumented_runtime.train.settings.layout_checks import check_layers_per_stage
from gpuscope.instrumented_runtime.train.settings.mesh_axes import MODEL_PARALLEL, MeshAxis

DATA_PARALLEL = {
    "single": "none",
    "ddp": "ddp",
    "zero1": "zero1",
    "zero2": "zero2",
    "zero3": "zero3",
    "fsdp": "zero3",
    "hsdp": "hsdp",
}
NAMES = (*DATA_PARALLEL, *MODEL_PARALLEL, "3d")


@dataclass(frozen=True, slots=True)
class Degrees:
    """The mesh's sizes, outermost first; their product is the world size."""

    pp: int
    replicate: int
    shard: int
    cp: int
    ep: int
    tp: int

    @property
    def data_ranks(self) -> int:
        """Ranks that read different sequences."""
        return self.replicate * self.shard * self.ep

    def __getitem__(self, axis: MeshAxis) -> int:
        size: int = getattr(self, axis)
        return size

    def as_dict(self) -> dict[str, int]:
        """The sizes by name, outermost first."""
        return {str(axis): self[axis] for axis in MeshAxis}

    def describe(self) -> str:
        """Such as `pp=2 tp=2`; `single` when every size is one."""
        return " ".join(f"{name}={size}" for name, size in self.as_dict().items() if size > 1) or "single"


def parse_parallel(text: str, world_size: int) -> dict[str, Any]:
    """Options of section `parallel` for a `--parallel` value such as `ddp`, `tp=2+fsdp` or `3d`.

    A model parallelism without a size takes the processes that the others leave.
    Raises `UsageError` on an invalid name or size.
    """
    if text == "3d":
        check(world_size % 8 == 0, "--parallel 3d", f"needs a multiple of 8 processes, not {world_size}", "pp=2+tp=2")
        text = "pp=2+tp=2+fsdp"
    result: dict[str, Any] = {}
    unsized: list[str] = []
    for part in text.split("+"):
        name, _, size = part.strip().partition("=")
        if name not in NAMES or name == "3d":
            raise UsageError(f"--parallel: no parallelism {name!r}", hint=f"one of {', '.join(NAMES)}, joined by +")
        key = "dp" if name in DATA_PARALLEL else name
        if key in result or key in unsized:
            raise UsageError(f"--parallel: {name!r} after another of its kind in {text!r}")
        if name in DATA_PARALLEL:
            result["data"] = DATA_PARALLEL[name]
        if not size:
            unsized.append(key)
        elif not size.isdigit() or int(size) < 1:
            raise UsageError(f"--parallel: {part!r}: the size must be a positive integer")
        else:
            result[key] = int(size)
    return result | _remaining_sizes(result, unsized, world_size, text)


def _remaining_sizes(given: dict[str, Any], unsized: list[str], world_size: int, text: str) -> dict[str, Any]:
    if "dp" in unsized:
        unsized.remove("dp")  # worked out from the world size when the mesh is made
        if unsized:
            raise UsageError(
                f"--parallel {text}: give {unsized[0]} a size",
                hint=f"for example {text}=2".replace(text, unsized[0]),
            )
        return {}
    if len(unsized) > 1:
        raise UsageError(f"--parallel {text}: only one may go without a size", hint=f"give {unsized[0]} one")
    taken = math.prod(size for name, size in given.items() if name != "data")
    if unsized and world_size % taken:
        raise UsageError(f"--parallel {text}: the sizes given ({taken}) do not divide {world_size} processes")
    if unsized and world_size == taken:
        raise UsageError(f"--parallel {text}: {world_size} processes leave one for {unsized[0]}", hint="raise --nproc")
    return {unsized[0]: world_size // taken} if unsized else {}


def validate(config: TrainConfig, world_size: int) -> Degrees:
    """The mesh's sizes for a world, after every check that crosses sections. Raises `UsageError`."""
    parallel = config.parallel
    inner = parallel.tp * parallel.pp * parallel.cp * parallel.ep
    check(
        world_size % inner == 0,
        "parallel.tp × pp × cp × ep",
        f"{inner} does not divide the world of {world_size} processes",
        "change --nproc or the sizes",
    )
    dp = parallel.dp or world_size // inner
    check(
        dp * inner == world_size,
        "parallel.dp",
        f"{dp} × {inner} model-parallel ranks is not the world of {world_size} processes",
    )
    replicate, shard = _split_data_parallel(config, dp)
    degrees = Degrees(parallel.pp, replicate, shard, parallel.cp, parallel.ep, parallel.tp)
    _check_model(config, degrees)
    _check_combinations(config, degrees)
    return degrees


def _split_data_parallel(config: TrainConfig, dp: int) -> tuple[int, int]:
    kind, shard = config.parallel.data, config.parallel.shard
    if kind == "hsdp":
        check(dp % shard == 0, "parallel.shard", f"{shard} does not divide the {dp} data-parallel ranks")
        check(
            1 < shard < dp,
            "parallel.shard",
            f"{shard} of {dp} data-parallel ranks leave hsdp nothing to {'replicate' if shard > 1 else 'shard'}",
            "fsdp, ddp, or more processes",
        )
        return dp // shard, shard
    check(
        kind != "none" or dp == 1,
        "parallel.data",
        f"'none' leaves {dp} data-parallel ranks that would never synchronise",
        "choose ddp, zero1, zero2, fsdp or hsdp, or fewer processes",
    )
    return (1, dp) if kind in ("zero2", "zero3") else (dp, 1)


def _check_model(config: TrainConfig, degrees: Degrees) -> None:
    model, data = config.model, config.data
    for option, value, name in (
        ("model.heads", model.heads, MeshAxis.TP),
        ("model.vocabulary", model.vocabulary, MeshAxis.TP),
        ("data.sequence", data.sequence, MeshAxis.TP),
        ("data.sequence", data.sequence, MeshAxis.CP),
        ("model.experts", model.experts, MeshAxis.EP),
    ):
        size = degrees[name]
        check(value % size == 0, option, f"{value} is not a multiple of parallel.{name}={size}")
    check(
        degrees.ep == 1 or model.experts > 0,
        "model.experts",
        "expert parallelism needs experts",
        "--preset tiny-moe",
    )
    if degrees.cp > 1 and config.context.method == "ulysses":
        heads = model.heads // degrees.tp
        check(
            heads % degrees.cp == 0,
            "model.heads",
            f"{heads} per rank is not a multiple of parallel.cp={degrees.cp}",
        )
    if degrees.cp > 1 and config.context.method == "ring" and config.context.balance:
        check(
            data.sequence % (2 * degrees.cp) == 0,
            "data.sequence",
            f"{data.sequence} does not cut into 2 × parallel.cp={degrees.cp} chunks",
            "--set context.balance=false",
        )
    if degrees.pp > 1:
        _check_pipeline(config, degrees)
    reshard = config.fsdp.reshard_after_forward
    if isinstance(reshard, int) and not isinstance(reshard, bool):
        check(
            reshard > 0 and degrees.shard % reshard == 0,
            "fsdp.reshard_after_forward",
            f"{reshard} does not divide the {degrees.shard} ranks of a shard group",
        )


def stages_per_rank(config: TrainConfig) -> int:
    """Pipeline stages each rank holds under the chosen schedule."""
    looped = config.pipeline.schedule in ("interleaved1f1b", "interleaved_zero_bubble")
    if config.pipeline.schedule == "zbv":
        return 2
    return config.pipeline.stages_per_rank if looped else 1


def _check_pipeline(config: TrainConfig, degrees: Degrees) -> None:
    pipeline, stages = config.pipeline, degrees.pp * stages_per_rank(config)
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
    if pipeline.schedule in ("interleaved1f1b", "interleaved_zero_bubble"):
        check(
            pipeline.micro_batches % degrees.pp == 0,
            "pipeline.micro_batches",
            f"{pipeline.schedule} needs a multiple of parallel.pp={degrees.pp}, not {pipeline.micro_batches}",
        )
    check_layers_per_stage(pipeline.layers_per_stage, config.model.layers, stages)
    _check_schedule(config, degrees)


def _check_schedule(config: TrainConfig, degrees: Degrees) -> None:
    """What PyTorch's schedules with several stages per rank can't do with data parallelism."""
    schedule, kind = config.pipeline.schedule, config.parallel.data
    looped = schedule in ("interleaved1f1b", "interleaved_zero_bubble", "zbv")
    shared = degrees.data_ranks * degrees.cp > 1
    check(
        not (looped and shared and kind in ("none", "ddp", "zero1")),
        "pipeline.schedule",
        f"{schedule} does not synchronise DDP's gradients",
        "use fsdp, or the schedule gpipe or 1f1b",
    )
    split_backward = schedule in ("interleaved_zero_bubble", "zbv")
    check(
        not (split_backward and shared and config.fsdp.reshard_after_forward not in (None, False)),
        "fsdp.reshard_after_forward",
        f"{schedule} loses the gradients of parameters that were resharded",
        "leave it out, or the schedule 1f1b",
    )


def _check_combinations(config: TrainConfig, degrees: Degrees) -> None:
    kind, train = config.parallel.data, config.train
    replicated = kind in ("none", "ddp", "zero1")
    check(
        not (replicated and degrees.tp > 1 and degrees.data_ranks * degrees.cp > 1),
        "parallel.data",
        f"{kind!r} takes no tensor-parallel parameters, which cp or dp beside tp would need",
        "use fsdp with tp",
    )
    check(
        config.model.experts == 0 or degrees.tp == 1,
        "parallel.tp",
        "cuts no mixture-of-experts blocks",
        "--parallel ep for these, or model.experts=0",
    )
    check(degrees.ep == 1 or degrees.tp == 1, "parallel.ep", "not together with tp: experts would be cut twice")
    check(degrees.ep == 1 or degrees.pp == 1, "parallel.ep", "not together with pp")
    check(
        not (kind == "zero1" and degrees.ep > 1),
        "parallel.data",
        "zero1 shards no expert-parallel optimizer",
        "use ddp",
    )
    if train.cuda_graph:
        plain = kind in ("none", "ddp") and degrees.data_ranks == math.prod(degrees.as_dict().values())
        check(
            plain and degrees.ep == 1,
            "train.cuda_graph",
            f"not with {degrees.describe()}",
            "single or ddp only",
        )
        check(not train.compile, "train.cuda_graph", "not together with train.compile")
