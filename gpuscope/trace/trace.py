"""A Trace: the tables of one or more ranks, the files they came from, and what was lost on the way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gpuscope.problems.problem import Problem, merged
from gpuscope.trace.intervals import EMPTY, Breakdown, Spans, break_down, union
from gpuscope.trace.name_pool import NO_NAME, NamePool
from gpuscope.trace.schema import NA, SCHEMAS, Category, Column, Kind, TableSchema
from gpuscope.trace.table import (
    Array,
    Table,
    Times,
    absent,
    blocks,
    distinct_pairs,
    distinct_values,
    is_constant,
    is_sorted,
    select_rows,
    stored,
)
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    import pandas as pd


Row = Mapping[str, Any]
"""One row of a table as plain values: names as strings, None where absent."""


@dataclass(frozen=True)
class SourceFile:
    """A file that was read: its format, that format's version where it says one, its events."""

    path: Path
    format: str
    format_version: str
    events: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the file says of itself: device properties, profiler switches, distributed information."""


@dataclass(frozen=True)
class Lane:
    """One rank's work on one device, and the rows of `device_events` that are it."""

    rank: int
    device: int
    """Device ordinal; `NA` where the rank's training thread is the device."""
    rows: Times


@dataclass
class _DeviceWork:
    """What was found of a trace's device events, which every analysis asks for."""

    lanes: list[Lane] | None = None
    spans: dict[tuple[int, int, Kind], Spans] = field(default_factory=dict)
    """By the identity of a lane's rows, and kind."""


