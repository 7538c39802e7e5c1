"""Files with one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscope.sources.base import ReadOptions
from gpuscope.sources.text_lines import lines
from gpuscope.trace.builder import TraceBuilder


def first(head: bytes) -> dict[str, Any]:
    """The object on the first line; empty where there is none."""
    return _object(head.lstrip().partition(b"\n")[0]) or {}


def read(path: Path, options: ReadOptions, builder: TraceBuilder) -> Iterator[dict[str, Any] | None]:
    """The object of every line that isn't empty; None for one that can't be read (the last, if cut off)."""
    return (_object(line) for line in lines(path, options, builder) if line.strip())


def integer(value: Any) -> int | None:
    """A JSON number as int; None for anything else and for what no table holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 62:
        return None
    return round(value)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
