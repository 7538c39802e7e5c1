"""Files without a timeline of a rank: what NCCL, its tests, PyTorch's Flight Recorder and allocator wrote beside it.

They go with traces of any format. Which formats these are, the sources say (`Source.files`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.source import Files, Role, all_sources, source_for, source_of, suffixes_of

PAUSE = when_used.pattern(r"pause\d+")
"""Folder of what the recorder wrote while a rank was late that came back."""
RECORDS = (Role.RECORD, Role.HANG_RECORD)


def files_of(fmt: str) -> Files:
    """What the source of that format says of its files; a format of no source installed is taken for a timeline."""
    return next((source.files for source in all_sources() if source.name == fmt), Files(Role.TIMELINE))


def is_timeline(fmt: str) -> bool:
    """Whether files of that format hold a timeline of their ranks."""
    return files_of(fmt).role is Role.TIMELINE


def is_record(path: Path, *roles: Role) -> bool:
    """Whether a file is a record of one of these roles; without any, whether it is a record at all."""
    try:
        return path.is_file() and source_of(path).files.role in (roles or RECORDS)
    except InputError:
        return False


def records_below(folder: Path, *roles: Role) -> list[Path]:
    """The records of these roles (or any) below a folder, whatever their names."""
    return [path for path in files_below(folder) if is_record(path, *roles)]


def hang_records_below(folder: Path) -> list[Path]:
    """What below a folder tells of a hang, whatever its name: dumps, stacks, logs; not those of a pause."""
    found = (path for path in files_below(folder) if not PAUSE.fullmatch(path.parent.name) or path.parent == folder)
    return [path for path in found if tells_of_hang(path)]


def tells_of_hang(path: Path) -> bool:
    """Whether a file's format tells of hangs."""
    try:
        files = source_of(path).files if path.is_file() else None
    except InputError:
        return False
    return files is not None and (files.role is Role.HANG_RECORD or files.hangs)


def newest_dumps(paths: Sequence[Path]) -> list[Path]:
    """Of dumps that are one per rank, the one written last: a run folder may hold those of several requests."""
    newest: dict[tuple[str, int | Path], Path] = {}
    for path in paths:
        source, head = source_for(path)
        rank = source.peek_rank(path, head) if source.files.one_per_rank else None
        key = source.name, path if rank is None else rank
        other = newest.get(key)
        if other is None or path.stat().st_mtime_ns > other.stat().st_mtime_ns:
            newest[key] = path
    chosen = set(newest.values())
    return [path for path in paths if path in chosen]


def records_beside(folder: Path) -> list[Path]:
    """The records to be read with the traces of a folder, found by the suffixes that such files have."""
    suffixes = suffixes_of(Role.RECORD)
    return [path for path in files_below(folder) if path.name.endswith(suffixes) and is_record(path, Role.RECORD)]


def files_below(folder: Path) -> Iterator[Path]:
    """All files below a folder, but hidden ones."""
    for parent, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(files) if not name.startswith("."))