class Trace:
    """Tables by name as `trace["device_events"]` (numpy columns) or `trace.tables[…]` (DataFrames)."""

    def __init__(
        self,
        data: dict[str, Table],
        names: NamePool,
        sources: list[SourceFile],
        problems: list[Problem],
    ) -> None:
        self._data = data
        self.names = names
        self.sources = sources
        self.problems = problems
        self.tables: Mapping[str, pd.DataFrame] = _Frames(self)
        self._work = _DeviceWork()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_work": _DeviceWork()}

    def __getitem__(self, table: str) -> Table:
        return self._data[table]

    def __repr__(self) -> str:
        formats = ", ".join(dict.fromkeys(source.format for source in self.sources))
        counts = ", ".join(f"{len(self[name]):,} {name}" for name in ("device_events", "host_events"))
        ranks, files = len(self.ranks), len(self.sources)
        plural = "s" if ranks != 1 else "", "s" if files != 1 else ""
        return f"Trace({ranks} rank{plural[0]} from {files} file{plural[1]} ({formats}), {counts})"

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts that ranks are known to have run on, sorted."""
        ranks = self["ranks"]
        return tuple(sorted({self.names[code] for code in ranks["host"][ranks.known("host")].tolist()}))

    @property
    def ranks(self) -> list[int]:
        """The ranks present, ascending."""
        return [int(rank) for rank in distinct_values(self["ranks"]["rank"])]

    def ranks_by_file(self) -> list[tuple[Path, str, list[int], int | None]]:
        """Per source file: its path, format, the ranks it holds and the world size it records."""
        ranks = self["ranks"]
        result: list[tuple[Path, str, list[int], int | None]] = []
        for index, source in enumerate(self.sources):
            own = ranks.take(ranks["source"] == index)
            sizes = own["world_size"][own.known("world_size")]
            present = distinct_values(own["rank"]).tolist()
            result.append((source.path, source.format, present, int(sizes[0]) if len(sizes) else None))
        return result

    def select_ranks(self, ranks: Collection[int]) -> Trace:
        """A Trace of only those ranks; references to rows left out are carried over."""
        data = dict(self._data)
        for name, table in self._data.items():
            if "rank" not in table.columns:
                continue
            # What is of no rank (a record of the whole job) stays.
            keep = np.isin(data[name]["rank"], [*ranks, NA])
            if not bool(keep.all()):
                select_rows(data, name, np.flatnonzero(keep))
        return Trace(data, self.names, self.sources, self.problems)

    def with_sources(self, sources: list[SourceFile]) -> Trace:
        """A Trace of the same rows whose files are named so, in the same order."""
        return Trace(self._data, self.names, sources, self.problems)

    def with_operations(self, operations: Table) -> Trace:
        """A Trace with these operations; names are codes of its own pool."""
        return self.with_table(operations)

    def with_table(self, table: Table) -> Trace:
        """A Trace with this table in place of its own of that name; names are codes of its own pool."""
        found = Trace({**self._data, table.schema.name: table}, self.names, self.sources, self.problems)
        if table.schema.name != "device_events":
            found._work = self._work
        return found

    def select_operations(self, steps: tuple[int, int]) -> Trace:
        """A Trace with the operations of the steps first..last only; all else stays."""
        data = dict(self._data)
        step = data["operations"]["step"]
        select_rows(data, "operations", np.flatnonzero((steps[0] <= step) & (step <= steps[1])))
        return Trace(data, self.names, self.sources, self.problems)

    def reduced(self) -> Trace:
        """A Trace of the same ranks, steps, operations, groups and collectives, with only the events these refer to."""
        data = dict(self._data)
        device, host = data["device_events"], data["host_events"]
        communicating = np.flatnonzero(device["kind"] == Kind.COMMUNICATION)
        select_rows(data, "device_events", communicating)
        kept = [data["device_events"]["launch"], data["collectives"]["host_event"]]
        rows = distinct_values(np.concatenate(kept))
        data["shapes"] = data["shapes"].take(np.empty(0, np.int64))
        data["syncs"] = data["syncs"].take(np.empty(0, np.int64))
        data["counters"] = data["counters"].take(np.empty(0, np.int64))
        select_rows(data, "host_events", rows[(rows != NA) & (rows < len(host))])
        return Trace(data, self.names, self.sources, self.problems)

    def lanes(self) -> list[Lane]:
        """Each rank and device that did any work, in order."""
        if self._work.lanes is None:
            self._work.lanes = self._find_lanes()
        return self._work.lanes

    def _find_lanes(self) -> list[Lane]:
        device = self["device_events"]
        if not len(device):
            return []
        pairs, which = distinct_pairs(device["rank"], device["device"])
        if len(pairs) == 1:
            return [Lane(*pairs[0], np.arange(len(device)))]
        order = np.argsort(which, kind="stable")
        bounds = np.searchsorted(which[order], np.arange(len(pairs) + 1)).tolist()
        return [Lane(*pair, order[bounds[place] : bounds[place + 1]]) for place, pair in enumerate(pairs)]

    def rows(self, name: str) -> list[Row]:
        """The rows of a small table as plain values."""
        table, names = self[name], self.names
        columns: dict[str, list[Any]] = {}
        for column in table.schema.columns:
            values = table[column.name].tolist()
            if column.dtype == "name":
                columns[column.name] = [None if value == NO_NAME else names[value] for value in values]
            else:
                columns[column.name] = [None if value == NA else value for value in values]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def spans(self, rows: Times, kind: Kind) -> Spans:
        """The union of the device events of one kind among `rows`."""
        lane = next((lane for lane in self._work.lanes or () if lane.rows is rows), None)
        if lane is None:
            return self._spans(rows, kind)
        key = (lane.rank, lane.device, kind)
        if key not in self._work.spans:
            self._work.spans[key] = self._spans(rows, kind)
        return self._work.spans[key]

    def _spans(self, rows: Times, kind: Kind) -> Spans:
        device = self["device_events"]
        own = device["kind"][rows] == kind
        if not own.any():
            return EMPTY
        if own.all() and self._is_all(rows):
            return union(device["start"], device["end"])
        rows = rows[own]
        return union(device["start"][rows], device["end"][rows])

    def _is_all(self, rows: Times) -> bool:
        """Whether `rows` are those of the only lane."""
        return self._work.lanes is not None and len(self._work.lanes) == 1 and self._work.lanes[0].rows is rows

    def window(self, rows: Times) -> tuple[int, int]:
        """First start and last end of the device events in `rows`, in ns."""
        device = self["device_events"]
        if self._is_all(rows):
            return int(device["start"].min()), int(device["end"].max())
        return int(device["start"][rows].min()), int(device["end"][rows].max())

    def breakdown(self, rows: Times, window: tuple[int, int] | None = None) -> Breakdown:
        """The exact breakdown of `window` (default: that of the rows) from the device events in `rows`."""
        return self.breakdowns(rows, [window or self.window(rows)])[0]

    def breakdowns(self, rows: Times, windows: Sequence[tuple[int, int]]) -> tuple[Breakdown, ...]:
        """The exact breakdown of each window, from the device events in `rows`."""
        compute, communication, memory = (self.spans(rows, kind) for kind in Kind)
        return break_down(compute, communication, memory, windows)

    def check(self) -> None:
        """Raise `ValueError` where the trace contradicts itself: columns of another type or length, ends before starts,
        ids without a row, rows out of order, a breakdown whose parts do not sum to its window."""
        for table in self._data.values():
            table.check()
            self._check_table(table)
        for lane in self.lanes():
            self.breakdown(lane.rows).check()

    def _check_table(self, table: Table) -> None:
        name = table.schema.name
        if "start" in table.columns and bool((table["end"] < table["start"]).any()):
            raise ValueError(f"{name}: an event ends before it starts")
        if {"rank", "start"} <= set(table.schema.sort) and not is_sorted([table["rank"], table["start"]]):
            raise ValueError(f"{name}: rows are not ordered by rank and start")
        for column in table.schema.columns:
            if column.refs is not None:
                limit = len(self[column.refs])
            elif column.dtype == "name":
                limit = len(self.names)
            elif column.enum is not None:
                limit = len(column.enum)
            else:
                continue
            if not _below(table, column, limit):
                raise ValueError(f"{name}.{column.name}: an id has no row behind it")


def _below(table: Table, column: Column, limit: int) -> bool:
    """Whether the values of a column that are not absent are 0 to `limit` − 1."""
    if not len(table):
        return True
    if is_constant(table.columns[column.name]):
        return all(value == absent(column) or 0 <= value < limit for value in table.at(column.name, slice(1)).tolist())
    for block in blocks(0, len(table)):
        values = table.at(column.name, block)
        if int(values.max()) >= limit or (
            int(values.min()) < 0 and bool(((values < 0) & (values != absent(column))).any())
        ):
            return False
    return True


class _Frames(Mapping[str, "pd.DataFrame"]):
    """The tables as DataFrames, made when asked for."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def __getitem__(self, table: str) -> pd.DataFrame:
        return self._trace[table].to_frame(self._trace.names)

    def __iter__(self) -> Iterator[str]:
        return iter(SCHEMAS)

    def __len__(self) -> int:
        return len(SCHEMAS)


