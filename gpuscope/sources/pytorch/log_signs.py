"""Lines of a job's logs that tell why a rank may have stopped: its end, errors of its GPU, of the network, of torch."""

from __future__ import annotations

import re
from collections import Counter

from gpuscope import when_used
from gpuscope.when_used import dataclass

MOST = 32
"""Lines kept of one sign and rank: a log may repeat one for hours."""
LONGEST = 400
_SIGNS: tuple[tuple[str, str], ...] = (
    ("timed_out", r"Watchdog caught collective operation timeout|Timed out waiting \d+ ?ms for \w+ operation"),
    ("lagging", r"are the lagging ranks|failed to pass monitoredBarrier"),
    ("out_of_memory_host", r"Out of memory: Killed process|out of memory: Killed process|oom[-_]kill\b|oom_kill event"
     r"|can't allocate memory: you tried to allocate|srun: error: .*Out Of Memory"),
    ("out_of_memory", r"(?:CUDA|HIP) out of memory|torch\.(?:cuda\.)?OutOfMemoryError"),
    ("gpu_error", r"NVRM: Xid|CUDA error: (?!out of memory)|uncorrectable ECC"
     r"|Cuda failure (?:\d+ )?'(?!out of memory)"),
    ("network", r"\bibv_\w+ failed|NET/IB ?:.*(?:Got completion .*(?:error|status)|port error|device fatal)"
     r"|transport retry counter exceeded|IBV_WC_RETRY_EXC_ERR|No route to host|Network is unreachable"),
    ("peer_closed", r"[Cc]onnection (?:closed|reset) by (?:remote )?peer"),
    ("killed", r"^\S*\s*line \d+: +\d+ Killed\b|srun: error: .*\btasks? [\d,-]+: Killed"),
    ("crashed", r"Fatal Python error: (?!Aborted)|srun: error: .*(?:Segmentation fault|Bus error)"),
    ("debugger", r"^\(Pdb\)|^ipdb>|debugpy.*[Ww]aiting for client"),
)  # fmt: skip
SIGNS = {name: when_used.pattern(pattern) for name, pattern in _SIGNS}
_ANY = when_used.pattern("|".join(f"(?:{pattern})" for _, pattern in _SIGNS), re.MULTILINE)
_CONSEQUENCE = when_used.pattern(
    r"NCCL|c10d|[Ww]atchdog|[Cc]onnection|gloo|DistBackendError|DistNetworkError|DistStoreError|KeyboardInterrupt|"
    r"SystemExit|ChildFailedError|SignalException|[Tt]imed? ?out|Detected mismatch"
)
"""Exceptions of ranks that lost or waited for another one: no first cause."""
_PREFIX = when_used.pattern(r"^\[rank(?P<rank>\d{1,7})\]:?\s?|^\s{0,3}(?P<task>\d{1,7}): ")
_RANK = when_used.pattern(r"\b[Rr]ank (\d{1,7})\]|\btasks? (\d{1,7}):")
_PID = when_used.pattern(r"Killed process (\d+)|line \d+: +(\d+) Killed")
_LAGGING = when_used.pattern(r"[Rr]anks? \[?([\d, ]+?)\]? (?:are the lagging|failed to pass)")
_WORK = when_used.pattern(
    r"PG (?:ID \d+ PG )?GUID (?P<group>[^(\s]+)[^\]]*Rank (?P<rank>\d{1,7})\].*"
    r"[Ll]ast enqueued (?:NCCL )?work: (?P<enqueued>-?\d+), last completed (?:NCCL )?work: (?P<completed>-?\d+)"
)
_FINGERPRINT = when_used.pattern(
    r"Rank (\d{1,7}) is running (?:inconsistent )?collective: (?:CollectiveFingerPrint\()?(.*?)"
    r"(?:, TensorDeviceTypes|\)(?:, but|\.)|, but|$)"
)
_EXCEPTION = when_used.pattern(r"^(?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)\b(?::.*)?$")
_ROOT, _OF_RANK = "Root Cause (first observed failure)", when_used.pattern(r"^\s+rank\s+: (\d{1,7}) ")
_EXIT = when_used.pattern(r"^\s+exitcode\s+: (-?\d+) \(pid: (\d+)\)")
_KILLED, _CONSEQUENT = -9, (-6, -15, -2, 1)
"""Exit codes: torch aborts a rank that waited too long, launchers end the others. 1 is an exception's, told before."""
MARKS = ("Traceback (most recent call last)", _ROOT, "ast enqueued", "Detected mismatch between collectives")


