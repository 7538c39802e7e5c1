"""What to measure, checked without torch: what can't be meant is refused before its import, which takes seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.settings.assemble import assemble
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import validate
from gpuscope.instrumented_runtime.train.settings.parallelism import Degrees

OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv")
DTYPES = ("float32", "float16", "bfloat16", "int32")


@dataclass(frozen=True)
class CollectiveOptions:
    """What to measure. `sizes` are bytes of the whole array, rounded down to whole elements per rank."""

    ops: tuple[str, ...] = ("all_reduce",)
    sizes: tuple[int, ...] = (1024, 1024**2)
    iterations: int = 20
    warmup: int = 5
    dtype: str = "float32"
    check: bool = True

    def __post_init__(self) -> None:
        unknown = [op for op in self.ops if op not in OPERATIONS]
        if unknown:
            raise UsageError(f"unknown operation {unknown[0]!r}", hint=f"--op takes {', '.join(OPERATIONS)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"unknown --dtype {self.dtype!r}", hint=f"it takes {', '.join(DTYPES)}")
        if self.iterations < 1 or self.warmup < 0:
            raise UsageError("--iterations must be at least 1 and --warmup at least 0")


def check_ranks(number: int) -> None:
    """Raise `UsageError` where these are too few for a collective."""
    if number < 2:
        raise UsageError(f"a collective needs at least two ranks, not {number}", hint="give --nproc 2 or more")


@dataclass(frozen=True)
class ScalingOptions:
    """What to train, and on how many processes one after the other. `steps` are timed, `warmup` are not."""

    nprocs: tuple[int, ...] = (1, 2)
    parallel: str = "ddp"
    preset: str = "tiny"
    settings: tuple[str, ...] = ()
    steps: int = 20
    warmup: int = 5
    strong: bool = False

    def __post_init__(self) -> None:
        if not self.nprocs or min(self.nprocs) < 1 or list(self.nprocs) != sorted(set(self.nprocs)):
            raise UsageError(f"--nproc takes rising numbers of processes, not {self.nprocs}", hint="--nproc 1,2,4")
        if self.steps < 1 or self.warmup < 1:
            raise UsageError("--steps and --warmup must be at least 1: the first step is never typical")


def plan(options: ScalingOptions, nprocs: int) -> tuple[TrainConfig, Degrees]:
    """The configuration and mesh for `nprocs` processes, checked."""
    more: dict[str, Any] = {"train.steps": options.warmup + options.steps, "capture.profile": False}
    config = assemble(
        parallel=options.parallel,
        world_size=nprocs,
        preset=options.preset,
        settings=options.settings,
        more=more,
    )
    degrees = validate(config, nprocs)
    if options.strong and degrees.data_ranks > 1:
        if config.data.batch % degrees.data_ranks:
            raise UsageError(
                f"--strong: data.batch={config.data.batch} can't be shared by {degrees.data_ranks} ranks",
                hint=f"--set data.batch={config.data.batch * degrees.data_ranks}",
            )
        config = config.replace("data", batch=config.data.batch // degrees.data_ranks)
    return config, degrees
