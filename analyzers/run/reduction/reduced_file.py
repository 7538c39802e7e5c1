"""The source of `.gsr` files, which hold parts (`part_file.py`): apart, since every run asks whether a file is one."""

from __future__ import annotations

from pathlib import Path

from gpuscope.analyzers.run.file_part import Options, Part
from gpuscope.errors import InputError, UsageError
from gpuscope.sources.source import Files, ReadOptions, Role
from gpuscope.trace.builder import TraceBuilder

SUFFIX = ".gsr"


class ReducedSource:
    """Reads what `gpuscope reduce` wrote."""

    name = "reduced"
    files = Files(Role.TIMELINE, (SUFFIX,), (SUFFIX,))

    def sniff(self, path: Path, head: bytes) -> bool:
        """A zip whose first member is the part."""
        if path.is_dir() or not head.startswith(b"PK\x03\x04"):
            return False
        from gpuscope.analyzers.run.reduction.part_file import HEAD

        return head[30:].startswith(HEAD.encode())

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        """The rank of a file of one; the others are read to know."""
        del head
        from gpuscope.analyzers.run.reduction.part_file import read_head

        ranks = read_head(path).get("ranks")
        return ranks[0] if isinstance(ranks, list) and len(ranks) == 1 and isinstance(ranks[0], int) else None

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """A part has no events to open. Raises `InputError` always."""
        del builder, options
        raise InputError(f"{path}: is reduced: its events are not in it", hint="gpuscope analyze takes it")

    def part(self, path: Path, options: Options) -> Part:
        """The part. Raises `InputError` for a damaged file, `UsageError` for ranks or steps that it can't select."""
        from gpuscope.analyzers.run.reduction.part_file import read_part

        head, part = read_part(path)
        if options.read.advance:
            options.read.advance(path.stat().st_size)
        if options.ranks is not None and not set(part.trace.ranks) <= set(options.ranks):
            raise UsageError(
                f"{path} holds ranks {part.trace.ranks}, which are one part",
                hint="reduce with --ranks, or name them all",
            )
        if options.steps is not None and head.get("steps") != list(options.steps):
            raise UsageError(f"{path} was reduced for other steps", hint="give --steps to gpuscope reduce")
        return part


SOURCE = ReducedSource()