@dataclass(frozen=True)
class Sign:
    """A line that tells something; `rank` as the line says it, `pid` where it names a process instead."""

    sign: str
    text: str
    line: int
    rank: int | None
    pid: int | None = None


@dataclass(frozen=True)
class Work:
    """How far a rank's watchdog says that it had got in a group."""

    rank: int
    group: str
    enqueued: int
    completed: int


def plain(line: str) -> tuple[str, int | None]:
    """A line without what torch or srun writes before it, and the rank that stood there."""
    match = _PREFIX.match(line)
    if match is None:
        return line, None
    return line[match.end() :], int(match["rank"] or match["task"])


def is_telling(text: str) -> bool:
    """Whether a text has something for this reader."""
    return any(mark in text for mark in MARKS) or _ANY.search(text) is not None


class SignReader:
    """Takes the lines of a log one by one."""

    def __init__(self) -> None:
        self.signs: list[Sign] = []
        self.works: list[Work] = []
        self._counts: Counter[tuple[str, int | None]] = Counter()
        self._traceback: set[int | None] = set()
        self._root: int | None = None
        self._in_root = False

    def feed(self, line: str, number: int, rank: int | None) -> None:
        """Take a line; `rank` is what its beginning or its file says."""
        if "[" in line and (match := _RANK.search(line)) is not None:
            rank = rank if rank is not None else int(match[1] or match[2])
        if (match := _WORK.search(line)) is not None:
            self.works.append(Work(int(match["rank"]), match["group"], int(match["enqueued"]), int(match["completed"])))
        for of, what in _FINGERPRINT.findall(line) if "is running" in line else ():
            self._add("mismatch", what, number, int(of))
        self._exception(line, number, rank)
        self._launcher(line, number)
        if _ANY.search(line) is not None:
            name = next(name for name, pattern in SIGNS.items() if pattern.search(line))
            self._named(name, line, number, rank)

    def _named(self, name: str, line: str, number: int, rank: int | None) -> None:
        if name == "lagging" and (match := _LAGGING.search(line)) is not None:
            for of in re.findall(r"\d+", match[1]):
                self._add(name, line, number, int(of))
            return
        if (match := re.search(r"\btasks? (\d{1,7}):", line)) is not None:
            rank = int(match[1])
        pid = _PID.search(line)
        self._add(name, line, number, None if pid else rank, int(pid[1] or pid[2]) if pid else None)

    def _exception(self, line: str, number: int, rank: int | None) -> None:
        if "Traceback (most recent call last)" in line:
            self._traceback.add(rank)
        elif rank in self._traceback and _EXCEPTION.match(line):
            self._traceback.discard(rank)
            if not _CONSEQUENCE.search(line) and not _ANY.search(line):
                self._add("crashed", line, number, rank)

    def _launcher(self, line: str, number: int) -> None:
        """torchrun's summary: the first rank that failed, and how."""
        if _ROOT in line:
            self._in_root = True
        elif self._in_root and (match := _OF_RANK.match(line)) is not None:
            self._root = int(match[1])
        elif self._in_root and (match := _EXIT.match(line)) is not None:
            self._in_root, code = False, int(match[1])
            if code not in _CONSEQUENT and self._root is not None:
                how = "killed" if code == _KILLED else "crashed"
                self._add(how, f"first to fail: exit code {code}", number, self._root)

    def _add(self, name: str, text: str, number: int, rank: int | None, pid: int | None = None) -> None:
        self._counts[name, rank] += 1
        if self._counts[name, rank] <= MOST:
            self.signs.append(Sign(name, text.strip()[:LONGEST], number, rank, pid))
