"""What a source is, and how the sources are found."""

from __future__ import annotations

import errno
import re
import stat
from collections.abc import Callable
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol, runtime_checkable

from gpuscope import archives, when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.plugins import SOURCES, listed, load, plugins
from gpuscope.sources import other_recorders, stream
from gpuscope.trace.builder import TraceBuilder
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class ReadOptions:
    """How to read. Everything here has a sensible default and a command-line option."""

    partial: bool = False
    """Take what is there of a file that is cut off, rather than refuse it."""
    nsys: str | None = None
    """The nsys program; by default `GPUSCOPE_NSYS`, else the one on PATH."""
    advance: Callable[[int], None] | None = None
    """Called with the number of bytes read, for a progress bar."""
    first_rank: int | None = None
    """The rank of the file's first process where the file records no ranks; None where it is the only such file."""
    linked: tuple[Path, ...] = ()
    """Execution traces of the run, one of which may be of the file's process."""
    cache: bool = False
    """Look for what was read of a large file before, and keep what is read (`gpuscope.cache`)."""
    device: str | None = None
    """The model of the devices, where files don't tell it."""
    status: Callable[[str], None] | None = None
    """Called with what is going on where bytes show nothing (an export under way)."""


class Role(Enum):
    """What the files of a format hold, and so when they are read from a folder that is named."""

    TIMELINE = "timeline"
    """What ran when on a rank: the traces of a folder."""
    RECORD = "record"
    """What else is known of a run: read with the timelines; alone where there are none."""
    HANG_RECORD = "hang record"
    """What each rank was doing at the end: read with the timelines only where the job hung."""


@dataclass(frozen=True)
class Files:
    """How the files of a format are found in folders, and what they are good for."""

    role: Role
    suffixes: tuple[str, ...] = ()
    """What their names, or those of folders that are one input, end with. Files named outright may have any name."""
    unmistakable: tuple[str, ...] = ()
    """Those suffixes that nothing else has: a file of such a name that is not recognised is an error, not left out."""
    forms: tuple[str, ...] = ()
    """Suffixes under which one recording may lie in several forms, the preferred one first: one of them is read."""
    one_per_rank: bool = True
    """Whether two files of one rank contradict each other."""
    brief: bool = False
    """Whether they stand in for traces where a folder has none: beside traces of other formats they are left out."""
    keepable: bool = False
    """Whether what is read depends on the file and on gpuscope's code alone: then it may be kept (`gpuscope.cache`)."""
    hangs: bool = False
    """Of other roles than `HANG_RECORD`: whether the files tell of a hang as well."""
    alone: str = ""
    """Of records: what they are good for where there is no timeline, and what to add."""


class SeveralRanks(Exception):  # noqa: N818 - nothing is wrong
    """A file turned out to hold several ranks: a builder for each."""

    def __init__(self, builders: list[TraceBuilder]) -> None:
        super().__init__(f"{len(builders)} ranks")
        self.builders = builders


