"""Megatron-LM, by the options of its training scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.applied.command_line import program, value_of, with_flag, with_option
from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, at_least, boolean

PREFIX = "megatron."


def _rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    del folder
    script = program(words, lambda word: word.startswith("pretrain_") and word.endswith(".py"))
    if script is None or value_of(words[script:], "--num-layers") is None:
        return None
    option, own = f"--{name.removeprefix(PREFIX)}", words[script:]
    flag = _KNOBS[name].read is boolean
    return [*words[:script], *(with_flag(own, option, on=boolean(value)) if flag else with_option(own, option, value))]


def _knob(name: str, takes: str, read: Callable[[str], Any], alters: str, allow: str = "") -> Knob:
    return Knob(
        name=f"{PREFIX}{name}",
        takes=takes,
        read=read,
        how="framework option",
        alters=alters,
        allow=allow,
        shown_by="test_frameworks.py",
    )


FAMILY = Family(
    "megatron",
    (
        _knob("overlap-grad-reduce", "true or false", boolean, "Nothing computed; communication takes SMs."),
        _knob(
            "overlap-param-gather",
            "true or false",
            boolean,
            "Nothing computed; it needs the distributed optimizer and overlap-grad-reduce.",
        ),
        _knob("ddp-bucket-size", "elements", at_least(1), "The order in which gradients are added."),
        _knob("manual-gc", "true or false", boolean, "Nothing computed; cycles stay in memory for longer."),
        _knob("manual-gc-interval", "steps", at_least(0), "Nothing computed; cycles stay in memory for longer."),
        _knob("num-workers", "a number from 0", at_least(0), "The order of samples stays."),
        _knob("grad-reduce-in-bf16", "true or false", boolean, "Gradients are rounded to 16 bits.", "compression"),
    ),
    rewrite=_rewrite,
)
_KNOBS = {one.name: one for one in FAMILY.knobs}
