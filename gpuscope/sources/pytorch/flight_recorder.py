"""PyTorch's Flight Recorder dumps: the last collectives of a rank, as pickle or JSON (version 2.x).

One file per rank. Where NCCL's watchdog wrote it only unfinished operations may be in it, and none at all
for a rank that had nothing in flight: how far that rank had got is then in `pg_status` alone.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import job, reading
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.kinds import POINT_TO_POINT, collective_op
from gpuscope.trace.name_pool import NO_NAME, dtype_name
from gpuscope.trace.schema import MOST_RANKS, NA

MAX_BYTES = 1 << 30
"""A dump of 20,000 entries with stacks takes some 50 MB."""
FRAMES = 24
RECORDER = "instrumented_runtime/record/"
"""In the files of frames of gpuscope's own, through which the script's calls go."""
_PICKLE = b"\x80"
_TELLING = (b"pg_config", b"pg_status", b"collective_seq_id")
_LAST_NUMBER = when_used.pattern(r"(\d+)(?:\.[a-zA-Z]\w*)*$")
_ENDS = when_used.pattern(r"(send|recv)\s+(\d+)\s*(->|<-)\s*(\d+)")


class FlightRecorderSource:
    """Reads one rank's dump into `flight_records`, `group_status` and `groups`."""

    name = "flight-recorder"
    files = Files(Role.HANG_RECORD, alone="Flight Recorder dumps show where a job hangs, not where its time goes")

    def sniff(self, path: Path, head: bytes) -> bool:
        """A pickle, or JSON without trace events, that speaks of process groups or their collectives."""
        if path.is_dir():
            return False
        if head.startswith(_PICKLE):
            return any(word in head for word in _TELLING)
        marked = b'"collective_seq_id"' in head or (b'"pg_status"' in head and b'"entries"' in head)
        return head.lstrip().startswith(b"{") and marked and b'"traceEvents"' not in head

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in the file's name: `nccl_trace_rank_3`, `_dump_3`."""
        return _rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a dump. Raises `InputError` for one that is damaged, hostile or of another version."""
        dump = _load(path)
        if options.advance:
            options.advance(path.stat().st_size)
        rank = _rank_in_name(path)
        told = dump.get("rank")
        if rank is None and isinstance(told, int) and 0 <= told < MOST_RANKS:
            rank = told
        if rank is None:
            rank = rank_in_name(path)
            basis = "the folder's name" if rank is not None else "nothing"
            builder.problem(job.RANK_GUESSED, 1, file=path.name, basis=basis)
        _Reader(builder, rank or 0, dump).read(path)


def _rank_in_name(path: Path) -> int | None:
    alone = rank_in_name(Path(path.name))
    match = _LAST_NUMBER.search(path.name)
    return alone if alone is not None else int(match[1]) if match else None


def _load(path: Path) -> Mapping[str, Any]:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise InputError(f"{path}: is far too large for a Flight Recorder dump ({size} bytes)")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
    try:
        from gpuscope.sources.pytorch import log_signs

        dump = log_signs.loads(data) if data.startswith(_PICKLE) else json.loads(data)
    except InputError as error:
        raise InputError(f"{path}: {error.message}", hint=error.hint) from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is damaged or cut off ({error})") from error
    if not isinstance(dump, dict) or not isinstance(dump.get("entries", []), list):
        raise InputError(f"{path}: not a Flight Recorder dump")
    version = str(dump.get("version", ""))
    if not version.startswith("2."):
        raise InputError(
            f"{path}: is of version {version or 'unknown'}", hint="versions 2.x can be read (PyTorch 2.3 and newer)"
        )
    return dump


class _Reader:
    """One dump on its way into the builder."""

    def __init__(self, builder: TraceBuilder, rank: int, dump: Mapping[str, Any]) -> None:
        self.builder, self.rank, self.dump = builder, rank, dump
        found = [entry for entry in dump.get("entries", []) if _usable(entry)]
        self.lost = len(dump.get("entries", [])) - len(found)
        self.entries: list[Mapping[str, Any]] = found
        self.members = {
            str(name): _ranks(config.get("ranks"))
            for name, config in _mapping(dump.get("pg_config")).items()
            if name and isinstance(config, dict)
        }

    def read(self, path: Path) -> None:
        builder = self.builder
        world = max((len(ranks) for ranks in self.members.values()), default=0)
        library = str(self.dump.get("nccl_version") or self.dump.get("comm_lib_version") or "")
        facts = {
            "nccl_version": library,
            "dumped_ns": _number(self.dump.get("dumped_ns")),
            "note": str(self.dump.get("gpuscope_note") or ""),
        }
        source = builder.source(path, FlightRecorderSource.name, str(self.dump["version"]), len(self.entries), facts)
        backends = [str(entry["profiling_name"]).partition(":")[0] for entry in self.entries]
        builder.add(
            "ranks",
            1,
            {
                "rank": self.rank,
                "source": source,
                "world_size": world or NA,
                "backend": builder.names.code(backends[0]) if backends and ":" in self._first_name() else None,
            },
        )
        self._groups(backends[0] if backends else "")
        self._status()
        rows = [self._record(entry) for entry in self.entries]
        for place, done in messages_done(self.entries).items():
            if done:  # what nothing tells of stays pending: a hung receive looks the same
                rows[place]["done"] = 1
        if rows:
            columns = {column: [row[column] for row in rows] for column in rows[0]}
            builder.add("flight_records", len(rows), {"rank": self.rank, **columns})
        builder.problem(job.DUMP_WITHOUT_ENTRIES, int(not rows), file=path.name)
        builder.problem(reading.RECORD_UNREADABLE, self.lost, file=path.name, what="entries")

    def _first_name(self) -> str:
        return str(self.entries[0]["profiling_name"])

    def _groups(self, backend: str) -> None:
        code = self.builder.names.code
        configs = _mapping(self.dump.get("pg_config"))
        described = {
            str(name): _described(_mapping(config).get("desc")) for name, config in configs.items() if str(name)
        }
        for entry in self.entries:
            described.setdefault(_group(entry), _described(*entry["process_group"][1:2]))
        for name, description in described.items():
            ranks = self.members.get(name, [])
            self.builder.add(
                "groups",
                1,
                {
                    "rank": self.rank,
                    "group": code(name),
                    "description": code(description) if description else None,
                    "size": len(ranks) or None,
                    "ranks": code(",".join(map(str, ranks))) if ranks else None,
                    "backend": code(backend) if backend else None,
                },
            )

    def _status(self) -> None:
        status = _mapping(self.dump.get("pg_status"))
        names = _names_of_ids(list(status), self.entries, list(self.members))
        for key, progress in status.items():
            name = names.get(str(key))
            if name is None or not isinstance(progress, dict):
                self.builder.problem(job.GROUP_UNNAMED, 1)
                continue
            values = {
                # −1 is «none so far»; of the start it is also «not watched».
                "enqueued": _at_least_0(progress.get("last_enqueued_collective")),
                "started": _at_least_0(progress.get("last_started_collective")) or NA,
                "completed": _at_least_0(progress.get("last_completed_collective")),
            }
            row = {"rank": self.rank, "group": self.builder.names.code(name)}
            self.builder.add("group_status", 1, row | values)

    def _record(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        code = self.builder.names.code
        name = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
        op, state = collective_op(name) or name, str(entry.get("state", ""))
        if entry.get("is_p2p") and op not in POINT_TO_POINT:
            op = "send_recv"
        frames = [frame for frame in _list(entry.get("frames")) if isinstance(frame, dict)]
        frames = [frame for frame in frames if RECORDER not in str(frame.get("filename"))]
        dtypes = _list(entry.get("input_dtypes"))
        p2p = _number(entry.get("p2p_seq_id", 0))
        return {
            "record": int(entry["record_id"]),
            "group": code(_group(entry)),
            "seq": int(entry["collective_seq_id"]),
            "p2p_seq": 0 if p2p == NA else p2p,
            "op": code(op),
            "peer": self._peer(_group(entry), name),
            "dtype": code(dtype_name(str(dtypes[0]))) if dtypes else NO_NAME,
            "sizes": code(json.dumps(entry.get("input_sizes"), default=str)),
            "state": code(state),
            "done": _done(entry, state),
            "created": _number(entry.get("time_created_ns")),
            "seen_started": _number(entry.get("time_discovered_started_ns")),
            "seen_completed": _number(entry.get("time_discovered_completed_ns")),
            "dur": _milliseconds(entry.get("duration_ms")),
            "frames": code("\n".join(map(_frame, frames[:FRAMES]))) if frames else NO_NAME,
        }

    def _peer(self, group: str, name: str) -> int:
        """The other rank of `send 0->1` or `recv 1<-0`, which count within the group."""
        match = _ENDS.search(name)
        if match is None:
            return NA
        other, ranks = int(match[4]), self.members.get(group)
        if ranks:
            return ranks[other] if other < len(ranks) else NA
        return other


def _usable(entry: Any) -> bool:
    if not isinstance(entry, dict):
        return False
    numbers = (entry.get("record_id"), entry.get("collective_seq_id"))
    group = entry.get("process_group")
    return all(isinstance(number, int) and abs(number) < 1 << 62 for number in numbers) and (
        isinstance(entry.get("profiling_name"), str) and isinstance(group, tuple | list) and len(group) > 0
    )


def _group(entry: Mapping[str, Any]) -> str:
    return str(entry["process_group"][0])


def _described(description: Any = None) -> str:
    """A group's description; torch writes «undefined» where the script gave none."""
    return str(description) if description and description != "undefined" else ""


