"""When each rank ran which role: events of RL-Insight, and NVTX ranges that nsys exported as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError, UsageError
from gpuscope.problems import reading
from gpuscope.sources.by_role.job_metrics import ALONE
from gpuscope.sources.source import Files, ReadOptions, Role, Source, integer, lines, read_objects
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import MOST_RANKS, NA, RolePlace
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words.vocabulary import role_of

_RANGE = 60
"""nsys' `eventType` of a range that one thread opened and closed (`NvtxStartEndRange`); 59 is a push and pop."""
_RANGES = (59, _RANGE)
_LAST_MS = 1 << 44
_RANK = when_used.pattern(r'^(?:RANK|OMPI_COMM_WORLD_RANK|SLURM_PROCID)="?(\d+)"?$')


@dataclass(frozen=True)
class _Interval:
    name: str
    rank: int
    start: int
    dur: int


class IntervalsSource(Source):
    """Reads `role_times`, with a rank and a start each."""

    name = "rl-intervals"
    files = Files(Role.RECORD, (".json", ".jsonl"), one_per_rank=False, alone=ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """RL-Insight's keys, or rows of nsys' tables as JSON lines."""
        return path.is_file() and (_is_events(head) or _is_nsys(head))

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a file. Raises `InputError` where it is cut off or no interval in it is named after a role."""
        with path.open("rb") as file:
            nsys = _is_nsys(file.read(1 << 16))
        found, lost = _of_nsys(path, builder, options) if nsys else _of_events(path, options)
        named = [(one, role) for one in found if (role := role_of(one.name)) is not None]
        if not named:
            raise InputError(
                f"{path}: holds no interval that is named after a role",
                hint="known are rollout, reward, ref, log_prob, values, update_actor, update_critic, update_weights",
            )
        builder.source(path, self.name, "nsys" if nsys else "rl-insight", len(found), {})
        code = builder.names.code
        columns = {
            "rank": [one.rank for one, _ in named],
            "role": [code(role) for _, role in named],
            "timer": [code(one.name) for one, _ in named],
            "place": RolePlace.PART,
            "began": [one.start for one, _ in named],
            "dur": [one.dur for one, _ in named],
        }
        builder.add("role_times", len(named), columns)
        builder.problem(reading.RECORD_UNREADABLE, lost + len(found) - len(named), file=path.name, what="intervals")


def check_one_clock(trace: Trace) -> None:
    """Raise `UsageError` where intervals of two recorders meet: captures of nsys count from the machine's start, events
    of RL-Insight from 1970."""
    first = {one.format_version: one.path for one in reversed(trace.sources) if one.format == IntervalsSource.name}
    if len(first) > 1:
        raise UsageError(
            " and ".join(f"{path} ({version})" for version, path in sorted(first.items()))
            + " count time from different moments: recordings of their own",
            hint="analyse one of them at a time",
        )


def _is_events(head: bytes) -> bool:
    start = head.lstrip()
    return start.startswith(b"[") and b'"start_time_ms"' in head[:4096] and b'"role"' in head[:4096]


def _is_nsys(head: bytes) -> bool:
    return head.lstrip().startswith(b"{") and b'"table":"NVTX_EVENTS"' in head.replace(b'": "', b'":"')


def _of_events(path: Path, options: ReadOptions) -> tuple[list[_Interval], int]:
    try:
        rows = json.loads(b"\n".join(lines(path, options)), parse_float=Decimal)
    except (ValueError, RecursionError, InvalidOperation) as error:
        raise InputError(f"{path}: not a whole list of events: {error}", hint="copy it whole") from None
    found = [_event(row) for row in rows] if isinstance(rows, list) else []
    whole = [one for one in found if one is not None]
    return whole, len(found) - len(whole)


def _event(row: Any) -> _Interval | None:
    """Of one event; times are decimal milliseconds since the epoch, which float64 can't hold to the ns."""
    if not isinstance(row, dict):
        return None
    name, rank = row.get("role") or row.get("name"), row.get("rank_id")
    start, end = _ns(row.get("start_time_ms")), _ns(row.get("end_time_ms"))
    if not isinstance(name, str) or not isinstance(rank, int) or start is None or end is None:
        return None
    return _Interval(name, rank, start, end - start) if 0 <= rank < MOST_RANKS and start <= end else None


def _ns(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | Decimal) or not -_LAST_MS < value < _LAST_MS:
        return None
    return round(value * 1_000_000)


def _of_nsys(path: Path, builder: TraceBuilder, options: ReadOptions) -> tuple[list[_Interval], int]:
    """Ranges of one capture; they start after its session, whose start is on the machine's clock."""
    texts: dict[int, str] = {}
    session, rank, lost = 0, 0, 0
    rows: list[dict[str, Any]] = []
    for row in read_objects(path, options, builder):
        if row is None:
            lost += 1
        elif row.get("table") == "StringIds":
            texts[row.get("id", NA)] = str(row.get("value"))
        elif row.get("table") == "ANALYSIS_DETAILS":
            session = integer(row.get("startTime")) or 0
        elif row.get("table") == "META_DATA_CAPTURE" and (match := _RANK.match(str(row.get("value")))):
            rank = min(int(match[1]), MOST_RANKS - 1)
        elif row.get("table") == "NVTX_EVENTS" and row.get("eventType") in _RANGES:
            rows.append(row)
    return list(_ranges(rows, texts, session, rank)), lost


def _ranges(rows: Iterable[dict[str, Any]], texts: dict[int, str], session: int, rank: int) -> Iterator[_Interval]:
    for row in rows:
        start, end = integer(row.get("start")), integer(row.get("end"))
        name = row.get("text") or texts.get(row.get("textId", NA))
        if name and start is not None and end is not None and start <= end:
            yield _Interval(str(name), rank, session + start, end - start)


SOURCE = IntervalsSource()
