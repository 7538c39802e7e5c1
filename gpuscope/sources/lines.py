"""The lines of a text file, and the JSON objects on them, one after the other, however large the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.source import ReadOptions
from gpuscope.trace.builder import TraceBuilder

LONGEST = 16 << 20
"""A line longer than that is no line of a log."""


def lines(path: Path, options: ReadOptions, builder: TraceBuilder | None = None) -> Iterator[bytes]:
    """Each line without its end.

    Raises `InputError` for a line that does not end, and for a gzip file that was cut off; with `--partial`
    the lines before the cut are taken, and the loss is reported.
    """
    rest = b""
    try:
        for block in stream.blocks(path, options.advance if builder else None):
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > LONGEST:
                raise InputError(f"{path}: has a line without an end")
            yield from (line.removesuffix(b"\r") for line in whole)
    except stream.TruncatedError as error:
        if not options.partial:
            raise InputError(f"{path}: cut off ({error})", hint="--partial analyses what is left") from error
        if builder is not None:
            builder.problem(reading.LINES_TRUNCATED, 1, file=path.name)
    if rest:
        yield rest.removesuffix(b"\r")


def first_object(head: bytes) -> dict[str, Any]:
    """The object on the first line; empty where there is none."""
    return json_object(head.lstrip().partition(b"\n")[0]) or {}


def read_objects(path: Path, options: ReadOptions, builder: TraceBuilder) -> Iterator[dict[str, Any] | None]:
    """The object of every line that isn't empty; None for one that can't be read (the last, if cut off)."""
    return (json_object(line) for line in lines(path, options, builder) if line.strip())


def integer(value: Any) -> int | None:
    """A JSON number as int; None for anything else and for what no table holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 62:
        return None
    return round(value)


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
