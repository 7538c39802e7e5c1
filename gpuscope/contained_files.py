"""Files of a folder that others write into, such as a run folder, read so that none of them can do harm.

A link may lead out of the folder, a device or a sparse file may have no end, a pipe keeps its reader waiting: what is
no plain file of the folder, or larger than such a file ever is, is refused, and its reader says so.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO, Literal

from gpuscope.when_used import dataclass

LARGEST_TEXT = 64 << 20
"""Bytes of a file that is read at once: manifests of thousands of ranks have a few."""

Reason = Literal["leads_out", "no_plain_file", "too_large", "newer"]
_WORDS: dict[Reason, str] = {
    "leads_out": "leads out of the folder",
    "no_plain_file": "is no plain file",
    "too_large": "is larger than any such file",
    "newer": "was written by another version of gpuscope",
}


@dataclass(frozen=True, order=True)
class Refused:
    """A file that is not read: its path within the folder, and why."""

    name: str
    reason: Reason

    @property
    def why(self) -> str:
        """In a sentence."""
        return f"{self.name} {_WORDS[self.reason]}: it is not read"


class RefusedError(OSError):
    """The file must not be read. An `OSError`, as that of a file that can't be."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.why)
        self.refused = refused


def opened(folder: Path, path: Path, largest: int) -> IO[bytes]:
    """Opens `path`, below `folder`, to read at most `largest` bytes. Raises `RefusedError`, else `OSError`."""
    real = _inside(folder, path)
    if not stat.S_ISREG(real.stat().st_mode):
        raise RefusedError(Refused(_name(folder, path), "no_plain_file"))
    # Not to wait for the writer of a pipe that has taken the file's place since.
    descriptor = os.open(real, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise RefusedError(Refused(_name(folder, path), "no_plain_file"))
        if status.st_size > largest:
            raise RefusedError(Refused(_name(folder, path), "too_large"))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(folder: Path, path: Path) -> str:
    """The text of a small file below `folder`. Raises `RefusedError`, else `OSError` or `ValueError`."""
    with opened(folder, path, LARGEST_TEXT) as file:
        return file.read(LARGEST_TEXT).decode()


def listed(folder: Path, inner: str, suffix: str) -> list[Path]:
    """What `folder/inner` holds with that suffix, by name; nothing where it is missing. Raises `RefusedError`."""
    try:
        own = _inside(folder, folder / inner)
    except FileNotFoundError:
        return []
    if not own.is_dir():
        raise RefusedError(Refused(inner, "no_plain_file"))
    return sorted(path for path in (folder / inner).iterdir() if path.name.endswith(suffix))


def refused(folder: Path, path: Path) -> Refused | None:
    """Why a file or folder below `folder` is not to be read; None where it may be, or is not there."""
    try:
        mode = _inside(folder, path).stat().st_mode
    except RefusedError as error:
        return error.refused
    except OSError:
        return None
    return None if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else Refused(_name(folder, path), "no_plain_file")


def _inside(folder: Path, path: Path) -> Path:
    """Where `path` really lies. Raises `RefusedError` where that is not below `folder`, `OSError` where it is not."""
    try:
        real = path.resolve(strict=True)
    except (RuntimeError, ValueError) as error:  # links in a circle, before Python 3.13; a name that no file has
        raise OSError(f"{path}: {error}") from error
    if not real.is_relative_to(folder.resolve()):
        raise RefusedError(Refused(_name(folder, path), "leads_out"))
    return real


def _name(folder: Path, path: Path) -> str:
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)
