"""Digests of `gpuscope record --always`: per step what the training thread was in, its waits, and the collectives.

A digest is a timeline in brief: what the thread computes is one operator per phase. Of a job on GPUs it holds no device
work but collectives' durations (`flight_records`), so nothing of the breakdown can be told from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from gpuscope.errors import InputError, UsageError
from gpuscope.problems import reading
from gpuscope.sources import source as lines
from gpuscope.sources.source import Files, ReadOptions, Role, rank_in_name
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.intervals import Spans, join, subtract, union
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.schema import MOST_RANKS, NA, Category
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Trace

VERSION = 2
SUFFIX = ".digest"
OLDER = ".older"
"""Ends the name of the file before, once that was full."""
_MOST = 1 << 61
_COMPUTING = ("forward", "backward", "optimizer")
_NAMES = {"input": "enumerate(DataLoader)", "gc": "gc", "host": "checkpoint"}
"""Phases in which nothing is computed, as traces name them."""


class _Header(msgspec.Struct):
    gpuscope_digest: int
    rank: int
    world_size: int = 1
    host: str = ""
    pid: int = 0
    cores: int = 0
    threads: int = 0


class _Group(msgspec.Struct):
    group: str
    description: str = ""
    ranks: list[int] = []


class _Kind(msgspec.Struct):
    kind: int
    op: str
    group: str
    bytes: int = 0
    dtype: str = ""


class Step(msgspec.Struct):
    """The line of a step."""

    step: int
    end_ns: int
    step_ns: int
    ran_ns: int = 0
    core_wait_ns: int = 0
    phases: list[tuple[str, int]] = []
    waits: list[tuple[int, int]] = []
    pauses: list[tuple[int, int]] = []
    collectives: list[list[int]] = []
    collectives_every: int = 1
    on_device: list[list[int]] | None = None
    gpu: dict[str, int | None] | None = None
    unseen: int = 0

    @property
    def sound(self) -> bool:
        """Whether it can be a step at all."""
        numbers = [ns for _, ns in self.phases] + [one for span in (*self.waits, *self.pauses) for one in span]
        rows = [*self.collectives, *(self.on_device or [])]
        numbers.append(sum(abs(one) for row in rows for one in row))
        whole = all(abs(one) < _MOST for one in [self.step, self.end_ns, *numbers]) and 0 < self.step_ns < _MOST
        return whole and self.step >= 0 and all(len(row) in (4, 6) and row[3] >= 0 for row in rows)


class _Row(NamedTuple):
    kind: _Kind
    seq: int
    start: int
    end: int
    src: int
    dst: int


class DigestSource:
    """Reads a rank's digest, and the file before it."""

    name = "digest"
    files = Files(Role.TIMELINE, (SUFFIX,), unmistakable=(SUFFIX,), brief=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A first line with the format's version."""
        return not path.is_dir() and head.startswith(b'{"gpuscope_digest":')

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        """The rank in the first line."""
        told = lines.first_object(head).get("rank")
        return told if isinstance(told, int) and 0 <= told < MOST_RANKS else rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a digest; a line that was cut off by a kill is counted and left out. Raises `InputError` where no step
        is in it."""
        found = _Read()
        older = path.with_name(path.name + OLDER)
        for part in [older, path] if older.is_file() else [path]:
            found.take(lines.read_objects(part, options, builder))
        if found.header is None or not found.steps:
            raise InputError(f"{path}: holds no step", hint="was the job ended before its first one?")
        if found.header.gpuscope_digest != VERSION or not 0 <= found.header.rank < MOST_RANKS:
            raise InputError(
                f"{path}: a digest of version {found.header.gpuscope_digest}",
                hint="read it with the gpuscope that wrote it",
            )
        _Rows(builder, found).add(path)
        builder.problem(reading.RECORD_UNREADABLE, found.lost, file=path.name, what="lines")
        builder.problem(reading.DIGEST_SAMPLED, found.sampled, file=path.name)
        unseen = sum(max(step.unseen, 0) for step in found.steps)
        builder.problem(reading.DIGEST_UNSEEN, unseen, file=path.name, many=unseen)
        on_gpu = any(step.on_device is not None for step in found.steps)
        builder.problem(reading.DIGEST_OF_A_GPU, int(on_gpu))
        builder.problem(reading.DIGEST_ONLY, int(not on_gpu))


def check_one_run(trace: Trace) -> None:
    """Raise `UsageError` where one rank's digest ended before another's of its host began."""
    ranks, steps = trace["ranks"], trace["steps"]
    spans: dict[int, list[tuple[int, int, Path]]] = {}
    for rank, source, host in zip(*(ranks[name].tolist() for name in ("rank", "source", "host")), strict=True):
        own = steps["rank"] == rank
        if trace.sources[source].format == DigestSource.name and own.any():
            span = int(steps["start"][own].min()), int(steps["end"][own].max()), Path(trace.sources[source].path)
            spans.setdefault(host, []).append(span)
    for of_host in spans.values():
        _, ended, before = min(of_host, key=lambda span: span[1])
        began, _, after = max(of_host)
        if began >= ended:
            raise UsageError(
                f"{before} ended before {after} began: digests of different runs",
                hint=f"name the digests of one run only; two runs are compared by: gpuscope diff {before} {after}",
            )


class _Read:
    """The lines of a digest."""

    def __init__(self) -> None:
        self.header: _Header | None = None
        self.groups: dict[str, _Group] = {}
        self.steps: list[Step] = []
        self.rows: list[_Row] = []
        self.on_device: list[_Row] = []
        self.lost = self.sampled = 0

    def take(self, objects: Iterator[dict[str, Any] | None]) -> None:
        """The lines of one file, whose kinds of collectives are numbered for themselves."""
        kinds: dict[int, _Kind] = {}
        for one in objects:
            try:
                if one is None or not self._line(one, kinds):
                    self.lost += 1
            except msgspec.ValidationError:
                self.lost += 1

    def _line(self, one: dict[str, Any], kinds: dict[int, _Kind]) -> bool:
        if "step" in one:
            step = msgspec.convert(one, Step)
            if not step.sound or (self.steps and step.end_ns <= self.steps[-1].end_ns):
                return False
            self.steps.append(step)
            self.sampled += step.collectives_every > 1
            begin = step.end_ns - step.step_ns
            self.rows += _rows(step.collectives, kinds, begin)
            self.on_device += _rows(step.on_device or [], kinds, begin)
        elif "kind" in one:
            kind = msgspec.convert(one, _Kind)
            kinds[kind.kind] = kind
            return 0 <= kind.bytes < _MOST
        elif "group" in one:
            group = msgspec.convert(one, _Group)
            self.groups[group.group] = group
            return all(0 <= rank < MOST_RANKS for rank in group.ranks)
        else:
            self.header = msgspec.convert(one, _Header)
        return True


def _rows(found: list[list[int]], kinds: dict[int, _Kind], begin: int) -> Iterator[_Row]:
    """Of numbers and begins a row has the difference to the row before."""
    seq = 0
    for number, later, offset, ns, *ends in found:
        seq, begin = seq + later, begin + offset
        if number in kinds:
            src, dst = ends or (NA, NA)
            yield _Row(kinds[number], seq, begin, begin + ns, src, dst)


def _cut(spans: Spans, at: Times) -> Spans:
    """The same time in spans that end at these instants."""
    place = np.searchsorted(spans.start, at) - 1
    inside = at[(place >= 0) & (at < spans.end[place])] if len(spans.start) else at[:0]
    return Spans(*(np.sort(np.concatenate((bound, np.unique(inside)))) for bound in spans))


class _Rows:
    """A digest on its way into the builder."""

    def __init__(self, builder: TraceBuilder, found: _Read) -> None:
        assert found.header is not None
        self.builder, self.found, self.header = builder, found, found.header
        self.rank = found.header.rank
        self.device = any(step.on_device is not None for step in found.steps)

    def add(self, path: Path) -> None:
        builder, header, steps = self.builder, self.header, self.found.steps
        backend = builder.names.code("nccl" if self.device else "gloo")
        source = builder.source(path, DigestSource.name, str(VERSION), len(steps), {"header": self._counted()})
        builder.add(
            "ranks",
            1,
            {
                "rank": self.rank,
                "source": source,
                "pid": header.pid,
                "world_size": header.world_size,
                "host": builder.names.code(header.host) if header.host else None,
                "backend": backend,
            },
        )
        ends = np.array([step.end_ns for step in steps], np.int64)
        starts = ends - np.array([step.step_ns for step in steps], np.int64)
        builder.add(
            "steps",
            len(steps),
            {
                "rank": self.rank,
                "step": [step.step for step in steps],
                "start": starts,
                "end": ends,
                "basis": builder.names.code("the digest"),
            },
        )
        for group in self.found.groups.values():
            self._group(group, backend)
        if self.device:
            self._flight_records()
        else:
            builder.host_is_device(self.rank)
            self._thread(starts)
            self._collectives()

    def _counted(self) -> dict[str, Any]:
        """What was counted of each step, as gpuscope's recorder puts it into a trace's header."""
        steps = self.found.steps
        cores = [[one.step, one.ran_ns, one.core_wait_ns] for one in steps if one.ran_ns > 0]
        counted: dict[str, Any] = {
            "gpuscope_cores": {
                "cores": self.header.cores,
                "threads": self.header.threads,
                "columns": ["step", "ran_ns", "waited_ns"],
                "steps": cores,
            }
        }
        sampled = [one for one in steps if one.gpu]
        if sampled:
            names = list(sampled[0].gpu or {})
            rows = [[one.step, *((one.gpu or {}).get(name) for name in names)] for one in sampled]
            counted["gpuscope_gpu"] = {"columns": ["step", *names], "steps": rows}
        return counted

    def _group(self, group: _Group, backend: int) -> None:
        code = self.builder.names.code
        self.builder.add(
            "groups",
            1,
            {
                "rank": self.rank,
                "group": code(group.group),
                "size": len(group.ranks) or None,
                "description": code(group.description) if group.description else None,
                "place": group.ranks.index(self.rank) if self.rank in group.ranks else None,
                "ranks": code(",".join(map(str, group.ranks))) if group.ranks else None,
                "backend": backend,
            },
        )

    def _thread(self, starts: Times) -> None:
        """The phases of the training thread; in those that compute, all but waits and pauses is one operator, or one
        from each message to the next."""
        code = self.builder.names.code
        names: list[str] = []
        begins: list[int] = []
        lengths: list[int] = []
        off: list[tuple[int, int]] = []
        for step, start in zip(self.found.steps, starts.tolist(), strict=True):
            at = start
            for phase, ns in step.phases:
                names.append(phase)
                begins.append(at)
                lengths.append(ns)
                at += ns
            off += [(start + offset, start + offset + ns) for offset, ns in (*step.waits, *step.pauses)]
        begin = np.array(begins, np.int64)
        end = begin + np.array(lengths, np.int64)
        gone = np.array(off, np.int64).reshape(-1, 2)
        away = union(gone[:, 0], gone[:, 1])
        messages = [row.start for row in self.found.rows if row.kind.op in POINT_TO_POINT]
        thread = self.builder.thread(self.rank, self.header.pid, self.header.pid)
        for phase in dict.fromkeys(names):
            own = np.array([name == phase for name in names], np.bool_)
            spans = Spans(begin[own], end[own])
            if phase in _COMPUTING:
                spans = _cut(subtract(spans, away), np.array(messages, np.int64))
            category = Category.OP if phase in _COMPUTING else Category.ANNOTATION
            self.builder.add(
                "host_events",
                len(spans.start),
                {
                    "rank": self.rank,
                    "thread": thread,
                    "start": spans.start,
                    "end": spans.end,
                    "category": category,
                    "name": code(_NAMES.get(phase, phase)),
                },
            )

    def _collectives(self) -> None:
        builder, rows = self.builder, self.found.rows
        code = builder.names.code
        start, end = (np.array([getattr(row, name) for row in rows], np.int64) for name in ("start", "end"))
        thread = builder.thread(self.rank, self.header.pid, 0)
        named = [code(f"gloo:{row.kind.op}") for row in rows]
        event = {"rank": self.rank, "thread": thread, "category": Category.COMMUNICATION}
        first = builder.add("host_events", len(rows), {**event, "start": start, "end": end, "name": named})
        unlisted = subtract(self._waits(), union(start, end) if len(rows) else Spans(start, end))
        of_others = {**event, "start": unlisted.start, "end": unlisted.end, "name": code("gloo:collective")}
        builder.add("host_events", len(unlisted.start), of_others)
        if not rows:
            return
        groups = self.found.groups
        members = [groups[row.kind.group].ranks if row.kind.group in groups else [] for row in rows]
        p2p = [row.kind.op in POINT_TO_POINT for row in rows]
        peers = [row.dst if row.src == self.rank else row.src for row in rows]
        builder.add(
            "collectives",
            len(rows),
            {
                "rank": self.rank,
                "host_event": first + np.arange(len(rows)),
                "op": [code(row.kind.op) for row in rows],
                "group": [code(row.kind.group) for row in rows],
                "group_size": [2 if message else len(own) or NA for message, own in zip(p2p, members, strict=True)],
                "group_ranks": [code(",".join(map(str, own))) for own in members],
                "seq": [row.seq for row in rows],
                "bytes": [row.kind.bytes for row in rows],
                "dtype": [code(row.kind.dtype) for row in rows],
                "peer": peers,
            },
        )

    def _waits(self) -> Spans:
        found = [
            (begin + offset, begin + offset + ns)
            for step in self.found.steps
            for begin in [step.end_ns - step.step_ns]
            for offset, ns in step.waits
        ]
        spans = np.array(found, np.int64).reshape(-1, 2)
        return join(union(spans[:, 0], spans[:, 1]))

    def _flight_records(self) -> None:
        rows, code = self.found.on_device, self.builder.names.code
        self.builder.add(
            "flight_records",
            len(rows),
            {
                "rank": self.rank,
                "record": np.arange(len(rows)),
                "group": [code(row.kind.group) for row in rows],
                "seq": [row.seq for row in rows],
                "p2p_seq": 0,
                "op": [code(row.kind.op) for row in rows],
                "dtype": [code(row.kind.dtype) for row in rows],
                "state": code("completed"),
                "done": 1,
                "created": [row.start for row in rows],
                "dur": [row.end - row.start for row in rows],
            },
        )


SOURCE = DigestSource()
