"""Writing output files and folders: whole or not at all, and never over an existing file without --force."""

from __future__ import annotations

import errno
import glob
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path

import click

from gpuscope.errors import InputError, UsageError


def check_free(
    paths: Iterable[Path],
    force: bool,
    inputs: Iterable[str] = (),
    folders: Iterable[Path] = (),
    makes: Path | None = None,
) -> None:
    """Raise, before any work is done, where an output can't be written or is in the way of something.

    `paths` are to become files, `folders` folders; `makes` is a folder that the command makes for them. What is read
    is never written over, nor is what is of another kind, whatever `force` says. Raises `UsageError` for these,
    `InputError` where nothing can be written.
    """
    read = {os.path.realpath(one) for name in inputs for one in (glob.glob(name, recursive=True) or [name])}
    files, folders = list(paths), list(folders)
    if len({os.path.realpath(path) for path in [*files, *folders]}) < len(files) + len(folders):
        raise UsageError(f"{files[0]} is named for two outputs", hint="name a file for each")
    for path in [*files, *folders]:
        if str(path) == "-":
            raise UsageError("this can't go to stdout", hint="name a file instead of -")
        if os.path.realpath(path) in read or _is_trace_below(path, read):
            raise UsageError(f"{path} is the input", hint="name another file to write")
        if path.exists() and not path.is_file() and not path.is_dir():
            raise UsageError(f"{path} is not a regular file", hint="name another file")
    for path in files:
        if path.is_dir():
            raise UsageError(f"{path} is a folder", hint=f"name the file to write, for example in {path}/")
        if path.exists() and not force:
            raise UsageError(f"{path} exists already", hint="name another, or pass --force to overwrite it")
        if path.exists() and not _may_write(path):
            raise InputError(f"{path}: can't be written: it is read-only", hint="name another file, or chmod u+w it")
        _check_writable(path, _existing(path.parent))
        if not path.parent.exists() and path.parent != makes:
            raise InputError(f"{path}: can't be written: no such folder", hint=f"mkdir -p {path.parent}")
    for path in folders:
        if path.is_file():
            raise UsageError(f"{path} is a file", hint="name a folder")
        if path.is_dir() and any(path.iterdir()) and not force:
            raise UsageError(f"{path} exists already", hint="name another, or pass --force to overwrite it")
        _check_writable(path, _existing(path))


def _is_trace_below(path: Path, read: Collection[str]) -> bool:
    """Whether `path` is one of the traces of a folder that is read."""
    from gpuscope.sources.source import Role, source_of

    above = {str(one) for one in Path(os.path.realpath(path)).parents}
    if not path.is_file() or above.isdisjoint(read):
        return False
    try:
        return source_of(path).files.role is Role.TIMELINE
    except InputError:
        return False


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above that is there."""
    folder = Path(os.path.realpath(folder))
    return next(one for one in (folder, *folder.parents) if os.path.lexists(one))


def _check_writable(path: Path, folder: Path) -> None:
    """Raise `InputError` where no file can be made in `folder`; tried with one that has no name, or not for long."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> InputError:
    return InputError(f"{path}: can't be written: {error.strerror or error}", hint=_REMEDIES.get(error.errno or 0))


_REMEDIES = {
    errno.ENOSPC: "free some space, or name a place on another disk",
    errno.EDQUOT: "free some space, or name a place on another disk",
    errno.EACCES: "name a folder that you may write to",
    errno.EPERM: "name a folder that you may write to",
    errno.EROFS: "name a folder that you may write to",
    errno.ENOTDIR: "a part of the path is a file: name a folder",
}


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
    import tempfile

    path = Path(os.path.realpath(path))  # a link stays one: what it points to is written
    made: list[Path] = []
    try:
        made = _made_folders(path.parent)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
    except OSError as error:
        _remove_empty(made)
        raise _not_written(path, error) from error
    os.close(handle)
    temporary = Path(name)
    try:
        fill(temporary)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        made = []
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
        _remove_empty(made)


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write files into a temporary folder and put them in place once all are complete.

    What else `path` holds stays. Raises `InputError` where that can't be done (no permission, disk full).
    """
    import shutil
    import tempfile

    path = Path(os.path.realpath(path))
    made: list[Path] = []
    temporary: Path | None = None
    try:
        made = _made_folders(path)
        temporary = Path(tempfile.mkdtemp(dir=path, prefix=".unfinished-"))
        fill(temporary)
        for file in sorted(temporary.iterdir()):
            os.replace(file, path / file.name)
        made = []
    except OSError as error:
        raise _not_written(path, error) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        _remove_empty(made)


def _made_folders(folder: Path) -> list[Path]:
    """Make `folder` and what is missing above it; those that were made, the outermost first."""
    missing = [one for one in (*reversed(folder.parents), folder) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    return missing


def _remove_empty(folders: list[Path]) -> None:
    """Take back the folders that were made for what then could not be written."""
    for folder in reversed(folders):
        with suppress(OSError):
            folder.rmdir()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