def messages_done(entries: Sequence[Mapping[str, Any]]) -> dict[int, bool | None]:
    """By place in a dump, whether NCCL's sends and receives that are still `scheduled` are done; None where nothing
    says.

    `batch_isend_irecv` groups its messages: torch records each without events, so that its state never changes, and
    behind them one entry `coalesced` of the same number, whose state is that of all. A message of its own has events.
    Where the `coalesced` one is not there (only what is active was asked for), a later operation of the group that has
    completed tells that this one has, and one that it could have told of at all: a message of the group whose state did
    change.
    """
    by_group: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
    for place, entry in enumerate(entries):
        if str(entry.get("profiling_name", "")).startswith("nccl:"):
            by_group[_group(entry)].append((place, entry))
    found: dict[int, bool | None] = {}
    for group in by_group.values():
        finished = [_order_of(place, entry) for place, entry in group if _finished(entry)]
        changing = any(_is_message(entry) and _finished(entry) for _, entry in group)
        whole = {entry.get("p2p_seq_id"): entry for _, entry in group if entry["profiling_name"] == COALESCED}
        for place, entry in group:
            if not _is_message(entry) or _finished(entry) or entry.get("state") == "started":
                continue
            together = whole.get(entry.get("p2p_seq_id"))
            if together is not None:
                found[place] = _finished(together)
            elif finished and _order_of(place, entry) < max(finished):
                found[place] = True
            else:
                found[place] = False if changing else None
    return found