# How many ranks a job has, as its files record it (definitions: «World size»).
#
# Where nothing records it, `gpuscope.analyzers.facts.run_facts` may still take the ranks at hand for all.

WorldBasis = Literal["asked", "distributed_info", "communicators", "environment", "manifest", "files", "assumed"]
"""Where a world size comes from, the most trustworthy first; `asked`: from the user."""
_RECORDED: tuple[WorldBasis, ...] = get_args(WorldBasis)[:-1]
_SOURCE = {
    "asked": "--world-size",
    "distributed_info": "distributedInfo",
    "communicators": "the largest recorded communicator",
    "environment": "the environment of the recorded program (WORLD_SIZE)",
    "manifest": "the manifest of the run",
    "files": "the number of files, of which some could not be read",
}


@dataclass(frozen=True)
class World:
    """The number of ranks of a job."""

    size: int | None
    """None where it is neither recorded nor may be assumed."""
    provenance: WorldBasis | None
    why: str
    """A sentence without a full stop: where the size comes from, or why there is none."""

    @property
    def assumed(self) -> bool:
        """Whether nothing records it: then what rests on it is less certain."""
        return self.provenance == "assumed"


NOT_RECORDED = World(None, None, "the number of ranks of the job is not recorded")


def with_world_size(trace: Trace, size: int, basis: WorldBasis) -> Trace:
    """The trace with this number of ranks as that of its job."""
    ranks = trace["ranks"]
    columns: dict[str, Array] = {
        "world_size": np.full(len(ranks), size, np.int64),
        "world_basis": np.full(len(ranks), trace.names.code(basis), np.int32),
    }
    return trace.with_table(Table(ranks.schema, {**ranks.columns, **columns}))


def recorded_world(trace: Trace) -> World:
    """The first of distributedInfo, communicator records, environment and manifest that gives the size.

    A communicator smaller than what the environment or the manifest says is one of a group of the ranks, and a number
    below that of the ranks at hand (WORLD_SIZE set to the number of nodes, say) is not theirs: both are passed over.
    """
    found = _candidates(trace)
    launched = max(found.get("environment", 0), found.get("manifest", 0))
    for provenance in _RECORDED:
        size = found.get(provenance)
        if size is None or (provenance not in ("asked", "distributed_info") and size < len(trace.ranks)):
            continue
        if provenance != "communicators" or size >= launched:
            return World(size, provenance, f"the world size, {size}, is from {_SOURCE[provenance]}")
    return NOT_RECORDED


