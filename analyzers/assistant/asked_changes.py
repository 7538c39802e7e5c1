"""Changes by name, as an assistant asks for them: `{"change": "replaced_rank", "rank": 1}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from inspect import getdoc
from typing import Any, get_args, get_type_hints

import msgspec

from gpuscope.analyzers.changes import Change, MeasuredTransfers
from gpuscope.errors import UsageError

_FROM_ZERO = frozenset({"rank"})


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


KINDS: Mapping[str, type] = {_snake(kind.__name__): kind for kind in get_args(Change) if kind is not MeasuredTransfers}
"""Changes by name; what was measured elsewhere can't be asked in words."""


def described() -> list[str]:
    """A line per change: `bucket_size(size, first=None): Gradient all-reduces regrouped …`."""
    lines = []
    for name, kind in KINDS.items():
        words = " ".join((getdoc(kind) or "").split())
        parameters = ", ".join(
            field.name if field.default is MISSING else f"{field.name}={field.default}" for field in fields(kind)
        )
        lines.append(f"{name}({parameters}): {words.partition('. ')[0]}")
    return lines


def changes_of(asked: Iterable[Mapping[str, Any]]) -> list[Change]:
    """The changes meant. Raises `UsageError` for a name, a parameter or a value that there is not."""
    return [_change(one) for one in asked]


def _change(one: Mapping[str, Any]) -> Change:
    name = str(one.get("change", ""))
    if name not in KINDS:
        raise UsageError(f"no change {name!r}", hint=f"there are: {', '.join(KINDS)}")
    kind, given = KINDS[name], {key: value for key, value in one.items() if key != "change"}
    known = [field.name for field in fields(kind)]
    if wrong := sorted(set(given) - set(known)):
        raise UsageError(f"{name} has no {', '.join(wrong)}", hint=f"it has: {', '.join(known) or 'no parameters'}")
    for key, value in given.items():
        _check(name, key, value)
    try:
        made: Change = msgspec.convert({**_plain(kind), **given}, type=kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}", hint=f"parameters: {_types(kind)}") from None
    return made


def _plain(kind: type) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind) if field.default is not MISSING}


def _check(name: str, key: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least = 0 if key in _FROM_ZERO else None
    fits = value >= 0 if least == 0 else value > 0
    if not (math.isfinite(value) and fits and value < 1 << 50):
        raise UsageError(f"{name}: {key}={value} can't be", hint="sizes are bytes, factors positive numbers")


def _types(kind: type) -> str:
    hints: Mapping[str, Any] = get_type_hints(kind)
    named: Sequence[str] = [f"{key} {getattr(hint, '__name__', hint)}" for key, hint in hints.items()]
    return ", ".join(named) or "none"
