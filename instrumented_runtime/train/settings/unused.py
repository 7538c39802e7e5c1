"""Options that were asked for by `--set` and would change nothing in the run as it is configured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import Degrees


@dataclass(frozen=True)
class _Need:
    """`options` (a section, or single ones) do something only where `met`; `words` say where that is."""

    options: tuple[str, ...]
    met: Callable[[TrainConfig, Degrees], bool]
    words: str


SHARDING = ("zero2", "zero3", "hsdp")
_NEEDS = (
    _Need(("ddp",), lambda config, _: config.parallel.data in ("none", "ddp", "zero1"), "--parallel ddp or zero1"),
    _Need(("ddp",), lambda _, degrees: degrees.data_ranks * degrees.cp > 1, "more than one data-parallel rank"),
    _Need(("ddp.powersgd_rank",), lambda config, _: config.ddp.comm_hook == "powersgd", "ddp.comm_hook=powersgd"),
    _Need(("fsdp",), lambda config, _: config.parallel.data in SHARDING, "--parallel zero2, fsdp or hsdp"),
    _Need(("parallel.shard",), lambda config, _: config.parallel.data == "hsdp", "--parallel hsdp"),
    _Need(("tensor",), lambda _, degrees: degrees.tp > 1, "--parallel tp"),
    _Need(("pipeline",), lambda _, degrees: degrees.pp > 1, "--parallel pp"),
    _Need(
        ("pipeline.stages_per_rank",),
        lambda config, _: config.pipeline.schedule in ("interleaved1f1b", "interleaved_zero_bubble"),
        "pipeline.schedule=interleaved1f1b or interleaved_zero_bubble",
    ),
    _Need(("context",), lambda _, degrees: degrees.cp > 1, "--parallel cp"),
    _Need(
        ("context.rotation", "context.balance"), lambda config, _: config.context.method == "ring",
        "context.method=ring",
    ),
    _Need(("model.experts_per_token",), lambda config, _: config.model.experts > 0, "model.experts"),
    _Need(("checkpoint.keep", "checkpoint.folder"), lambda config, _: config.checkpoint.every > 0, "checkpoint.every"),
    _Need(
        ("capture.wait", "capture.warmup", "capture.active", "capture.record_shapes", "capture.with_stack",
         "capture.profile_memory"),
        lambda config, _: config.capture.profile, "capture.profile=true",
    ),
)  # fmt: skip


def refuse_unused(settings: Iterable[str], config: TrainConfig, degrees: Degrees) -> None:
    """Raise `UsageError` that names the first of `settings` (`section.option=value`) that the run would ignore."""
    for text in settings:
        option = text.partition("=")[0].strip()
        for need in _NEEDS:
            if (option in need.options or option.partition(".")[0] in need.options) and not need.met(config, degrees):
                raise UsageError(f"--set {text}: changes nothing in this run", hint=f"it needs {need.words}")
