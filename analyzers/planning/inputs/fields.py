"""A file of named values into a dataclass: every key known, every value of its type, or the field named."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from gpuscope.errors import InputError

T = TypeVar("T")


def is_file(text: str) -> bool:
    """Whether an argument names a file of values, by its suffix."""
    return text.endswith((".toml", ".json"))


def read_values(path: Path) -> Mapping[str, Any]:
    """The values of a TOML or JSON file. Raises `InputError` where it is neither."""
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        kind, hint = ("JSON", "write one object") if path.suffix == ".json" else ("TOML", "write `name = value` lines")
        raise InputError(f"{path} is not {kind}: {error}", hint=hint) from None
    if not isinstance(found, dict):
        raise InputError(f"{path} holds no named values", hint='write an object: {"layers": 32, …}')
    return found


def filled(kind: type[T], values: Mapping[str, Any], path: Path) -> T:
    """A `kind` from a file's values. Raises `InputError` for an unknown key, a missing one, or one of another type."""
    names = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            raise InputError(
                f"{path}: no field is called {key!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}",
            )
    missing = [
        name
        for name, field in names.items()
        if name not in values and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}", hint="docs/planning.md lists every field")
    for key, value in values.items():
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise InputError(f"{path}: {key} = {value} is no number")
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{path}: {error}", hint="docs/planning.md lists every field with its unit") from None
