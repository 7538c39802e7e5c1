"""`--parallel` as options, and the checks that need the world size."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.train.settings.config import (
    REPLICATE,
    SHARD,
    Degrees,
    Need,
    Plan,
    TrainConfig,
    check,
)
from gpuscope.instrumented_runtime.train.settings.parallelisms.built_in import DdpConfig
from gpuscope.instrumented_runtime.train.settings.sections import AXES, DATA, MODEL, PARALLELISMS, from_dict

_KINDS = {name: one.kind for one in DATA.values() for name in one.names}
_SIZED = tuple(one.axis.name for one in MODEL)
NAMES = (*_KINDS, *_SIZED, "3d")


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
        key = "dp" if name in _KINDS else name
        if key in result or key in unsized:
            raise UsageError(f"--parallel: {name!r} after another of its kind in {text!r}")
        if name in _KINDS:
            result["data"] = _KINDS[name]
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
            raise UsageError(f"--parallel {text}: give {unsized[0]} a size", hint=f"for example {unsized[0]}=2")
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
    sizes = {one.axis: config.parallel.size(one.axis.name) for one in MODEL}
    inner = math.prod(sizes.values())
    check(
        world_size % inner == 0,
        f"parallel.{' × '.join(_SIZED)}",
        f"{inner} does not divide the world of {world_size} processes",
        "change --nproc or the sizes",
    )
    dp = config.parallel.dp or world_size // inner
    check(
        dp * inner == world_size,
        "parallel.dp",
        f"{dp} × {inner} model-parallel ranks is not the world of {world_size} processes",
    )
    data = DATA[config.parallel.data]
    sizes[REPLICATE], sizes[SHARD] = data.split(config, dp)
    plan = Plan(config, Degrees({axis: sizes[axis] for axis in AXES}), data)
    _check_together(plan)  # first: no hint may lead to what does not go together
    _check_multiples(plan)
    for one in PARALLELISMS:
        one.check(plan)
    _check_cuda_graphs(plan)
    return plan.degrees


def _check_together(plan: Plan) -> None:
    for one in MODEL:
        for other in one.not_with:
            apart = 1 in (plan.degrees[one.axis], plan.degrees[other])
            check(apart, f"parallel.{one.axis.name}", f"not together with {other.name}")


def _check_multiples(plan: Plan) -> None:
    values = plan.config.as_dict()
    for one in MODEL:
        for name in one.divides:
            section, _, option = name.partition(".")
            value, size = values[section][option], plan.degrees[one.axis]
            check(value % size == 0, name, f"{value} is not a multiple of parallel.{one.axis.name}={size}")


def _check_cuda_graphs(plan: Plan) -> None:
    train = plan.config.train
    if train.cuda_graph:
        alone = plan.data.cuda_graphs and all(plan.degrees[one.axis] == 1 for one in MODEL)
        check(alone, "train.cuda_graph", f"not with {plan.degrees.describe()}", "single or ddp only")
        check(not train.compile, "train.cuda_graph", "not together with train.compile")


_NEEDS = (
    *(need for one in PARALLELISMS for need in one.needs),
    Need(("model.experts_per_token",), lambda plan: plan.config.model.experts > 0, "model.experts"),
    Need(("checkpoint.keep", "checkpoint.folder"), lambda plan: plan.config.checkpoint.every > 0, "checkpoint.every"),
    Need(
        (
            "capture.wait",
            "capture.warmup",
            "capture.active",
            "capture.record_shapes",
            "capture.with_stack",
            "capture.profile_memory",
        ),
        lambda plan: plan.config.capture.profile,
        "capture.profile=true",
    ),
)


def refuse_unused(settings: Iterable[str], config: TrainConfig, degrees: Degrees) -> None:
    """Raise `UsageError` that names the first of `settings` (`section.option=value`) that the run would ignore."""
    plan = Plan(config, degrees, DATA[config.parallel.data])
    for text in settings:
        option = text.partition("=")[0].strip()
        for need in _NEEDS:
            if (option in need.options or option.partition(".")[0] in need.options) and not need.met(plan):
                raise UsageError(f"--set {text}: changes nothing in this run", hint=f"it needs {need.words}")


def waits(config: TrainConfig) -> set[str]:
    """Where a rank waits for the communication of the parallelisms of a run."""
    used = [one.waits(config) for one in MODEL if config.parallel.size(one.axis.name) > 1]
    return {DATA[config.parallel.data].waits(config), *used}


# From command-line arguments to a checked configuration: preset, then file, then options.


def assemble(
    *,
    parallel: str,
    world_size: int,
    preset: str = "tiny",
    file: Path | None = None,
    settings: Iterable[str] = (),
    more: Mapping[str, Any] | None = None,
) -> TrainConfig:
    """The configuration; later ones win: preset, TOML file, `parallel`, `settings`, then `more`.

    `settings` are `section.option=value` texts, `more` maps `section.option` to a value or None (not
    given). Raises `UsageError` or `InputError` that names the invalid argument.
    """
    if preset not in PRESETS:
        raise UsageError(f"--preset: no preset {preset!r}", hint=f"one of {', '.join(PRESETS)}")
    sections: Sections = {name: dict(values) for name, values in PRESETS[preset].items()}
    if file is not None:
        _merge(sections, _read(file))
    _merge(sections, {"parallel": parse_parallel(parallel, world_size)})
    for text in settings:
        option, equals, value = text.partition("=")
        section, dot, name = option.strip().partition(".")
        if not (equals and dot):
            raise UsageError(f"--set {text}: not of the form section.option=value")
        _merge(sections, {section: {name: value.strip()}})
    for option, value in (more or {}).items():
        if value is not None:
            section, _, name = option.partition(".")
            _merge(sections, {section: {name: value}})
    return from_dict(sections)


def _merge(sections: Sections, more: Mapping[str, Mapping[str, Any]]) -> None:
    for section, values in more.items():
        sections.setdefault(section, {}).update(values)


def _read(file: Path) -> Sections:
    try:
        read = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config: {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config: {file} is not TOML: {error}") from None
    for section, values in read.items():
        if not isinstance(values, dict):
            raise UsageError(f"--config: {file}: {section!r} is outside a section")
    return read


Sections = dict[str, dict[str, Any]]

_GPT2_VOCABULARY = 50_304  # 50,257 rounded up to a multiple of 128, for the tensor cores
_ON_GPU: dict[str, Any] = {"precision": "bf16"}


def _gpt(layers: int, width: int, heads: int, sequence: int, batch: int, experts: int = 0) -> Sections:
    return {
        "model": {
            "layers": layers,
            "width": width,
            "heads": heads,
            "vocabulary": _GPT2_VOCABULARY,
            "experts": experts,
        },
        "data": {"sequence": sequence, "batch": batch},
        "train": dict(_ON_GPU),
    }


PRESETS: dict[str, Sections] = {
    "tiny": {},
    "tiny-moe": {"model": {"experts": 4}},
    "small": _gpt(12, 768, 12, 1024, 16),  # 124 M parameters without the head
    "medium": _gpt(24, 1024, 16, 1024, 16),  # 350 M
    "large": _gpt(36, 1280, 20, 1024, 16),  # 770 M
    "h100": _gpt(24, 2048, 16, 2048, 8),  # 1.4 G: about 22 GB of weights and Adam, 40 GB of activations
    "h100-moe": _gpt(12, 1024, 16, 2048, 8, experts=8),
}


# Whether there is a GPU for what needs one. No torch: the launcher asks too.


def check_device(config: TrainConfig) -> None:
    """Raise `UsageError` where what needs a GPU meets a machine without one (as the driver's device files tell)."""
    gpu = any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or not Path("/dev").is_dir()
    check(gpu or config.train.device != "cuda", "train.device", "there is no GPU here", "--set train.device=cpu")
    on_gpu = gpu and config.train.device != "cpu"
    check(on_gpu or not config.train.cuda_graph, "train.cuda_graph", "needs a GPU")
    bf16 = config[DdpConfig].comm_hook == "bf16"
    check(on_gpu or not bf16, "ddp.comm_hook", "PyTorch's bf16 hook needs a GPU", "ddp.comm_hook=fp16 works without")
