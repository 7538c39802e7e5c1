"""The folder of what is kept: found by key, limited in size, closed to other users."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from gpuscope.when_used import dataclass

ENV_OFF = "GPUSCOPE_NO_CACHE"
ENV_LIMIT = "GPUSCOPE_CACHE_GB"
DEFAULT_LIMIT_GB = 10.0
_SUFFIX = ".kept"
_TEMPORARY = "tmp-"
_ABANDONED_S = 3600
"""A temporary file this old belongs to no process that still writes it."""


@dataclass(frozen=True)
class Entry:
    """A kept file."""

    path: Path
    size: int
    used: float
    """When it was last used, s since the epoch."""


def folder() -> Path:
    """Where things are kept: `parsed` in the user's cache directory for gpuscope."""
    from platformdirs import user_cache_path

    return user_cache_path("gpuscope", appauthor=False) / "parsed"


def limit_bytes() -> int:
    """What may be kept, in bytes: GPUSCOPE_CACHE_GB, else 10 GB."""
    try:
        return int(float(os.environ.get(ENV_LIMIT, DEFAULT_LIMIT_GB)) * 1e9)
    except (ValueError, OverflowError):
        return int(DEFAULT_LIMIT_GB * 1e9)


def load(key: str) -> Any:
    """The object kept under a key, or None. One that is damaged is removed."""
    path = folder() / f"{key}{_SUFFIX}"
    if not path.exists() or not all(map(_is_ours, (path.parent.parent, path.parent, path))):
        return None
    try:
        from gpuscope.cache import object_files

        kept = object_files.read(path)
        os.utime(path)
    except ValueError:
        with suppress(OSError):
            path.unlink()
        return None
    except OSError:
        return None
    return kept


def store(key: str, write: Callable[[IO[bytes]], None]) -> bool:
    """Keep what `write` writes, and let go what was not used for longest where all together are too much.

    Written under another name and then renamed, so that nobody ever sees half of it. False where it can't be kept: a
    full disk, a folder that others can write to, more than half of what may be kept.
    """
    import tempfile

    place = folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(place) or not _is_ours(place.parent):
            return False
        descriptor, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=place)  # for the user alone
    except OSError:
        return False
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
            size = file.tell()
        if size > limit_bytes() // 2:
            os.unlink(name)
            return False
        os.replace(name, place / f"{key}{_SUFFIX}")
    except OSError:  # a full disk: there is no need to keep it
        with suppress(OSError):
            os.unlink(name)
        return False
    shrink(limit_bytes())
    return True


def entries() -> list[Entry]:
    """What is kept, the longest unused first."""
    found: list[Entry] = []
    with suppress(OSError):
        for path in folder().iterdir():
            with suppress(OSError):
                status = path.stat()
                if path.suffix == _SUFFIX or path.name.startswith(_TEMPORARY):
                    found.append(Entry(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def shrink(limit: int) -> tuple[int, int]:
    """Remove what was not used for longest until at most `limit` bytes are kept: how many files, and bytes, went."""
    there = entries()
    newest = there[-1].used if there else 0.0
    total = sum(entry.size for entry in there)
    files = removed = 0
    for entry in there:
        writing = entry.path.name.startswith(_TEMPORARY) and newest - entry.used < _ABANDONED_S
        abandoned = entry.path.name.startswith(_TEMPORARY) and not writing
        if (total - removed > limit and not (writing and limit)) or abandoned:
            with suppress(OSError):
                entry.path.unlink()
                files, removed = files + 1, removed + entry.size
    return files, removed


def _is_ours(path: Path) -> bool:
    """Whether nobody but this user can have written it."""
    status = path.lstat()
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        return False
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)