@runtime_checkable
class Source(Protocol):
    """A reader of one format."""

    name: str
    """The format's name in reports, e.g. `kineto`."""
    files: Files

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether this source reads `path`, whose text begins with `head` (empty for a directory)."""
        ...

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002
        """The rank if the file's beginning or name gives it, without reading the file; None where it holds several."""
        return None

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read the file into the builder, and report what was lost.

        Raises `InputError` where nothing of it can be used, `SeveralRanks` where it holds several recordings.
        """
        ...


@cache
def all_sources() -> tuple[Source, ...]:
    """The sources of this package, in order of module name, then those of other distributions.

    Raises `UsageError` where a plug-in is no source.
    """
    return (*listed("gpuscope.sources", "SOURCE"), *(_plugin(name) for name in sorted(plugins(SOURCES))))


_PARTS = ("name", "files", "sniff", "peek_rank", "read")


def _plugin(name: str) -> Source:
    source = load(SOURCES, name)
    if not isinstance(source, Source):
        lacking = ", ".join(part for part in _PARTS if not hasattr(source, part))
        raise UsageError(
            f"the plug-in {name!r} of {SOURCES} is not a source: it lacks {lacking}",
            hint="update or remove the distribution that brings it; docs/architecture.md has the protocol",
        )
    return source


def suffixes_of(*roles: Role) -> tuple[str, ...]:
    """The suffixes of files of these roles, each once, in the order of the sources."""
    found = (suffix for source in all_sources() if source.files.role in roles for suffix in source.files.suffixes)
    return tuple(dict.fromkeys(found))


def source_for(path: Path) -> tuple[Source, bytes]:
    """The source that reads `path`, and the beginning of its text.

    Raises `InputError` where the path is missing, empty, or of no known format.
    """
    source = source_of(path)
    return source, _head(path)


def source_of(path: Path) -> Source:
    """The source that reads `path`, told once per version of a file: a folder's files are asked for time and again.

    Raises `InputError` as `source_for` does.
    """
    check_readable(path)
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):  # what lies in it may change alone
        return _recognised(path, all_sources())
    return _told(path, all_sources(), status.st_size, status.st_mtime_ns, status.st_ino)


@lru_cache(1 << 14)
def _told(path: Path, sources: tuple[Source, ...], *_version: int) -> Source:
    return _recognised(path, sources)


def _head(path: Path) -> bytes:
    return b"" if path.is_dir() else stream.head(path)


READS = (
    "gpuscope reads traces of torch.profiler (.json, .json.gz, .pftrace), reports of Nsight Systems (.nsys-rep, "
    ".sqlite), Ascend's trace_view.json, and records such as NCCL's logs and Flight Recorder dumps; docs/formats.md "
    "lists all"
)
_REPORT_BEGINS = 200
"""Bytes within which a report says what wrote it."""


def _recognised(path: Path, sources: tuple[Source, ...]) -> Source:
    head = _head(path)
    if (elsewhere := other_recorders.placeholder(path, head)) is not None:
        raise elsewhere
    for source in () if archives.is_tar(head) else sources:
        if source.sniff(path, head):
            return source
    if path.is_file() and path.stat().st_size == 0:
        raise InputError(f"{path}: is empty", hint="was the profiler still writing, or the disk full?")
    if (remedy := archives.remedy(path, head)) is not None:
        raise InputError(f"{path}: is an archive or packed file, not a trace", hint=remedy)
    if head.lstrip().startswith(b"{") and b'"gpuscope_version"' in head[:_REPORT_BEGINS]:
        raise InputError(
            f"{path}: is a report of gpuscope, not a trace",
            hint="gpuscope open shows it, gpuscope diff compares it, gpuscope query asks it",
        )
    if path.is_file() and (refused := other_recorders.other_kind(path, head)) is not None:
        raise refused
    raise InputError(f"{path}: unrecognised trace format", hint=READS)


def check_readable(path: Path) -> None:
    """Raise `InputError` unless `path` is a folder or a plain file that may be read."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode):
            path.open("rb").close()
        elif stat.S_ISDIR(mode):
            next(path.iterdir(), None)
        else:
            raise InputError(f"{path}: is not a regular file", hint="write it to a file first")
    except FileNotFoundError:
        if path.is_symlink():
            raise InputError(f"{path}: is a link to what is not there: {path.readlink()}", hint="copy it too") from None
        raise InputError(f"{path}: no such file or directory", hint=_like(path)) from None
    except OSError as error:
        raise unreadable(path, error) from error


_REMEDIES = {
    errno.EACCES: "chmod +r, or run as who may read it",
    errno.ELOOP: "its links lead in a circle: name the file itself",
}


def unreadable(path: Path, error: OSError) -> InputError:
    """What the system says, and the remedy where there is one."""
    return InputError(f"{path}: can't be read: {error.strerror or error}", hint=_REMEDIES.get(error.errno or 0))


def _like(path: Path) -> str | None:
    """The name in the same folder that was probably meant."""
    try:
        names = [one.name for one in path.parent.iterdir()]
    except OSError:
        return None
    from difflib import get_close_matches

    close = get_close_matches(path.name, names, 1, cutoff=0.8)
    return f"did you mean {path.parent / close[0]}?" if close else None


_RANK_IN_NAME = when_used.pattern(
    r"rank[-_.=]?(\d{1,6})(?!\d)|(?:worker|dump|proc|procid)[-_.=]?(\d+)(?![\d.]*\d{6})", re.IGNORECASE
)
"""The number of a worker or process may also be its process id: then a time follows it."""


def rank_in_name(path: Path) -> int | None:
    """The labelled rank in a file's name (`rank3`, `worker2`), else in its folder's name; `gpu3` is none."""
    for part in (path.name, path.parent.name):
        if match := _RANK_IN_NAME.search(part):
            return int(match[1] or match[2])
    return None
