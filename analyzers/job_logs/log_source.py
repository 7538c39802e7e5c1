"""Logs of training jobs and inference servers: their steps, whatever framework wrote them."""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path

from gpuscope.errors import InputError
from gpuscope.sources import stream
from gpuscope.sources.source import Files, ReadOptions, Role, Source, all_sources, lines
from gpuscope.trace.builder import TraceBuilder

ALONE = (
    "the log shows how long steps take and what the job loses beside them, not why: record some steps with a profiler"
)
_QUICK = re.compile(
    rb":::MLLOG |elapsed time per iteration|train_step_timing|RunningAvgSamplesPerSec|CurrSamplesPerSec|"
    rb"iter time \(s\)"
    rb"|'train_runtime'|\{'loss': |Avg prompt throughput|(?:Prefill|Decode) batch[., ]|completed step: \d"
    rb"|\b(?:it|step|iter|batch)s?/s\b|\bs/(?:it|step|iter|batch)\b|\d\s?ms\b|\bdt\b|\btps\b|(?i:(?:step|iter|"
    rb"batch)[_ ]?time)"
    rb"|(?i:\bstep\b|\biter(?:ation)?\b|\bepoch\b|\bloss\b)"
)
"""What a log with steps holds somewhere; a trace, an export, a source file mostly hold none of it."""
_LOOKED_AT = 1 << 20
"""Bytes at a file's end, and in its middle, that are looked at where its beginning shows no step."""
_FEWEST = 2
"""Step times from which a file is a log of steps."""
_OWN_FOLDERS = ("measures", "steps")
"""Where gpuscope's own runtime keeps lines of steps, beside the traces that say more."""
_OTHER_BEGINNINGS = (b"<", b"[{", b"PK", b"\x80", b"SQLite", b"%PDF")


class StepLogSource(Source):
    """Reads `log_steps`, `log_events` and `log_figures`, and what the other readers of logs find in the same file."""

    name = "step-log"
    files = Files(
        Role.RECORD,
        (".log", ".txt", ".out", ".err", ".jsonl", ".log.gz", ".txt.gz", ".out.gz", ".err.gz"),
        one_per_rank=False,
        hangs=True,
        alone=ALONE,
        first=True,
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """Text in which some lines are steps of a training, or of a server."""
        if path.is_dir() or not head or path.suffix in _NO_LOGS or head.startswith(_OTHER_BEGINNINGS):
            return False
        if b"\0" in head[:512] or (head.lstrip()[:1] == b"{" and not _is_json_lines(head)):
            return False
        if path.suffix == ".jsonl" and path.parent.name in _OWN_FOLDERS:
            return False
        if any(other.sniff(path, head) for other in _goes_before()):
            return False
        status = path.stat()
        return _has_steps(path, status.st_size, status.st_mtime_ns)

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        """None: a log is of the job, and a rank's own log is no timeline of that rank."""
        del path, head
        return None

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a log. Raises `InputError` where no line in it is a step."""
        from gpuscope.analyzers.job_logs.log_reading import LogReader
        from gpuscope.sources.pytorch.process_log import ProcessText, rank_of_file

        reader, process, count = LogReader(rank_of_file(path, stacks=False)), ProcessText(path), 0
        for count, raw in enumerate(lines(path, options, builder), 1):
            reader.feed(raw, count)
            process.feed(raw.decode(errors="replace"), count)
        if not reader.has_steps:
            raise InputError(f"{path}: holds no line that is a step", hint="docs/job-logs.md lists what is read")
        source = builder.source(path, self.name, reader.format, count, process.facts)
        reader.add(builder, source)
        process.add(builder, source)
        head = stream.head(path)
        for other in all_sources():
            if other.name in _READ_TOO and other.sniff(path, head):
                other.read(path, builder, ReadOptions(partial=True))


_NO_LOGS = frozenset(
    {
        ".py",
        ".sqlite",
        ".nsys-rep",
        ".pftrace",
        ".parquet",
        ".pickle",
        ".pkl",
        ".pt",
        ".csv",
        ".md",
        ".html",
        ".toml",
        ".yaml",
        ".yml",
        ".sh",
        ".cfg",
        ".c",
        ".cu",
        ".cpp",
        ".h",
    }
)
_BEFORE = ("rl-metrics",)
_READ_TOO = ("nccl-log",)


def _goes_before() -> list[Source]:
    return [source for source in all_sources() if source.name in _BEFORE]


def _is_json_lines(head: bytes) -> bool:
    """Whether the first line is an object of its own, with a step: no trace's first line is."""
    first = head.lstrip().partition(b"\n")[0].strip()
    return first.endswith(b"}") and (b'"step"' in first or b'step"' in first or b"'loss'" in first or b'"iter' in first)


@lru_cache(1 << 12)
def _has_steps(path: Path, size: int, _version: int) -> bool:
    """Whether lines near the beginning, the end or in the middle are steps."""
    head = stream.head(path, _LOOKED_AT // 4)
    pieces = [head]
    if len(head) >= _LOOKED_AT // 4:
        if head[:2] == stream.GZIP_MAGIC or _is_packed(path):
            pieces = [stream.head(path, 16 * _LOOKED_AT)]
        else:
            with path.open("rb") as file:
                for at in (size // 2, max(size - _LOOKED_AT, 0)):
                    file.seek(at)
                    pieces.append(file.read(_LOOKED_AT).partition(b"\n")[2])
    if not any(_QUICK.search(piece) for piece in pieces):
        return False
    from gpuscope.analyzers.job_logs.log_reading import LogReader

    reader = LogReader()
    number = 0
    for piece in pieces:
        for raw in piece.split(b"\n"):
            number += 1
            reader.feed(raw, number)
        if reader.counted >= _FEWEST and reader.has_steps:
            return True
    return reader.has_steps and reader.counted >= _FEWEST


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == stream.GZIP_MAGIC


SOURCE = StepLogSource()
