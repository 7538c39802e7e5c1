"""Kineto traces of several ranks in one file: each becomes a rank, as if the files had never been merged.

Definitions: «Ranks of a file and of a folder». Forms of merging: SGLang `srt/utils/profile_merger.py` (process ids
become `[TP01-DP00] 4711`), TraceLens `TraceFusion/trace_fuse.py` (offsets, and `rank` among the arguments), and files
put one behind the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.kineto.event_arguments import as_list, integer
from gpuscope.sources.kineto.event_block import CATEGORIES, Work
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.text.chrome_json import Complete, Document, Event, Losses, Metadata
from gpuscope.sources.named_ranks import engine_ranks
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.schema import Category

_LABEL = when_used.pattern(r"\[(?P<label>[^\[\]]+)\] ?(?P<pid>.*)", re.DOTALL)
_NAMED = when_used.pattern(r"\brank[ _:#-]?(\d+)\b", re.IGNORECASE)
_TURNS = 4
"""Times per process that its host events may begin anew in a file whose ranks stand one behind the other: more often,
and the events are mixed, by time, say."""

Key = str | int


class _Fused(msgspec.Struct):
    """What TraceLens adds to the arguments of each event."""

    rank: int | None = None
    pid_raw: int | str | None = None


def processes(columns: EventColumns) -> set[Any]:
    """The processes, as written, that ran operators or called the runtime."""
    working: set[int] = set()
    for table, _, values in columns.chunks:
        if table == "host_events":
            worked = (values["category"] == Category.OP) | (values["category"] == Category.RUNTIME)
            working.update(distinct_values(values["thread"][worked]).tolist())
    return {pid for number, (pid, _) in enumerate(columns.threads) if number in working and pid is not None}


class Apart:
    """The events of a merged file by rank."""

    def __init__(self, path: Path, working: set[Any]) -> None:
        """`working` are its `processes`."""
        self._path, self._working = path, working
        self.columns: dict[Key, EventColumns] = {}
        self.builders: dict[Key, TraceBuilder] = {}
        self.header: dict[str, Any] = {}
        self.losses = Losses()
        self.events = Counter[Key]()
        self._names: dict[Key, int] = {}
        self._last: Key | None = None
        self._turns = 0
        self._by_place = 0
        """Events on devices that only their place in the file tells whose they are."""

    def read(self) -> dict[int, Key]:
        """Read the file; its ranks. Raises `InputError` where events can't be told apart."""
        document = Document(self._path)
        for events in document.events():
            self._take(events)
        if self._by_place and self._turns > _TURNS * len(self._working):
            raise InputError(
                f"{self._path}: holds {len(self._working)} processes whose events are mixed, and nothing tells "
                "which process a kernel is of",
                hint="analyse the files that it was merged from",
            )
        self.header, self.losses = document.header, document.losses
        return self._ranks()

    def header_of(self, rank: int) -> dict[str, Any]:
        """What the header, which is that of one rank, says of another: of its groups only those that it is in."""
        info = self.header.get("distributedInfo")
        if not isinstance(info, dict):
            return self.header
        groups = [group for group in as_list(info.get("pg_config")) if isinstance(group, dict)]
        if integer(info.get("rank")) != rank:
            groups = [group for group in groups if rank in as_list(group.get("ranks"))]
        own = {key: value for key, value in info.items() if key != "rank"}
        return {**self.header, "distributedInfo": {**own, "pg_config": groups}}

    def _take(self, events: Iterable[Event]) -> None:
        by_key: dict[Key, list[Event]] = {}
        for event in events:
            for key in self._keys(event):
                by_key.setdefault(key, []).append(event)
        for key, own in by_key.items():
            if key not in self.columns:
                self.builders[key] = TraceBuilder()
                self.columns[key] = EventColumns(self.builders[key])
            self.columns[key].take(own)
            self.events[key] += len(own)

    def _keys(self, event: Event) -> Iterator[Key]:
        """Whose event it is; its process id becomes what it was before."""
        pid = getattr(event, "pid", None)  # instants have none, and stand among their own
        if isinstance(pid, str) and (labelled := _LABEL.fullmatch(pid)) is not None:
            event.pid = int(labelled["pid"]) if labelled["pid"].isdecimal() else labelled["pid"]  # type: ignore[union-attr]
            self._last = labelled["label"]
            yield self._last
            return
        if isinstance(event, Complete | Metadata) and (fused := _fused(event)) is not None:
            event.pid = fused.pid_raw if fused.pid_raw is not None else event.pid
            self._last = f"rank {fused.rank}"
            yield self._last
            return
        if pid is not None and pid in self._working:
            self._see(event, pid)
            yield pid
        elif self._last is not None:
            self._by_place += isinstance(event, Complete) and CATEGORIES.get(event.cat.lower(), 0) >= Work.KERNEL
            yield self._last

    def _see(self, event: Event, pid: Any) -> None:
        """Files begin with the names of their processes and end with work on devices: what stands between two host
        processes is the first one's."""
        if isinstance(event, Metadata) and event.args and (named := _NAMED.search(str(event.args.get("name", "")))):
            self._names[pid] = int(named[1])
        if pid != self._last:
            self._turns += self._last is not None
            self._last = pid

    def _ranks(self) -> dict[int, Key]:
        keys = [key for key in self.columns if self.columns[key].chunks]
        told: Sequence[int | None] = engine_ranks(list(map(str, keys)))
        told = told or [_number(key, self._names) for key in keys]
        numbers = [number for number in dict.fromkeys(told) if number is not None]
        in_order = numbers if len(numbers) == len(keys) else list(range(len(keys)))
        return dict(sorted(zip(in_order, keys, strict=True)))


def _fused(event: Complete | Metadata) -> _Fused | None:
    try:
        if isinstance(event, Metadata):
            found = msgspec.convert(event.args or {}, _Fused)
        elif b'"pid_raw"' in bytes(event.args):
            found = msgspec.json.decode(event.args, type=_Fused)
        else:
            return None
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        return None
    return found if found.rank is not None and found.pid_raw is not None else None


def _number(key: Key, names: dict[Key, int]) -> int | None:
    if key in names:
        return names[key]
    found = _NAMED.search(str(key))
    return int(found[1]) if found else None
