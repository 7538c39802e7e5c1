"""Debug annotations and extra data of Perfetto events as the arguments that torch.profiler's JSON has."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gpuscope.sources.perfetto.packet_rows import number_in
from gpuscope.trace.schema import NA

_NUMBERS = frozenset({"In msg nelems", "Out msg nelems", "Group size", "Seq", "Src Rank", "Dst Rank", "Rank"})
"""Arguments of a collective that are numbers; extra data of a render stage are always text."""


def arguments(annotations: Iterable[Any]) -> dict[str, Any]:
    """The annotations of a track event by name."""
    return {text(one.name): value_of(one) for one in annotations}


def value_of(annotation: Any) -> Any:
    """What an annotation holds; an empty list, where it holds nothing: the encoder writes empty lists so."""
    for field, value in annotation.ListFields():
        kind = field.name
        if kind == "string_value":
            return text(value)
        if kind in ("int_value", "uint_value", "double_value", "bool_value"):
            return value
        if kind == "array_values":
            return [value_of(one) for one in value]
        if kind == "dict_entries":
            return arguments(value)
    return []


def collective_arguments(extra: dict[bytes, bytes]) -> dict[str, Any]:
    """Extra data of a render stage, with the numbers of a collective as numbers."""
    found: dict[str, Any] = {}
    for key, value in extra.items():
        name, told = text(key), text(value)
        number = number_in(value) if name in _NUMBERS else NA
        found[name] = told if number == NA else number
    return found


def as_json(found: dict[str, Any]) -> msgspec.Raw:
    """Arguments as JSON text, as the readers of torch.profiler's JSON take them."""
    return msgspec.Raw(msgspec.json.encode(found))


def text(value: bytes) -> str:
    """UTF-8, with � for what is not."""
    return value.decode("utf-8", "replace")
