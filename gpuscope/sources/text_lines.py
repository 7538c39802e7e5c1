"""The lines of a text file, one after the other, however large the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.base import ReadOptions
from gpuscope.trace.builder import TraceBuilder

LONGEST = 16 << 20
"""A line longer than that is no line of a log."""


def lines(path: Path, options: ReadOptions, builder: TraceBuilder | None = None) -> Iterator[bytes]:
    """Each line without its end.

    Raises `InputError` for a line that does not end, and for a gzip file that was cut off; with `--partial`
    the lines before the cut are taken, and the builder is told.
    """
    rest = b""
    try:
        for block in stream.blocks(path, options.advance if builder else None):
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > LONGEST:
                raise InputError(f"{path}: has a line without end")
            yield from (line.removesuffix(b"\r") for line in whole)
    except stream.TruncatedError as error:
        if not options.partial:
            raise InputError(f"{path}: is cut off ({error})", hint="--partial takes what is there") from error
        if builder is not None:
            builder.problem("data_loss", "truncated", 1, f"{path.name}: is cut off; what is there was taken")
    if rest:
        yield rest.removesuffix(b"\r")
