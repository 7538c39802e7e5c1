"""From command-line arguments to a checked configuration: preset, then file, then options."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError, UsageError
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.parallel_spec import parse_parallel
from gpuscope.instrumented_runtime.train.settings.sections import from_dict


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
