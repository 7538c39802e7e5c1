"""What a source is, and how the sources are found."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from gpuscope import archives, when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.plugins import SOURCES, listed, load, plugins
from gpuscope.problems import job, reading
from gpuscope.problems.problem import Problem
from gpuscope.sources import stream
from gpuscope.sources.run_manifest import MANIFEST, recorded_traces
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
    first: bool = False
    """Whether it is asked before the others, which read parts of the same files: it has them read their parts too."""


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
    found = (*listed("gpuscope.sources", "SOURCE"), *(_plugin(name) for name in sorted(plugins(SOURCES))))
    return tuple(sorted(found, key=lambda source: not source.files.first))


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
    if (elsewhere := stream.placeholder(path, head)) is not None:
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
    if path.is_file() and (refused := stream.other_kind(path, head)) is not None:
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


# The lines of a text file, and the JSON objects on them, one after the other, however large the file.

LONGEST = 16 << 20
"""A line longer than that is no line of a log."""


def lines(path: Path, options: ReadOptions, builder: TraceBuilder | None = None) -> Iterator[bytes]:
    """Each line without its end.

    Raises `InputError` for a line that does not end, and for a gzip file that was cut off; with `--partial`
    the lines before the cut are taken, and the loss is reported.
    """
    rest = b""
    try:
        for block in stream.blocks(path, options.advance if builder else None):
            *whole, rest = (rest + block).split(b"\n")
            if len(rest) > LONGEST:
                raise InputError(f"{path}: has a line without an end")
            yield from (line.removesuffix(b"\r") for line in whole)
    except stream.TruncatedError as error:
        if not options.partial:
            raise InputError(f"{path}: cut off ({error})", hint="--partial analyses what is left") from error
        if builder is not None:
            builder.problem(reading.LINES_TRUNCATED, 1, file=path.name)
    if rest:
        yield rest.removesuffix(b"\r")


def first_object(head: bytes) -> dict[str, Any]:
    """The object on the first line; empty where there is none."""
    return json_object(head.lstrip().partition(b"\n")[0]) or {}


def read_objects(path: Path, options: ReadOptions, builder: TraceBuilder) -> Iterator[dict[str, Any] | None]:
    """The object of every line that isn't empty; None for one that can't be read (the last, if cut off)."""
    return (json_object(line) for line in lines(path, options, builder) if line.strip())


def integer(value: Any) -> int | None:
    """A JSON number as int; None for anything else and for what no table holds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << 62:
        return None
    return round(value)


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object of a line; None for anything else."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# Files without a timeline of a rank: what NCCL, its tests, PyTorch's Flight Recorder and allocator wrote beside it.
#
# They go with traces of any format. Which formats these are, the sources say (`Source.files`).

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


# Attempts of a job, and windows of an attempt, of which an analysis takes one: the last that left a trace.
#
# After a failure torchrun starts all ranks again, into the same run folder: the first attempt records into the folder
# itself, the n-th restart into `restartN/`. Ranks of two attempts never ran together. Windows recorded on demand
# (`windowN/`) are recordings of the same ranks at other times.

_RESTART = when_used.pattern(r"restart(\d+)")
_WINDOW = when_used.pattern(r"window(\d+)")

Attempt = tuple[int, int]
"""(0 for the first attempt, n for the n-th restart; 0 for a recording without windows, n for the n-th window)."""


def last_attempt(folder: Path, files: list[Path]) -> list[Path]:
    """Of the traces below a run folder, those of the last attempt that left any; of another folder, all."""
    if not (folder / MANIFEST).is_file():
        return files
    last = max((_attempt(folder, file) for file in files), default=(0, 0))
    return [file for file in files if _attempt(folder, file) == last]


def attempts(folder: Path) -> list[str]:
    """Where the attempts of a run are within its folder, the last one first; the first one's is empty."""
    found = (_RESTART.fullmatch(path.name) for path in folder.iterdir())
    return [f"restart{number}/" for number in sorted((int(one[1]) for one in found if one), reverse=True)] + [""]


def left_out(folder: Path, read: Iterable[Path]) -> Problem | None:
    """The attempts of a run that recorded traces too and were not read; None if there are none."""
    taken = {_attempt(folder, path.absolute()) for path in read if path.absolute().is_relative_to(folder)}
    others = sorted({_attempt(folder, folder / name) for name in recorded_traces(folder)} - taken)
    if not taken or not others:
        return None
    restarted = len({restart for restart, _ in {*taken, *others}}) > 1
    kind = job.RESTARTS_LEFT_OUT if restarted else job.WINDOWS_LEFT_OUT
    return kind.of(
        1,
        run=folder.name,
        read=" and ".join(map(_name, sorted(taken))),
        others=", ".join(map(_name, others)),
        where=f"{folder.name}/{_path(others[0])}",
    )


def _attempt(folder: Path, file: Path) -> Attempt:
    restart = window = 0
    for part in file.absolute().relative_to(folder.absolute()).parts[:2]:
        if found := _RESTART.match(part):  # restart1/rank0.json.gz, nsys/restart1.rep.0.nsys-rep
            restart = int(found[1])
        elif found := _WINDOW.fullmatch(part):  # window2/rank0.json.gz, restart1/window1/rank0.json.gz
            window = int(found[1])
    return restart, window


def _name(attempt: Attempt) -> str:
    restart, window = attempt
    if not window:
        return f"restart {restart}" if restart else "the first attempt"
    return f"window {window}" + (f" of restart {restart}" if restart else "")


def _path(attempt: Attempt) -> str:
    restart, window = attempt
    parts = [f"restart{restart}"] * bool(restart) + [f"window{window}"] * bool(window)
    return "/".join(parts) or "rank*"
