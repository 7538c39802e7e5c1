"""Writing output files: atomically, and never over an existing file without --force."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import click

from gpuscope.errors import InputError, UsageError


def check_free(paths: Iterable[Path], force: bool, inputs: Iterable[str] = ()) -> None:
    """Raise `UsageError`, before any work is done, where an output is in the way of something.

    What is read is never written over, nor is what is not a regular file, whatever `force` says.
    """
    read = {os.path.realpath(name) for name in inputs}
    for path in paths:
        if str(path) == "-":
            raise UsageError("this can't go to stdout", hint="name a file instead of -")
        if os.path.realpath(path) in read:
            raise UsageError(f"{path} is the input", hint="name another file to write")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"{path} is not a regular file", hint="name another, or print to stdout with --json")
        occupied = any(path.iterdir()) if path.is_dir() else path.exists()
        if occupied and not force:
            raise UsageError(f"{path} exists already", hint="name another, or pass --force to overwrite it")


def say_written(path: Path, how: str = "") -> None:
    """Say on stderr that `path` was written, and what opens it."""
    what = f"{path}{'/' if path.is_dir() else ''}"
    click.echo(f"Wrote {what}" + (f" ({how})" if how else ""), err=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text to `path` as a whole or not at all; makes the folder."""
    write(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a temporary file beside `path` and put it in place once it is complete.

    Raises `InputError` where that can't be done (no permission, disk full).
    """
    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
    os.close(handle)
    temporary = Path(name)
    try:
        fill(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
