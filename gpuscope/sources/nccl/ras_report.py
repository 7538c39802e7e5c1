"""What NCCL's RAS tells of a job (`ncclras`, `ncclras -f json`, or `nc HOST 28028`): who answers, who is behind.

JSON (from 2.28 on) has every rank of every communicator. The text names the outliers alone; the others are the rest of
the communicator where all have one count. Ranks are those of the largest communicator; a smaller one's by process,
which only JSON has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.source import Files, ReadOptions, Role, Source, integer
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import MOST_RANKS, NA
from gpuscope.when_used import dataclass

LARGEST = 256 << 20
_COMMUNICATOR = when_used.pattern(r"^#(?P<id>\d+-\d+) \((?P<hash>[0-9a-f]+)\) (?P<what>[A-Z]+)")
_SUMMARY = when_used.pattern(r"^\s+(\d+)\s+(\d+)\s+\S+\s+\S+\s+(\d+)\s+\d+\s+[A-Z]+\s+[A-Z]+")
_RANK = when_used.pattern(r"^\s+Rank (\d+)\b")
_MISSING = when_used.pattern(r"^\s+The missing rank: (\d+)")
_OWN = when_used.pattern(r"^\s+Rank (\d+) has (?:launched up to operation (\d+)|not launched)")
_GROUP = when_used.pattern(r"^\s+(\d+) ranks have (?:launched up to operation (\d+)|not launched)")
_OPERATION = when_used.pattern(r"^\s+Communicator ranks have different (\w+) operation counts")
_DEAD = when_used.pattern(r"considered dead")


def is_ras_text(head: bytes) -> bool:
    """Whether a text is RAS's: it begins with NCCL's version, as logs of NCCL do."""
    return b"Job summary" in head and b"Communicators..." in head and b" NCCL INFO " not in head


@dataclass(frozen=True)
class RasRank:
    """What RAS says of one rank of a communicator; `others` where it stands for all that are not named."""

    rank: int | None
    group: str
    state: str
    launched: int | None = None


class RasSource(Source):
    """Reads `rank_progress`."""

    name = "nccl-ras"
    files = Files(
        Role.HANG_RECORD, one_per_rank=False, alone="NCCL's RAS tells which ranks of a job answer and progress"
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """Its JSON, or the heads of its text."""
        if path.is_dir():
            return False
        if head.lstrip().startswith(b"{"):
            return b'"communicators_count"' in head and b'"missing_ranks_count"' in head
        return is_ras_text(head)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a report. Raises `InputError` for one that is damaged."""
        size = path.stat().st_size
        if size > LARGEST:
            raise InputError(f"{path}: is far too large for a report of RAS ({size} bytes)")
        text = path.read_bytes().decode(errors="replace")
        if options.advance:
            options.advance(size)
        try:
            found = list(_of_json(json.loads(text)) if text.lstrip().startswith("{") else _of_text(text))
        except (ValueError, RecursionError, TypeError, KeyError) as error:
            raise InputError(f"{path}: is damaged or cut off ({error})") from error
        code, source = builder.names.code, builder.source(path, self.name, "", len(found), {})
        for one in found:
            row = {
                "rank": NA if one.rank is None else one.rank,
                "told_by": code("ras"),
                "group": code(one.group),
                "launched": NA if one.launched is None else one.launched,
                "state": code(one.state),
                "source": source,
            }
            builder.add("rank_progress", 1, row)


def _of_json(told: dict[str, Any]) -> Iterator[RasRank]:
    communicators = [one for one in told["communicators"] if isinstance(one, dict)]
    largest = max(communicators, key=lambda one: integer(one.get("size")) or 0, default={})
    world = {_process(one): integer(one.get("rank")) for one in _listed(largest)}
    for comm in communicators:
        for one in _listed(comm):
            status, counts = one.get("status") or {}, one.get("collective_counts") or {}
            state = (
                "dead" if status.get("considered_dead") else "unresponsive" if status.get("unresponsive") else "alive"
            )
            state = "aborted" if status.get("abort_flag") or status.get("async_error") not in (None, 0, 7) else state
            launched = sum(integer(count) or 0 for count in counts.values()) if counts else None
            yield RasRank(world.get(_process(one)), str(comm.get("hash")), state, launched)


def _listed(comm: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for key in ("ranks", "missing_ranks") for one in comm.get(key) or [] if isinstance(one, dict)]


def _process(one: dict[str, Any]) -> tuple[str, str, str]:
    return str(one.get("host")), str(one.get("pid")), str(one.get("cuda_dev"))


def _of_text(text: str) -> Iterator[RasRank]:
    """`#0-N` are the largest communicators, the one of the whole job where it is alone there. Of ranks with one count
    the text names those of the smaller set; the others' number and the communicator's size say who they are."""
    sizes = {int(match[1]): (int(match[2]), int(match[3])) for match in map(_SUMMARY.match, text.splitlines()) if match}
    dead, group, told, whole = bool(_DEAD.search(text)), "", "", False
    counts = _Counts("", 0)
    for line in text.splitlines():
        if (match := _COMMUNICATOR.match(line)) is not None:
            yield from counts.found()
            group, told = match["hash"], match["what"]
            count, size = sizes.get(0, (1, 0))
            whole = match["id"].startswith("0-") and count == 1
            counts = _Counts(group, size if whole else 0)
        elif not whole:
            continue
        elif told == "INCOMPLETE" and (match := _MISSING.match(line) or _RANK.match(line)) is not None:
            yield RasRank(int(match[1]), group, "dead" if dead else "unresponsive")
        elif told == "MISMATCH" and (match := _OPERATION.match(line)) is not None:
            yield from counts.found()
            counts = _Counts(f"{group} {match[1]}", counts.size)
        elif told == "MISMATCH":
            counts.feed(line)
    yield from counts.found()


class _Counts:
    """How many operations of one kind the ranks of a communicator had launched."""

    def __init__(self, group: str, size: int) -> None:
        self.size = size
        self._group = group
        self._current: int | None = None
        self._of_many: dict[int, int] = {}
        """Ranks by count, where several have it."""
        self._of_rank: dict[int, int] = {}

    def feed(self, line: str) -> None:
        """Take a line below the title."""
        if (match := _GROUP.match(line)) is not None:
            self._current = int(match[2] or 0)
            self._of_many[self._current] = int(match[1])
        elif (match := _OWN.match(line)) is not None:
            self._current = None
            self._of_rank[int(match[1])] = int(match[2] or 0)
        elif self._current is not None and (match := _RANK.match(line)) is not None:
            self._of_rank[int(match[1])] = self._current
        elif not line.strip():
            self._current = None

    def found(self) -> Iterator[RasRank]:
        """Each rank's count; where several sets of ranks are not named, the sets'."""
        for rank, count in self._of_rank.items():
            yield RasRank(rank, self._group, "alive", count)
        named = set(self._of_rank.values())
        unnamed = {count: ranks for count, ranks in self._of_many.items() if count not in named}
        others = sorted(set(range(min(self.size, MOST_RANKS))) - self._of_rank.keys())
        for count, ranks in unnamed.items():
            if len(unnamed) == 1 and ranks == len(others):
                yield from (RasRank(rank, self._group, "alive", count) for rank in others)
            else:
                yield RasRank(None, self._group, "alive", count)


SOURCE = RasSource()
