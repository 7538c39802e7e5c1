"""What a script has written in the working directory: told, since trials write there as any run of it does."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MOST_FILES = 20_000
"""A larger folder is not watched."""
TOLD = 20
_LEFT_OUT = {"__pycache__", ".git"}

Seen = Mapping[str, tuple[int, int]]
"""Size and time of change by path."""


def seen(folder: Path, without: Path) -> Seen | None:
    """The files below a folder, but for those below `without`; None of too many."""
    found: dict[str, tuple[int, int]] = {}
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _LEFT_OUT and Path(parent, name) != without]
        for name in files:
            path = os.path.join(parent, name)
            try:
                told = os.lstat(path)
            except OSError:
                continue
            found[path] = (told.st_size, told.st_mtime_ns)
            if len(found) > MOST_FILES:
                return None
    return found


def changed(before: Seen | None, folder: Path, without: Path) -> list[str]:
    """Files that are new or others than before, by their paths within the folder; the first of them."""
    after = seen(folder, without) if before is not None else None
    if before is None or after is None:
        return []
    return sorted(os.path.relpath(path, folder) for path, told in after.items() if before.get(path) != told)[:TOLD]
