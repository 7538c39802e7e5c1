"""Larger Kineto traces, by repeating a real one.

Every copy is the real trace's events once more, later in time, with fresh correlation ids, External ids, flow
ids and sequence numbers; the text around those numbers stays as the profiler wrote it. Copies never overlap,
so the expected contents of the enlarged trace follow from the real one. One copy at a time is held in memory.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from benchmarks.waits.template import NUMBERS, Template

_STEP = re.compile(rb"ProfilerStep#\d+")


@dataclass(frozen=True)
class Enlarged:
    """What was written."""

    path: Path
    size: int
    """Bytes of JSON, before compression."""
    events: int
    copies: int
    steps: int


def enlarge(template: Template, target: Path, size: int) -> Enlarged:
    """Write a trace of at least `size` bytes of JSON (one copy at the least), gzipped where `target` ends in `.gz`."""
    copies = max(1, round(size / template.size))
    written = steps = 0
    with _open(target) as file:
        for part, more_steps in _parts(template, copies):
            file.write(part)
            written += len(part)
            steps += more_steps
    return Enlarged(target, written, copies * template.events + steps + len(template.once), copies, steps)


def _open(target: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.open(target, "wb", compresslevel=6)) if target.suffix == ".gz" else target.open("wb")


def _parts(template: Template, copies: int) -> Iterator[tuple[bytes, int]]:
    """The document in pieces, each with its number of steps."""
    yield template.before, 0
    for index in range(copies):
        annotations = _steps(template, index)
        yield b"".join(annotation + b",\n  " for annotation in annotations), len(annotations)
        yield _copy(template, index), 0
        yield b",\n  " if index < copies - 1 or template.once else b"", 0
    yield b",\n  ".join(template.once) + template.after, 0


def _copy(template: Template, index: int) -> bytes:
    added = {kind: index * stride for kind, stride in template.strides.items()}
    filled = [b""] * (2 * len(template.values) + 1)
    filled[::2] = template.text
    filled[1::2] = [b"%d" % (value + added[kind]) for kind, value in zip(template.kinds, template.values, strict=True)]
    return b"".join(filled)


def _steps(template: Template, index: int) -> list[bytes]:
    """The real trace's own steps, numbered on."""
    first = index * len(template.steps)
    return [_step(template, text, index, first + position) for position, text in enumerate(template.steps)]


def _step(template: Template, text: bytes, index: int, number: int) -> bytes:
    """A step annotation of the real trace, in the place of copy `index`, with another number."""

    def moved(match: re.Match[bytes]) -> bytes:
        value = int(match[2]) + index * template.strides.get(match[1].decode(), 0)
        return text[match.start() : match.start(2)] + b"%d" % value

    return _STEP.sub(b"ProfilerStep#%d" % number, NUMBERS.sub(moved, text))