COALESCED = "nccl:coalesced"
"""What torch calls a group of operations that NCCL carries out as one."""
_MESSAGE = re.compile(r"nccl:(send|recv)\b")


def _is_message(entry: Mapping[str, Any]) -> bool:
    return bool(_MESSAGE.match(str(entry["profiling_name"])))


def _order_of(place: int, entry: Mapping[str, Any]) -> int:
    """In the order of the dump, where an entry has no number of its own."""
    return int(entry.get("record_id", place))


def _finished(entry: Mapping[str, Any]) -> bool:
    return entry.get("state") == "completed" or entry.get("retired") is True


def _done(entry: Mapping[str, Any], state: str) -> int:
    if state == "completed" or entry.get("retired") is True:
        return 1
    # On gloo the state never changes; before version 2.1 nothing else records it.
    return 0 if state == "started" or entry.get("retired") is False else NA


def _frame(frame: Mapping[str, Any]) -> str:
    return f"{frame.get('name')} ({frame.get('filename')}:{frame.get('line')})"


def _number(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 1 << 62 else NA


def _milliseconds(value: Any) -> int:
    """A duration in ms as ns; torch has a float there, and none where the events were not timed."""
    known = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e12
    return round(value * 1e6) if known else NA


def _at_least_0(value: Any) -> int:
    return 0 if value == -1 else _number(value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}


def _ranks(listed: Any) -> list[int]:
    """`"[0, 1, 2]"`, or a list of numbers."""
    return [int(number) for number in re.findall(r"\d{1,9}", str(listed))]


def _names_of_ids(keys: Sequence[Any], entries: Sequence[Mapping[str, Any]], groups: Sequence[str]) -> dict[str, str]:
    """The group of each key of `pg_status`, which is a number of the rank's own for it, not its name.

    Entries hold both. For the others: groups are numbered in the order of their making, and so are their
    names; where as many are named as numbered, one follows from the other, if the entries agree.
    """
    names_by_id: dict[str, set[str]] = defaultdict(set)
    for entry in entries:
        names_by_id[str(entry.get("pg_id"))].add(_group(entry))
    known = {key: next(iter(names)) for key, names in names_by_id.items() if len(names) == 1}
    ids, names = [str(key) for key in keys], list(groups)
    if all(name in groups for name in ids) and any(len(own) > 1 for own in names_by_id.values()):
        return {name: name for name in ids}  # filled in by name
    if len(ids) == len(names) and all(text.isdigit() for text in ids + names):
        guess = dict(zip(sorted(ids, key=int), sorted(names, key=int), strict=True))
        if all(guess.get(key) == name for key, name in known.items() if key in guess):
            return guess
    if not entries and all(name in groups for name in ids):
        return {name: name for name in ids}
    return {key: name for key, name in known.items() if key in ids}


SOURCE = FlightRecorderSource()
