"""Traces in a `.tar`, `.tar.gz`, `.zip` …: unpacked once per process into a temporary folder, within what the disk has
room for. What the standard library can't unpack is recognised, so that the error can say how.
"""

from __future__ import annotations

import atexit
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from gpuscope.errors import InputError
from gpuscope.progress import reading

if TYPE_CHECKING:
    import tarfile
    import zipfile

_TAR_AT, _TAR = 257, b"ustar"
_ZIP, _SEVEN = b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c"
_PACKED = {b"BZh": ".bz2", b"\xfd7zXZ\0": ".xz", b"\x28\xb5\x2f\xfd": ".zst"}
_NAMES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".zip", ".7z")
_OURS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")
MOST_FILES = 100_000
"""Files of an archive: traces of thousands of ranks, and what lies beside them, are fewer."""
SPARED = 1 << 30
"""Bytes of the temporary folder's disk that stay free."""

Member = tuple[str, int, IO[bytes]]
"""A plain file of an archive: its name, its bytes, its content."""


def is_tar(head: bytes) -> bool:
    """Whether a file that begins so, once inflated, is a tar archive: its first member may well look like a trace."""
    return head[_TAR_AT : _TAR_AT + len(_TAR)] == _TAR


def is_archive(path: Path) -> bool:
    """Whether a file is called as the archives are that can be unpacked here."""
    return path.name.lower().endswith(_OURS) and path.is_file()


@cache
def unpacked(path: Path) -> Path:
    """The folder that holds an archive's plain files, removed when this process ends.

    Links, devices and names that lead out of it are left out. Raises `InputError` where the archive is damaged, needs a
    password, or holds more than there is room for.
    """
    import shutil
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="gpuscope-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    room = shutil.disk_usage(folder).free - SPARED
    try:
        with reading(path.stat().st_size, f"unpacking {path.name}") as advance, _opened(path, advance) as members:
            for count, (name, size, content) in enumerate(members, 1):
                room -= size
                if room < 0 or count > MOST_FILES:
                    raise InputError(f"{path}: {_too_much(count, folder)}", hint=_by_hand(path))
                target = folder.joinpath(*PurePosixPath(name).parts)
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    # A zip's directory may give a size that is not the content's.
                    copied = _copied(content, file, size)
                if copied != size:
                    raise InputError(f"{path}: is damaged: {name} has not the {size:,} bytes that it should have")
    except _damages() as error:
        raise InputError(f"{path}: can't be unpacked: {error}", hint="copy it again, or unpack it by hand") from None
    _ARCHIVES[folder] = path
    return folder


def _damages() -> tuple[type[Exception], ...]:
    import tarfile
    import zipfile
    from lzma import LZMAError

    others = (zlib.error, EOFError, RuntimeError, NotImplementedError, OSError)
    return (tarfile.TarError, zipfile.BadZipFile, LZMAError, *others)


_ARCHIVES: dict[Path, Path] = {}
"""Folder to the archive that was unpacked into it."""


def _too_much(count: int, folder: Path) -> str:
    if count > MOST_FILES:
        return f"holds more than {MOST_FILES:,} files"
    return f"holds more than the disk of {folder.parent} has room for"


def _copied(content: IO[bytes], file: IO[bytes], most: int) -> int:
    """Bytes copied, of which there may be one more than `most` where the content does not end there."""
    copied = 0
    while block := content.read(min(1 << 20, most + 1 - copied)):
        copied += file.write(block)
    return copied


@contextmanager
def _opened(path: Path, advance: Callable[[int], None]) -> Iterator[Iterator[Member]]:
    import tarfile
    import zipfile

    with _Counted(path, advance) as file:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(file) as packed:
                yield _of_zip(packed)
        else:
            with tarfile.open(fileobj=file) as packed_tar:
                yield _of_tar(packed_tar)


class _Counted(io.FileIO):
    """A file that says how many of its bytes were read."""

    def __init__(self, path: Path, advance: Callable[[int], None]) -> None:
        super().__init__(path)
        self._advance = advance

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(-1 if size is None else size) or b""
        self._advance(len(found))
        return found


def _of_zip(packed: zipfile.ZipFile) -> Iterator[Member]:
    for info in packed.infolist():
        if not info.is_dir() and _stays_inside(info.filename):
            with packed.open(info) as content:
                yield info.filename, info.file_size, content


def _of_tar(packed: tarfile.TarFile) -> Iterator[Member]:
    for info in packed:
        if info.isreg() and _stays_inside(info.name) and (content := packed.extractfile(info)) is not None:
            yield info.name, info.size, content


def _stays_inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not name.startswith("/") and ".." not in parts and "\0" not in name and "\\" not in name


def remedy(path: Path, head: bytes) -> str | None:
    """The commands that unpack an archive or a packed file; None where it is none."""
    if is_tar(head) or head.startswith(_ZIP) or (path.name.lower().endswith(_NAMES) and _suffix(head)):
        return _by_hand(path)
    if head.startswith(_SEVEN):
        return f"unpack it (7z x {_quoted(path)}), then analyse what it held"
    if (suffix := _suffix(head)) is None:
        return None
    program = {".bz2": "bunzip2 -k", ".xz": "unxz -k", ".zst": "unzstd"}[suffix]
    return f"unpack it: {program} {_quoted(path)}"


def _quoted(path: Path | str) -> str:
    import shlex

    return shlex.quote(str(path))


def _suffix(head: bytes) -> str | None:
    return next((suffix for magic, suffix in _PACKED.items() if head.startswith(magic)), None)


def _by_hand(path: Path) -> str:
    import zipfile

    folder = path.name
    for suffix in sorted(_NAMES, key=len, reverse=True):
        folder = folder.removesuffix(suffix)
    folder = _quoted(f"{folder}-unpacked" if folder == path.name else folder)
    command = "unzip {} -d" if zipfile.is_zipfile(path) else "tar xf {} -C"
    return f"unpack it: mkdir {folder} && {command.format(_quoted(path))} {folder}; then: gpuscope analyze {folder}"


def archives_in(names: Iterable[Path]) -> list[Path]:
    """Those that are called as archives are."""
    return sorted(path for path in names if path.name.lower().endswith(_NAMES))


def shown(path: Path) -> Path | None:
    """How a file of an unpacked archive is called: the archive's path, and its own in there; None for other files."""
    for folder, archive in _ARCHIVES.items():
        if path.is_relative_to(folder):
            return archive / path.relative_to(folder)
    return None


def folder_of(archive: Path) -> Path | None:
    """The folder of an archive that was unpacked; None where it was not."""
    return next((folder for folder, own in _ARCHIVES.items() if own == archive), None)
