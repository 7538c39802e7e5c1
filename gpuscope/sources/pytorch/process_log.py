"""What a job's processes print: logs of ranks and launchers, and stacks by faulthandler or py-spy, alone or in them.

Taken by what is in it, whatever its name. The rank is that of the line (`[rank1]:`, srun's label), else of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.pytorch import log_signs
from gpuscope.sources.pytorch.log_signs import LONGEST, Sign, SignReader, Stack, StackReader
from gpuscope.sources.source import Files, ReadOptions, Role, Source, lines, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import MOST_RANKS, NA

_BLOCK, _MOST_BLOCKS = 1 << 20, 256
"""Bytes of text searched at a time, and how often: between a time-out and a log's end stand the stacks of all ranks."""
_TEXT = ("", ".log", ".txt", ".out", ".err")
_NEIGHBOURS = 64
"""Logs of other ranks that are searched for a telling line."""
_OWN_FOLDER = when_used.pattern(r"(?:(?:local_?)?rank|worker|proc)?[-_.=]?(\d{1,7})", re.IGNORECASE)
_LAST_NUMBER = when_used.pattern(r"(\d{1,7})(?:\.[a-zA-Z]\w*)*$")
ALONE = "logs and stacks show where a job hangs, not where its time goes"


class JobLogSource(Source):
    """Reads `host_stacks`, `hang_signs` and `rank_progress`."""

    name = "job-log"
    files = Files(Role.HANG_RECORD, one_per_rank=False, alone=ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """Text with a stack or a telling line; and what a rank wrote that says nothing, where others' logs tell."""
        if path.is_dir() or path.suffix == ".py" or b"\0" in head or head.lstrip()[:1] in (b"{", b"<"):
            return False
        if _is_telling(head) or (len(head) >= 1 << 16 and _tells(path)):
            return True
        if head.startswith(b"Name:\t") or head.lstrip()[:1] == b"[":
            return False  # a process's status as the kernel has it, or py-spy's JSON: no log, whatever lies beside
        return _is_text(path) and _is_beside_telling(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a log. Raises `InputError` where nothing in it tells of a hang, nor of which rank it is."""
        text, count = ProcessText(path), 0
        for count, raw in enumerate(lines(path, options, builder), 1):
            text.feed(raw.decode(errors="replace"), count)
        source = builder.source(path, self.name, "", count, text.facts)
        if not text.add(builder, source) and rank_of_file(path, stacks=False) is None:
            raise InputError(f"{path}: holds no stack and no line that tells of a hang")


class ProcessText:
    """What processes printed, line by line: telling lines and stacks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signs, self._stacks = SignReader(), StackReader()
        self._own, self._of_stacks = rank_of_file(path, stacks=False), rank_of_file(path, stacks=True)
        self._local_offset = 0
        """What a host's local ranks lack to ranks of the job, as lines with both show."""

    @property
    def signs(self) -> list[Sign]:
        """Telling lines so far."""
        return self._signs.signs

    @property
    def facts(self) -> dict[str, int]:
        """What the text says of the job, for its source."""
        return {"job_size": self._signs.job_size} if self._signs.job_size else {}

    def feed(self, line: str, number: int, rank: int | None = None) -> None:
        """Take a line; `rank` where more is known than it and the file's name say."""
        for piece in log_signs.pieces(line):
            self._feed(piece, number, rank)

    def _feed(self, line: str, number: int, rank: int | None) -> None:
        line, labelled, local = log_signs.plain(line)
        if local is not None and labelled is not None:
            self._local_offset = labelled - local
        elif local is not None and self._own is None:
            labelled = local + self._local_offset
        rank = labelled if rank is None else rank
        if not self._stacks.feed(line, self._of_stacks if rank is None else rank):
            self._signs.feed(line, number, self._own if rank is None else rank)

    def add(self, builder: TraceBuilder, source: int) -> bool:
        """Put what was found into the tables; whether there was anything that tells."""
        stacks = list(self._stacks.finished())
        add_signs(builder, self._signs, source, self._own)
        add_stacks(builder, stacks, self._path, source)
        return bool(self._signs.signs or self._signs.works or self._signs.timeouts or stacks)


def rank_of_file(path: Path, *, stacks: bool) -> int | None:
    """By its name's label (`rank3`), or a folder of the rank's own (`3/stderr.log`). Other numbers are a job's, or a
    day's; only those of `stacks` are taken for ranks, if they are no process's (`stack_3.txt`)."""
    if (labelled := rank_in_name(Path(path.name))) is not None:
        return labelled
    match = _OWN_FOLDER.fullmatch(path.parent.name) or (_LAST_NUMBER.search(path.name) if stacks else None)
    return int(match[1]) if match and int(match[1]) < MOST_RANKS else None


def add_signs(builder: TraceBuilder, read: SignReader, source: int, of_file: int | None = None) -> None:
    """Rows of `hang_signs` and `rank_progress`; a rank whose file is empty has a last line too, an empty one."""
    code = builder.names.code
    last_lines = read.last_lines
    if of_file is not None and not last_lines and not read.signs:
        last_lines = [Sign("last_line", "", 0, of_file)]
    for sign in (*read.signs, *last_lines):
        row = {
            "rank": NA if sign.rank is None else sign.rank,
            "pid": NA if sign.pid is None else sign.pid,
            "sign": code(sign.sign),
            "text": code(sign.text),
            "line": sign.line,
            "place": code(sign.place) if sign.place else NO_NAME,
            "source": source,
        }
        builder.add("hang_signs", 1, row)
    for work in read.works:
        progress = {"launched": work.enqueued, "completed": work.completed, "told_by": code("watchdog")}
        builder.add("rank_progress", 1, {"rank": work.rank, "group": code(work.group), "source": source, **progress})
    for timeout in read.timeouts:
        waited = {
            "rank": timeout.rank,
            "told_by": code(timeout.told_by),
            "group": code(timeout.group),
            "op": code(timeout.op),
            "waited": NA if timeout.seq is None else timeout.seq,
            "numel_in": NA if timeout.numel_in is None else timeout.numel_in,
            "numel_out": NA if timeout.numel_out is None else timeout.numel_out,
            "source": source,
        }
        builder.add("rank_progress", 1, waited)


def add_stacks(builder: TraceBuilder, stacks: Iterable[Stack], path: Path, source: int) -> None:
    """Rows of `host_stacks`."""
    code, taken = builder.names.code, path.stat().st_mtime_ns
    for stack in stacks:
        rank = stack.rank if stack.rank != stack.pid else None  # a file may be named by its process
        row = {
            "rank": NA if rank is None else rank,
            "pid": NA if stack.pid is None else stack.pid,
            "thread": code(stack.thread) if stack.thread else NO_NAME,
            "main": int(stack.main),
            "gil": NA if stack.gil is None else int(stack.gil),
            "taken": taken,
            "frames": code("\n".join(stack.frames)),
            "source": source,
        }
        builder.add("host_stacks", 1, row)


def _is_telling(text: bytes) -> bool:
    decoded = text.decode(errors="replace")
    return any(mark in decoded for mark in log_signs.STACK_TEXT_MARKS) or log_signs.is_telling(decoded)


def _tells(path: Path) -> bool:
    """Whether a text has a telling line anywhere within reach."""
    status = path.stat()
    return _searched(path, status.st_size, status.st_mtime_ns)


@lru_cache(1 << 12)
def _searched(path: Path, *_version: int) -> bool:
    rest = b""
    try:
        for count, block in enumerate(stream.blocks(path, size=_BLOCK)):
            if _is_telling(rest + block):
                return True
            if count == _MOST_BLOCKS:
                return False
            rest = block[-LONGEST:]
    except (stream.TruncatedError, InputError):
        return False
    return False


def _is_text(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(tuple(ending for ending in _TEXT if ending)) or not path.suffix


def _is_beside_telling(path: Path) -> bool:
    """Whether a file is one rank's, and a log of another rank beside it has a telling line."""
    rank = rank_of_file(path, stacks=False)
    if rank is None:
        return False
    of_name = rank_in_name(Path(path.name)) is not None
    try:
        files = path.parent.iterdir() if of_name else path.parent.parent.glob("*/*")
        others = sorted(
            other
            for other in files
            if other != path and _is_text(other) and rank_of_file(other, stacks=False) not in (None, rank)
        )
        return any(other.is_file() and _tells(other) for other in others[:_NEIGHBOURS])
    except OSError:
        return False


SOURCE = JobLogSource()
