"""`.gsr` files: a part as a zip of numpy arrays, which `numpy.load` opens without running anything.

The first array is JSON in UTF-8: the version, what was reduced, and the part with its arrays by number.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.analyzers.run.file_part import Options, Part
from gpuscope.analyzers.run.reduction.packing import UnpackableError, fingerprint, pack, unpack
from gpuscope.errors import InputError, UsageError
from gpuscope.output import write
from gpuscope.sources.source import Files, ReadOptions, Role
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.table import Array
from gpuscope.version import __version__

SUFFIX = ".gsr"
HEAD = "gpuscope_part"
FORMAT = 1
MOST_EXPANSION = 200
"""Times that a file may grow when it is unpacked: repeated numbers compress far, hostile zeros farther."""
_SMALL = 64 << 20
_DAMAGED = (OSError, ValueError, KeyError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


def write_part(path: Path, part: Part, steps: tuple[int, int] | None) -> None:
    """Write a part, whole or not at all. Raises `InputError` where that can't be done."""
    arrays: list[Array] = []
    head = {
        "format": FORMAT, "gpuscope_version": __version__, "fingerprint": fingerprint(), "ranks": part.trace.ranks,
        "steps": list(steps) if steps else None, "part": pack(_without_secrets(part), arrays),
    }  # fmt: skip
    text = np.frombuffer(json.dumps(head, ensure_ascii=False, separators=(",", ":")).encode(), np.uint8)

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, **{HEAD: text}, **{f"a{number}": array for number, array in enumerate(arrays)})  # type: ignore[arg-type]

    write(path, fill)


def _without_secrets(part: Part) -> Part:
    """A source's facts say what was profiled; those of an nsys report hold the program's environment too."""
    sources = [
        replace(source, facts={key: value for key, value in source.facts.items() if "env" not in key.lower()})
        for source in part.trace.sources
    ]
    return replace(part, trace=part.trace.with_sources(sources))


def read_head(path: Path) -> tuple[dict[str, Any], list[Array]]:
    """The JSON and the arrays. Raises `InputError` for a file that is damaged, hostile, or of another version."""
    try:
        with zipfile.ZipFile(path) as packed:
            grown = sum(member.file_size for member in packed.infolist())
            if grown > max(MOST_EXPANSION * path.stat().st_size, _SMALL):
                raise InputError(f"{path}: would grow to {grown:,} bytes", hint="no reduced file does; make it again")
        with np.load(path, allow_pickle=False) as stored:
            head = json.loads(stored[HEAD].tobytes().decode())
            arrays = [stored[f"a{number}"] for number in range(len(stored.files) - 1)]
    # A zip that was changed can ask for encryption or a method that nobody wrote it with.
    except _DAMAGED as error:
        raise InputError(f"{path}: is damaged: {error}", hint="make it again with gpuscope reduce") from None
    if not isinstance(head, dict) or head.get("format") != FORMAT or head.get("fingerprint") != fingerprint():
        made = head.get("gpuscope_version") if isinstance(head, dict) else None
        raise InputError(
            f"{path}: was made by gpuscope {made}, and this is {__version__}",
            hint="reduce and analyse with one version",
        )
    return head, arrays


class ReducedSource:
    """Reads what `gpuscope reduce` wrote."""

    name = "reduced"
    files = Files(Role.TIMELINE, (SUFFIX,), (SUFFIX,))

    def sniff(self, path: Path, head: bytes) -> bool:
        """A zip whose first member is the part."""
        return not path.is_dir() and head.startswith(b"PK\x03\x04") and head[30:].startswith(HEAD.encode())

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        """The rank of a file of one; the others are read to know."""
        del head
        ranks = read_head(path)[0].get("ranks")
        return ranks[0] if isinstance(ranks, list) and len(ranks) == 1 and isinstance(ranks[0], int) else None

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """A part has no events to open. Raises `InputError` always."""
        del builder, options
        raise InputError(f"{path}: is reduced: its events are not in it", hint="gpuscope analyze takes it")

    def part(self, path: Path, options: Options) -> Part:
        """The part. Raises `InputError` for a damaged file, `UsageError` for ranks or steps that it can't select."""
        head, arrays = read_head(path)
        if options.read.advance:
            options.read.advance(path.stat().st_size)
        try:
            part = unpack(head["part"], arrays)
        except (UnpackableError, KeyError, RecursionError) as error:
            raise InputError(f"{path}: is damaged: {error}", hint="make it again with gpuscope reduce") from None
        if not isinstance(part, Part):
            raise InputError(f"{path}: holds no part", hint="make it again with gpuscope reduce")
        part.trace.check()
        if options.ranks is not None and not set(part.trace.ranks) <= set(options.ranks):
            raise UsageError(
                f"{path} holds ranks {part.trace.ranks}, which are one part",
                hint="reduce with --ranks, or name them all",
            )
        if options.steps is not None and head.get("steps") != list(options.steps):
            raise UsageError(f"{path} was reduced for other steps", hint="give --steps to gpuscope reduce")
        return part


SOURCE = ReducedSource()
