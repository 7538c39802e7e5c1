"""All sections of a configuration: those of the trainer, and behind `parallel` those of the parallelisms."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast, get_args, get_type_hints

import msgspec

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.settings.config import (
    REPLICATE,
    SHARD,
    Axis,
    DataParallelism,
    ModelParallelism,
    ParallelConfig,
    Parallelism,
    TrainConfig,
    option,
)
from gpuscope.plugins import listed

PARALLELISMS: tuple[Parallelism, ...] = tuple(
    sorted(listed(f"{__package__}.parallelisms", "PARALLELISM"), key=lambda one: one.place)
)
DATA = {one.kind: one for one in PARALLELISMS if isinstance(one, DataParallelism)}
"""By their value of `parallel.data`."""
MODEL = tuple(one for one in PARALLELISMS if isinstance(one, ModelParallelism))
AXES: tuple[Axis, ...] = tuple(sorted((REPLICATE, SHARD, *(one.axis for one in MODEL)), key=lambda axis: axis.place))
"""Of the mesh, outermost first."""


def _made(name: str, base: type[Any], fields: list[tuple[str, Any, Any]]) -> type[Any]:
    """A frozen dataclass that a process can send to another."""
    made = dataclasses.make_dataclass(name, fields, bases=(base,), frozen=True)
    made.__module__ = __name__
    return made


AllParallelConfig = _made(
    "AllParallelConfig",
    ParallelConfig,
    [
        ("data", Literal[tuple(DATA)], option("none", ParallelConfig.__dataclass_fields__["data"].metadata["help"])),
        *((one.axis.name, int, option(1, one.size)) for one in MODEL),
    ],
)


def _sections() -> dict[str, type[Any]]:
    found: dict[str, type[Any]] = {}
    for name, kind in get_type_hints(TrainConfig).items():
        found[name] = kind
        if kind is ParallelConfig:
            found[name] = AllParallelConfig
            found |= {one.section: one.options for one in PARALLELISMS if one.options is not None}
    return found


SECTIONS = _sections()
AllConfig = _made(
    "AllConfig",
    TrainConfig,
    [(name, kind, dataclasses.field(default_factory=kind)) for name, kind in SECTIONS.items()],
)


def options() -> Iterator[tuple[str, Any, Any, str]]:
    """Every option as (name, type, default, help), in order."""
    for section, kind in SECTIONS.items():
        types = get_type_hints(kind)
        for item in dataclasses.fields(kind):
            yield f"{section}.{item.name}", types[item.name], item.default, item.metadata["help"]


def from_dict(sections: Mapping[str, Mapping[str, Any]]) -> TrainConfig:
    """A checked configuration from sections of options; text is converted ("4" → 4, "none" → None).

    Raises `UsageError` naming the option that is unknown, of the wrong type, or out of range.
    """
    known = {name: kind for name, kind, *_ in options()}
    plain: dict[str, dict[str, Any]] = {}
    for section, values in sections.items():
        for name, value in values.items():
            option = f"{section}.{name}"
            if option not in known:
                raise UsageError(f"{option}: no such option", hint=_nearest(option, list(known)))
            none_is_text = "none" in get_args(known[option])
            plain.setdefault(section, {})[name] = None if value == "none" and not none_is_text else value
    try:
        return cast(TrainConfig, msgspec.convert(plain, AllConfig, strict=False))
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$.")
        raise UsageError(f"{place.rstrip('`') or 'config'}: {message}") from None


def _nearest(option: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(option, known, 1, 0.5)
    listing = "`gpuscope train --list-options` lists them"
    return f"did you mean {close[0]}? {listing}" if close else listing
