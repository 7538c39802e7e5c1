"""Whether and how what is made of an input is kept: parts of traces, and whole reports."""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import Thread
from typing import IO, Any, TypeVar

from gpuscope.plugins import SOURCES, plugins
from gpuscope.version import __version__
from gpuscope.when_used import dataclass

# Objects in files: a pickle, and the arrays in it one after another, to be mapped rather than read.
#
# Only files in a folder that nobody but the user can write to are ever opened (`cache_folder`).

_MAGIC = b"gpuscope\x00kept\x00\x012"
_END = b"\x00whole file\x00"
_HEAD = struct.Struct("<16sQQQL")
"""Magic, size of the file, bytes of the pickle, number of arrays, check sum of pickle and sizes; then each array's
bytes as one Q."""
_ALIGNED = 64


def prepared(kept: Any) -> Callable[[IO[bytes]], None]:
    """What writes an object into a file: all but its arrays may change meanwhile.

    Raises what `pickle` raises for one that can't be kept.
    """
    import pickle

    arrays: list[pickle.PickleBuffer] = []
    text = pickle.dumps(kept, protocol=5, buffer_callback=arrays.append)
    views = [array.raw() for array in arrays]
    sizes = [view.nbytes for view in views]
    start = _HEAD.size + 8 * len(sizes) + len(text)
    total = start + sum(_padded(at, size)[1] for at, size in _places(start, sizes)) + len(_END)

    lengths = struct.pack(f"<{len(sizes)}Q", *sizes)

    def write(file: IO[bytes]) -> None:
        file.write(_HEAD.pack(_MAGIC, total, len(text), len(sizes), zlib.crc32(text, zlib.crc32(lengths))))
        file.write(lengths)
        file.write(text)
        for (at, size), view in zip(_places(start, sizes), views, strict=True):
            file.write(b"\0" * _padded(at, size)[0])
            file.write(view)
        file.write(_END)

    return write


def read(path: Path) -> Any:
    """The object in a file. Raises `ValueError` for one that is not whole, `OSError` for one that can't be read.

    Arrays stand in the mapped file; what is written to them is the process's own.
    """
    with path.open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if len(mapped) < _HEAD.size + len(_END):
        raise ValueError("too short")
    magic, total, length, count, checked = _HEAD.unpack_from(mapped)
    if magic != _MAGIC or total != len(mapped) or mapped[-len(_END) :] != _END or 8 * count > total:
        raise ValueError("not whole, or of another version")
    sizes = struct.unpack_from(f"<{count}Q", mapped, _HEAD.size)
    start = _HEAD.size + 8 * count
    view = memoryview(mapped)
    places = [(at + _padded(at, size)[0], size) for at, size in _places(start + length, list(sizes))]
    if start + length > total or any(at + size > total for at, size in places):
        raise ValueError("its parts are longer than the file")
    # A damaged pickle may ask for any amount of memory.
    if zlib.crc32(view[start : start + length], zlib.crc32(view[_HEAD.size : start])) != checked:
        raise ValueError("damaged")
    import pickle

    try:
        return pickle.loads(view[start : start + length], buffers=[view[at : at + size] for at, size in places])
    except Exception as error:  # of whatever kind: a damaged pickle may raise any
        raise ValueError(str(error)) from error


def _padded(at: int, size: int) -> tuple[int, int]:
    """Bytes to leave out before an array that would begin at `at`, and what both take together."""
    pad = -at % _ALIGNED
    return pad, pad + size


def _places(start: int, sizes: list[int]) -> list[tuple[int, int]]:
    """Where each array would begin without padding, and its size."""
    places: list[tuple[int, int]] = []
    for size in sizes:
        places.append((start, size))
        start += _padded(start, size)[1]
    return places


# The folder of what is kept: found by key, limited in size, closed to other users.

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
        kept = read(path)
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


# Keys of what is kept: the content it was made of, what was asked of it, and the program that made it.

_SAMPLES, _SAMPLE = 16, 1 << 16


def content_key(path: Path, *asked: object) -> str | None:
    """A key for what is made of a file when `asked` so; None for what is no file, or can't be read.

    Of the content it takes the size, the times of the last change (one of which no program can set back), and pieces
    from all over it: to read gigabytes again would take as long as to parse them. What is made may hold the path, so
    that is part of it too.
    """
    import hashlib

    digest = hashlib.blake2b(digest_size=20)
    try:
        status = path.stat()
        with path.open("rb") as file:
            for place in range(_SAMPLES + 1):
                file.seek(max(0, status.st_size - _SAMPLE) * place // _SAMPLES)
                digest.update(file.read(_SAMPLE))
    except OSError:
        return None
    parts = (path.absolute(), status.st_size, status.st_mtime_ns, status.st_ctime_ns, program(), *asked)
    digest.update("\0".join(map(str, parts)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


@cache
def program() -> str:
    """The version of gpuscope, and the state of its files: a change of the code is another program."""
    import hashlib

    root = Path(__file__).parent
    digest = hashlib.blake2b(f"{__version__} {sys.version}".encode(), digest_size=16)
    for folder, folders, files in os.walk(root, followlinks=True):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            status = os.stat(os.path.join(folder, name))
            digest.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


WORTH = 8 << 20
"""Bytes of a file from which it is quicker to look it up than to read it again."""
Made = TypeVar("Made")


def is_worth(path: Path) -> bool:
    """Whether a path is a file of this size."""
    return path.is_file() and path.stat().st_size >= WORTH


def key_of(path: Path, source: Any, options: Any, *asked: object) -> str | None:
    """The key of what is made of a file that a `Source` reads with `ReadOptions`, of whose package this one knows
    nothing; None where nothing of it is kept."""
    if not options.cache or not source.files.keepable or not is_worth(path):
        return None

    return content_key(path, source.name, options.partial, options.nsys, *asked)


def kept(key: str | None, kind: type[Made]) -> Made | None:
    """What is kept under a key, or None."""
    found = None if key is None else load(key)
    return found if isinstance(found, kind) else None


def keep(key: str | None, made: Any) -> Callable[[], None]:
    """Keep something, in a thread; arrays in it must not change. Returns what waits for it; Python's end does too."""
    if key is None:
        return lambda: None

    try:
        write = prepared(made)
    except Exception:  # of whatever kind: what pickle can't take is not kept
        return lambda: None
    thread = Thread(target=store, args=(key, write), name="gpuscope-keep")
    thread.start()
    return thread.join


_HARDWARE = "GPUSCOPE_HARDWARE"


def report_key(paths: Sequence[str], *asked: object) -> str | None:
    """The key of the report on these files when `asked` so; None where it may depend on more than these files: folders,
    URLs, a table of link rates of one's own (whether they lie in a run folder the caller knows), and for small ones."""
    from hashlib import blake2b

    files = [Path(path) for path in paths]
    if os.environ.get(_HARDWARE) or not all(map(is_worth, files)):
        return None

    keys = [content_key(path, "report") for path in files]
    if None in keys:
        return None
    parts = (*keys, *paths, *sorted(plugins(SOURCES)), *asked)
    return blake2b("\0".join(map(repr, parts)).encode("utf-8", "surrogateescape"), digest_size=20).hexdigest()