def _candidates(trace: Trace) -> dict[WorldBasis, int]:
    """The largest size by where it was recorded."""
    found: dict[WorldBasis, int] = {}
    ranks = trace["ranks"]
    known = ranks.known("world_size")
    for size, basis in zip(ranks["world_size"][known].tolist(), ranks["world_basis"][known].tolist(), strict=True):
        provenance = trace.names[basis] if basis != NO_NAME else "distributed_info"
        for name in _RECORDED:
            if name == provenance:
                found[name] = max(size, found.get(name, 0))
    for table, column in (("communicators", "size"), ("groups", "size"), ("collectives", "group_size")):
        largest = int(trace[table][column].max(initial=NA))
        if largest > 0:
            found["communicators"] = max(largest, found.get("communicators", 0))
    return found


# What a trace lacks, and how to record it: said by `gpuscope info` and by analyses that abstain.

TIMELINES = ("kineto", "nsys", "ascend", "pftrace")
"""How formats begin whose files should hold what ran when: the others are records of something else."""


def _records(trace: Trace) -> str:
    """The formats of a trace without a timeline, in words; empty where one should be there."""
    formats = sorted({source.format for source in trace.sources})
    return "" if any(one.startswith(TIMELINES) for one in formats) else ", ".join(formats)


def missing(trace: Trace) -> list[str]:
    """A sentence for each kind of record that is absent, with how to get it; empty for a full trace."""
    found: list[str] = []
    host = trace["host_events"]
    if not len(trace["device_events"]) and not len(host) and (formats := _records(trace)):
        return [f"no timeline ({formats} holds none): name it together with a trace of the same run"]
    if not len(trace["device_events"]):
        found.append("no device events: record the device too (ProfilerActivity.CUDA, `nsys profile -t cuda`)")
    if not len(host):
        found.append("no host events: record the host too (ProfilerActivity.CPU, `nsys profile -t cuda,nvtx,osrt`)")
    elif not bool((host["category"] == Category.RUNTIME).any()) and bool((trace["ranks"]["device"] != NA).any()):
        found.append("no runtime calls: kernels can't be linked to what launched them (`nsys profile -t cuda`)")
    if not len(trace["steps"]):
        found.append("no steps: call `profiler.step()` once per iteration, or name an NVTX range `step`")
    collectives = trace["collectives"]
    if len(collectives) and not bool(collectives.known("bytes").any()):
        found.append(
            "no sizes of collectives: torch >= 2.4 records them; with nsys, export with --include-blobs=true "
            "(NCCL >= 2.25) or trace with `-t nccl` and export with --include-json=true"
        )
    size = recorded_world(trace).size
    if size is not None and size > len(trace.ranks):
        found.append(f"{size - len(trace.ranks)} of {size} ranks: record all ranks of a group")
    return found


# Several Traces of one run become one, with names, threads and row references carried over.


def merge(traces: Sequence[Trace], ranks: Collection[int] | None = None) -> Trace:
    """One Trace of all ranks (or only `ranks`), rows in each table's declared order.

    Ranks of different traces must be distinct.
    """
    if len(traces) == 1 and (ranks is None or set(traces[0].ranks) <= set(ranks)):
        return traces[0]
    names = NamePool()
    recode = [names.codes(trace.names.names, len(trace.names)) for trace in traces]
    ordered = sorted(range(len(traces)), key=lambda i: min(traces[i].ranks, default=0))
    data = {name: _concatenate(schema, traces, recode, ordered) for name, schema in SCHEMAS.items()}
    problems = merged([problem for index in ordered for problem in traces[index].problems])
    sources = [source for index in ordered for source in traces[index].sources]
    whole = Trace(data, names, sources, problems)
    if ranks is not None:
        whole = whole.select_ranks(ranks)
    whole.check()
    return whole


def _concatenate(schema: TableSchema, traces: Sequence[Trace], recode: list[Array], ordered: list[int]) -> Table:
    columns: dict[str, list[Array]] = {column.name: [] for column in schema.columns}
    offset = dict.fromkeys((*SCHEMAS, "sources"), 0)
    for index in ordered:
        trace = traces[index]
        for column in schema.columns:
            values = trace[schema.name][column.name]
            target = column.refs or ("sources" if column.name == "source" else None)
            if column.dtype == "name" and len(recode[index]):
                values = np.where(values == NO_NAME, NO_NAME, recode[index][values])
            elif target is not None:
                values = np.where(values == NA, NA, values + offset[target])
            columns[column.name].append(values)
        for name in SCHEMAS:
            offset[name] += len(trace[name])
        offset["sources"] += len(trace.sources)
    return Table(schema, {c.name: stored(np.concatenate(columns.pop(c.name)), c) for c in schema.columns})
