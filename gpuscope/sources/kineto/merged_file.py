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
import numpy as np
import numpy.typing as npt

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.kineto.event_arguments import as_list, integer
from gpuscope.sources.kineto.event_block import CATEGORIES, Work
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.text.chrome_json import Complete, Document, Event, Losses, Metadata
from gpuscope.sources.named_ranks import engine_ranks
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.schema import NA, Category

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
    working: dict[Category, set[int]] = {Category.OP: set(), Category.RUNTIME: set()}
    for table, _, values in columns.chunks:
        if table == "host_events":
            for category, threads in working.items():
                threads.update(distinct_values(values["thread"][values["category"] == category]).tolist())
    operating, calling = (
        {pid for number, (pid, _) in enumerate(columns.threads) if number in threads and pid is not None}
        for threads in (working[Category.OP], working[Category.RUNTIME])
    )
    # An accelerator that is drawn as a process of its own (MTIA) may have rows of the runtime, but no operators.
    return operating | (calling - columns.drawn_devices) or calling


def without_device_calls(columns: EventColumns) -> None:
    """The runtime's rows in an accelerator's own process are no launches: those stand in the host's process."""
    drawn = columns.drawn_devices - processes(columns)
    devices = [number for number, (pid, _) in enumerate(columns.threads) if pid in drawn]
    if not devices:
        return
    for table, _, values in columns.chunks:
        if table == "host_events":
            values["correlation"][np.isin(values["thread"], devices)] = NA


TWICE = 0.9
"""Share of the correlation ids of launches that two recordings in one file have twice."""


def check_one_recording(columns: EventColumns, names: NamePool, path: Path) -> None:
    """Raise `InputError` where a file holds two recordings of one process id: every step number twice, and nearly every
    correlation id of the runtime's calls, on one thread."""
    marks: list[int] = []
    ids: list[npt.NDArray[np.int64]] = []
    for table, _, values in columns.chunks:
        if table == "host_events":
            numbered = values["category"] == Category.ANNOTATION
            marks += values["name"][numbered].tolist()
            calls = (values["category"] == Category.RUNTIME) & (values["correlation"] > 0)
            ids.append(values["correlation"][calls])
    steps = Counter(code for code in marks if names[code].startswith("ProfilerStep#"))
    found, counts = np.unique(np.concatenate(ids), return_counts=True) if ids else (np.empty(0), np.empty(0))
    if not steps or min(steps.values()) < 2 or not len(found) or np.mean(counts >= 2) < TWICE:
        return
    pid = next((pid for pid, _ in columns.threads), None)
    raise InputError(
        f"{path}: holds two recordings of process {pid}: the same steps and correlation ids stand in it twice, and "
        "nothing tells whose a kernel is",
        hint="analyse the files that it was merged from, or merge them with a rank in each process's id "
        "(`[TP0] 4711`), as SGLang does",
    )


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
