"""torchtitan, by the options of its trainer."""

from __future__ import annotations

from pathlib import Path

from gpuscope.instrumented_runtime.record.applied.command_line import program, with_option, without_flag
from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, at_least, boolean, one_of

PREFIX = "torchtitan."
_FLAGS = ("compile.enable",)


def _rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    del folder
    ours = "torchtitan.train" in words or any(Path(word).parts[-2:] == ("torchtitan", "train.py") for word in words)
    if not ours and program(words, lambda word: word == "torchtitan_train.py") is None:
        return None
    option = name.removeprefix(PREFIX)
    if option not in _FLAGS:
        return with_option(words, f"--{option}", value)
    section, _, flag = option.partition(".")
    on, off = f"--{option}", f"--{section}.no-{flag}"
    takes, drops = (on, off) if boolean(value) else (off, on)
    return with_option(without_flag(words, drops), takes, None)


FAMILY = Family(
    "torchtitan",
    (
        Knob(
            name=f"{PREFIX}parallelism.fsdp_reshard_after_forward",
            takes="default, always or never",
            read=one_of("default", "always", "never"),
            how="framework option",
            alters="Nothing computed; with never all parameters stay in memory until their backward pass.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}parallelism.pipeline_parallel_schedule",
            takes="a schedule of torch.distributed.pipelining",
            read=one_of(
                "1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV"
            ),
            how="framework option",
            alters="The order in which micro-batches add their gradients; some schedules take several stages a rank.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}compile.enable",
            takes="true or false",
            read=boolean,
            how="framework option",
            allow="compile",
            alters="Rounding of fused operations.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}training.gc_freq",
            takes="steps between collections",
            read=at_least(1),
            how="framework option",
            alters="Nothing computed; cycles stay in memory for longer.",
            shown_by="test_frameworks.py",
        ),
    ),
    rewrite=_rewrite,
)
