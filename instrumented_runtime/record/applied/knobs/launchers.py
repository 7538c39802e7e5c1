"""Accelerate, by the options of `accelerate launch`; what it wraps takes the changes of torch besides."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.applied.ledger import (
    Family,
    Knob,
    at_least,
    boolean,
    one_of,
    program,
    value_of,
    with_flag,
    with_option,
    without_flag,
)

# DeepSpeed, by a copy of its JSON file with the key changed; the user's own file stays.

DEEPSPEED_PREFIX = "deepspeed."
OPTIONS = ("--deepspeed_config", "--deepspeed")
"""Of DeepSpeed's own argument parser, and of Transformers'."""


def _deepspeed_rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    found = next((one for one in OPTIONS if (value_of(words, one) or "").endswith(".json")), None)
    path = Path(value_of(words, found) or "") if found is not None else None
    if found is None or path is None:
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None
    *sections, key = name.removeprefix(DEEPSPEED_PREFIX).split(".")
    inner: Any = settings
    for section in sections:
        inner = inner.setdefault(section, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise InputError(f"{path}: {name.removeprefix(DEEPSPEED_PREFIX)} is no place in it")
    inner[key] = _KNOBS[name].read(value)
    if folder is None:
        return words
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    copy.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return with_option(words, found, str(copy))


def _knob(name: str, takes: str, read: Callable[[str], Any], alters: str, allow: str = "") -> Knob:
    return Knob(
        name=f"{DEEPSPEED_PREFIX}{name}",
        takes=takes,
        read=read,
        how="framework option",
        alters=alters,
        allow=allow,
        shown_by="test_frameworks.py",
    )


_MEMORY = "Nothing computed but for the order of sums; buffers of that many elements."
DEEPSPEED_FAMILY = Family(
    "deepspeed",
    (
        _knob("zero_optimization.overlap_comm", "true or false", boolean, "Nothing computed; more memory for buckets."),
        _knob("zero_optimization.contiguous_gradients", "true or false", boolean, "Nothing computed."),
        _knob("zero_optimization.reduce_bucket_size", "elements", at_least(1), _MEMORY),
        _knob("zero_optimization.allgather_bucket_size", "elements", at_least(1), _MEMORY),
        _knob("zero_optimization.stage3_prefetch_bucket_size", "elements", at_least(0), _MEMORY),
        _knob(
            "zero_optimization.stage",
            "1, 2 or 3",
            lambda value: int(one_of("1", "2", "3")(value)),
            "Nothing computed but for the order of sums; what is sharded, so memory and checkpoints.",
        ),
        _knob(
            "communication_data_type",
            "fp32, fp16 or bf16",
            one_of("fp32", "fp16", "bf16"),
            "Gradients are rounded to 16 bits.",
            "compression",
        ),
    ),
    rewrite=_deepspeed_rewrite,
)
_KNOBS = {one.name: one for one in DEEPSPEED_FAMILY.knobs}


# Megatron-LM, by the options of its training scripts.

MEGATRON_PREFIX = "megatron."


def _megatron_rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    del folder
    script = program(words, lambda word: word.startswith("pretrain_") and word.endswith(".py"))
    if script is None or value_of(words[script:], "--num-layers") is None:
        return None
    option, own = f"--{name.removeprefix(MEGATRON_PREFIX)}", words[script:]
    flag = _MEGATRON_KNOBS[name].read is boolean
    return [*words[:script], *(with_flag(own, option, on=boolean(value)) if flag else with_option(own, option, value))]


def _megatron_knob(name: str, takes: str, read: Callable[[str], Any], alters: str, allow: str = "") -> Knob:
    return Knob(
        name=f"{MEGATRON_PREFIX}{name}",
        takes=takes,
        read=read,
        how="framework option",
        alters=alters,
        allow=allow,
        shown_by="test_frameworks.py",
    )


MEGATRON_FAMILY = Family(
    "megatron",
    (
        _megatron_knob("overlap-grad-reduce", "true or false", boolean, "Nothing computed; communication takes SMs."),
        _megatron_knob(
            "overlap-param-gather",
            "true or false",
            boolean,
            "Nothing computed; it needs the distributed optimizer and overlap-grad-reduce.",
        ),
        _megatron_knob("ddp-bucket-size", "elements", at_least(1), "The order in which gradients are added."),
        _megatron_knob("manual-gc", "true or false", boolean, "Nothing computed; cycles stay in memory for longer."),
        _megatron_knob(
            "manual-gc-interval", "steps", at_least(0), "Nothing computed; cycles stay in memory for longer."
        ),
        _megatron_knob("num-workers", "a number from 0", at_least(0), "The order of samples stays."),
        _megatron_knob(
            "grad-reduce-in-bf16", "true or false", boolean, "Gradients are rounded to 16 bits.", "compression"
        ),
    ),
    rewrite=_megatron_rewrite,
)
_MEGATRON_KNOBS = {one.name: one for one in MEGATRON_FAMILY.knobs}


# torchtitan, by the options of its trainer.

TORCHTITAN_PREFIX = "torchtitan."
_FLAGS = ("compile.enable",)


def _torchtitan_rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    del folder
    ours = "torchtitan.train" in words or any(Path(word).parts[-2:] == ("torchtitan", "train.py") for word in words)
    if not ours and program(words, lambda word: word == "torchtitan_train.py") is None:
        return None
    option = name.removeprefix(TORCHTITAN_PREFIX)
    if option not in _FLAGS:
        return with_option(words, f"--{option}", value)
    section, _, flag = option.partition(".")
    on, off = f"--{option}", f"--{section}.no-{flag}"
    takes, drops = (on, off) if boolean(value) else (off, on)
    return with_option(without_flag(words, drops), takes, None)


TORCHTITAN_FAMILY = Family(
    "torchtitan",
    (
        Knob(
            name=f"{TORCHTITAN_PREFIX}parallelism.fsdp_reshard_after_forward",
            takes="default, always or never",
            read=one_of("default", "always", "never"),
            how="framework option",
            alters="Nothing computed; with never all parameters stay in memory until their backward pass.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{TORCHTITAN_PREFIX}parallelism.pipeline_parallel_schedule",
            takes="a schedule of torch.distributed.pipelining",
            read=one_of(
                "1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "LoopedBFS", "ZBVZeroBubble", "DualPipeV"
            ),
            how="framework option",
            alters="The order in which micro-batches add their gradients; some schedules take several stages a rank.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{TORCHTITAN_PREFIX}compile.enable",
            takes="true or false",
            read=boolean,
            how="framework option",
            allow="compile",
            alters="Rounding of fused operations.",
            shown_by="test_frameworks.py",
        ),
        Knob(
            name=f"{TORCHTITAN_PREFIX}training.gc_freq",
            takes="steps between collections",
            read=at_least(1),
            how="framework option",
            alters="Nothing computed; cycles stay in memory for longer.",
            shown_by="test_frameworks.py",
        ),
    ),
    rewrite=_torchtitan_rewrite,
)


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


ACCELERATE_FAMILY = Family(
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


FAMILIES = (ACCELERATE_FAMILY, DEEPSPEED_FAMILY, MEGATRON_FAMILY, TORCHTITAN_FAMILY)
