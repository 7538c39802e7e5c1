"""The facts of a record as a report holds them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def facts_of(record: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, and lists in place of tuples: read from JSON again they are equal."""
    return {name: _listed(value) for name, value in asdict(record).items()}


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(one) for one in value]
    if isinstance(value, dict):
        return {key: _listed(one) for key, one in value.items()}
    return value
