"""DeepSpeed, by a copy of its JSON file with the key changed; the user's own file stays."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.instrumented_runtime.record.applied.command_line import value_of, with_option
from gpuscope.instrumented_runtime.record.applied.knob import Family, Knob, at_least, boolean, one_of

PREFIX = "deepspeed."
OPTIONS = ("--deepspeed_config", "--deepspeed")
"""Of DeepSpeed's own argument parser, and of Transformers'."""


def _rewrite(words: list[str], name: str, value: str, folder: Path | None) -> list[str] | None:
    found = next((one for one in OPTIONS if (value_of(words, one) or "").endswith(".json")), None)
    path = Path(value_of(words, found) or "") if found is not None else None
    if found is None or path is None:
        return None
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: can't be read: {error}") from None
    *sections, key = name.removeprefix(PREFIX).split(".")
    inner: Any = settings
    for section in sections:
        inner = inner.setdefault(section, {}) if isinstance(inner, dict) else None
    if not isinstance(inner, dict):
        raise InputError(f"{path}: {name.removeprefix(PREFIX)} is no place in it")
    inner[key] = _KNOBS[name].read(value)
    if folder is None:
        return words
    folder.mkdir(exist_ok=True)
    copy = folder / path.name
    copy.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    return with_option(words, found, str(copy))


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


_MEMORY = "Nothing computed but for the order of sums; buffers of that many elements."
FAMILY = Family(
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
    rewrite=_rewrite,
)
_KNOBS = {one.name: one for one in FAMILY.knobs}
