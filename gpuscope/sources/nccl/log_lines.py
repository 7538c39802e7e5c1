"""NCCL's log lines separated from other text in a file, also where one landed in the middle of another.

A process writes its table row in pieces while NCCL logs to the same stream, so a line can hold the beginning
of a row, then a log line; the rest of the row follows later. Log lines are known by `host:pid:tid [dev] NCCL`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from gpuscope import when_used
from gpuscope.when_used import dataclass

_PREFIX = r":(\d{1,18}):(\d{1,18}) \[(-?\d{1,9})\] NCCL (INFO|WARN|TRACE|VERSION) ?"
_AT_START = when_used.pattern(r"(?:^|[\]\s])([A-Za-z0-9][\w.-]*)" + _PREFIX)
_USING_DEVICE = when_used.pattern(r"#\s+Rank\s+\d+.*\bPid\s+\d+ on\s+(\S+) device")


@dataclass(frozen=True)
class Line:
    """A log line of one thread; `device` is the number in brackets."""

    host: str
    pid: int
    tid: int
    device: int
    text: str
    warns: bool = False


def hosts(lines: Iterable[str]) -> list[str]:
    """The host names at the beginning of log lines and in nccl-tests' list of devices, the longest first."""
    found: set[str] = set()
    for line in lines:
        match = _AT_START.match(line) if "NCCL " in line else _USING_DEVICE.match(line)
        if match:
            found.add(match[1])
    return sorted(found, key=lambda name: (-len(name), name))


def separate(lines: Iterable[str], known: Iterable[str]) -> Iterator[Line | str]:
    """Log lines as `Line`, all other text as whole lines put together from their pieces."""
    names = "|".join(map(re.escape, known)) or r"[A-Za-z][\w.-]*"
    begins = re.compile(f"({names}){_PREFIX}")
    piece = ""
    for line in lines:
        if "NCCL" not in line:
            yield piece + line
            piece = ""
            continue
        matches = list(begins.finditer(line))
        if not matches:
            yield piece + line
            piece = ""
            continue
        piece += _before(line[: matches[0].start()])
        for match, following in zip(matches, [*matches[1:], None], strict=True):
            text = line[match.end() : following.start() if following else None].strip()
            yield Line(match[1], int(match[2]), int(match[3]), int(match[4]), text, match[5] == "WARN")
    if piece:
        yield piece


def _before(text: str) -> str:
    """What stands before a log line: part of a row, or only a launcher's time stamp and rank."""
    return "" if text.rstrip().endswith((":", "]", ">")) else text
