"""Accelerate, by the options of `accelerate launch`; what it wraps takes the changes of torch besides."""

from __future__ import annotations

from pathlib import Path

from gpuscope.instrumented_runtime.record.applied.command_line import program, with_option
from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, at_least, boolean, one_of

PREFIX = "accelerate."


def _rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    del folder
    own = program(words, lambda word: word in ("accelerate", "accelerate.commands.launch", "accelerate-launch"))
    if own is None or (words[own].endswith("accelerate") and words[own + 1 : own + 2] != ["launch"]):
        return None
    behind = own + 2 if words[own].endswith("accelerate") else own + 1
    # Its own options stand before the script, whose arguments may have the same names.
    script = next((at for at in range(behind, len(words)) if words[at].endswith(".py")), len(words))
    before = with_option(words[:script], f"--{name.removeprefix(PREFIX)}", value, at=behind)
    return [*before, *words[script:]]


FAMILY = Family(
    "accelerate",
    (
        Knob(
            name=f"{PREFIX}num_cpu_threads_per_process",
            takes="a number from 1",
            read=at_least(1),
            how="framework option",
            alters="The last bits of sums that are split over threads of the CPU.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}fsdp_backward_prefetch",
            takes="BACKWARD_PRE, BACKWARD_POST or NO_PREFETCH",
            read=one_of("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"),
            how="framework option",
            alters="Nothing computed; parameters of one more module are in memory at once.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}fsdp_forward_prefetch",
            takes="true or false",
            read=boolean,
            how="framework option",
            alters="Nothing computed; parameters of one more module are in memory at once.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}mixed_precision",
            takes="no, bf16 or fp16",
            read=one_of("no", "bf16", "fp16"),
            how="framework option",
            allow="bf16",
            alters="Products and activations are rounded to 16 bits.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{PREFIX}dynamo_backend",
            takes="no or inductor",
            read=one_of("no", "inductor"),
            how="framework option",
            allow="compile",
            alters="Rounding of fused operations.",
            shown_by="test_frameworks.py",
        ),
    ),
    rewrite=_rewrite,
)
