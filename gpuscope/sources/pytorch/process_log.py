"""What a job's processes print: logs of ranks and launchers, and stacks by faulthandler or py-spy, alone or in them.

Taken by what is in it, whatever its name. The rank is that of the line (`[rank1]:`, srun's label), else of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.lines import lines
from gpuscope.sources.pytorch import log_signs, stack_text
from gpuscope.sources.pytorch.log_signs import SignReader
from gpuscope.sources.pytorch.stack_text import Stack, StackReader
from gpuscope.sources.source import Files, ReadOptions, Role, Source, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import MOST_RANKS, NA

_TAIL = 1 << 20
_OWN_FOLDER = when_used.pattern(r"(?:(?:local_?)?rank|worker|proc)?[-_.=]?(\d{1,7})", re.IGNORECASE)
_LAST_NUMBER = when_used.pattern(r"(\d{1,7})(?:\.[a-zA-Z]\w*)*$")
ALONE = "logs and stacks show where a job hangs, not where its time goes"


class JobLogSource(Source):
    """Reads `host_stacks`, `hang_signs` and `rank_progress`."""

    name = "job-log"
    files = Files(Role.HANG_RECORD, one_per_rank=False, alone=ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """Text with a stack or a telling line at its beginning or near its end."""
        if path.is_dir() or path.suffix == ".py" or b"\0" in head or head.lstrip()[:1] in (b"{", b"<"):
            return False
        return _is_telling(head) or (len(head) >= 1 << 16 and _is_telling(_tail(path)))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a log. Raises `InputError` where nothing in it tells of a hang."""
        text, count = ProcessText(path), 0
        for count, raw in enumerate(lines(path, options, builder), 1):
            text.feed(raw.decode(errors="replace"), count)
        source = builder.source(path, self.name, "", count, {})
        if not text.add(builder, source):
            raise InputError(f"{path}: holds no stack and no line that tells of a hang")


class ProcessText:
    """What processes printed, line by line: telling lines and stacks."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signs, self._stacks = SignReader(), StackReader()
        self._own, self._of_stacks = rank_of_file(path, stacks=False), rank_of_file(path, stacks=True)

    def feed(self, line: str, number: int, rank: int | None = None) -> None:
        """Take a line; `rank` where more is known than it and the file's name say."""
        line, told = log_signs.plain(line)
        rank = told if rank is None else rank
        if not self._stacks.feed(line, self._of_stacks if rank is None else rank):
            self._signs.feed(line, number, self._own if rank is None else rank)

    def add(self, builder: TraceBuilder, source: int) -> bool:
        """Put what was found into the tables; whether there was anything."""
        stacks = list(self._stacks.finished())
        add_signs(builder, self._signs, source)
        add_stacks(builder, stacks, self._path, source)
        return bool(self._signs.signs or self._signs.works or stacks)


def rank_of_file(path: Path, *, stacks: bool) -> int | None:
    """By its name's label (`rank3`), or a folder of the rank's own (`3/stderr.log`). Other numbers are a job's, or a
    day's; only those of `stacks` are taken for ranks, if they are no process's (`stack_3.txt`)."""
    if (labelled := rank_in_name(Path(path.name))) is not None:
        return labelled
    match = _OWN_FOLDER.fullmatch(path.parent.name) or (_LAST_NUMBER.search(path.name) if stacks else None)
    return int(match[1]) if match and int(match[1]) < MOST_RANKS else None


def add_signs(builder: TraceBuilder, found: SignReader, source: int) -> None:
    """Rows of `hang_signs` and `rank_progress`."""
    code = builder.names.code
    for one in found.signs:
        row = {
            "rank": NA if one.rank is None else one.rank,
            "pid": NA if one.pid is None else one.pid,
            "sign": code(one.sign),
            "text": code(one.text),
            "line": one.line,
            "source": source,
        }
        builder.add("hang_signs", 1, row)
    for work in found.works:
        progress = {"launched": work.enqueued, "completed": work.completed, "told_by": code("watchdog")}
        builder.add("rank_progress", 1, {"rank": work.rank, "group": code(work.group), "source": source, **progress})


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
    return any(mark in decoded for mark in stack_text.MARKS) or log_signs.is_telling(decoded)


def _tail(path: Path) -> bytes:
    """The end of a file, where logs say what went wrong; nothing of a packed one."""
    with path.open("rb") as file:
        file.seek(max(path.stat().st_size - _TAIL, 0))
        return file.read(_TAIL)


SOURCE = JobLogSource()
