"""Sources feed a builder block by block; it orders, links and checks what they read, and makes a Trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.native import release_memory
from gpuscope.problems import completeness, reading
from gpuscope.problems.problem import Problem, ProblemKind, merged
from gpuscope.recorded_environment import kept_facts
from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, NamePool
from gpuscope.trace.columns.row_order import order_rows, select_rows
from gpuscope.trace.columns.table import Array, Table, Times, concatenated, joined, rows_of_rank, stored
from gpuscope.trace.cpu_run import host_device
from gpuscope.trace.graph_captures import while_capturing, with_captures
from gpuscope.trace.host_alone import what_the_host_did
from gpuscope.trace.launch_links import awaited_streams, launches, unmatched
from gpuscope.trace.launched_communication import with_launched
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.communication_ops import from_launching_ranges
from gpuscope.trace.nested_messages import as_barriers, named_by_calls
from gpuscope.trace.recorded_totals import Part, RecordedTotal, differences
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind
from gpuscope.trace.serial_streams import overruns
from gpuscope.trace.steps import KERNEL_SEQUENCE, FoundSteps, find_steps
from gpuscope.trace.trace import SourceFile, Trace

ONE_DAY_NS = 86_400 * 10**9
"""No profiling session pauses so long: events that far from the rest carry a broken clock."""


NAME_TOLD = 60
"""Characters of a kernel's name that a problem quotes."""


class TraceBuilder:
    """Collects rows of every table. `add` may be called any number of times; `finish` once."""

    def __init__(self) -> None:
        self.names = NamePool()
        self.sources: list[SourceFile] = []
        self._chunks: dict[str, list[Table]] = {name: [] for name in SCHEMAS}
        self._rows = dict.fromkeys(SCHEMAS, 0)
        self._problems: list[Problem] = []
        self._threads: dict[tuple[int, int, int], int] = {}
        self._thread_names: dict[tuple[int, int], str] = {}
        self._host_is_device: set[int] = set()
        self._recording: dict[str, int] = {}
        self._totals: list[RecordedTotal] = []

    def add(self, table: str, length: int, values: Mapping[str, Any]) -> int:
        """Append `length` rows; a scalar fills its column, an optional column may be left out.

        Returns the row number of the first, by which other tables may refer to them.
        """
        first = self._rows[table]
        if length:
            self._chunks[table].append(Table.build(SCHEMAS[table], length, values))
            self._rows[table] += length
        return first

    def problem(self, kind: ProblemKind, count: int, **facts: object) -> None:
        """Record a problem, its count and the facts that its text takes; a count of zero records nothing."""
        problem = kind.of(count, **facts)
        if count:
            self._problems.append(problem)

    def _has(self, kind: ProblemKind) -> bool:
        return any(problem.code == kind.code for problem in self._problems)

    def source(self, path: Path, fmt: str, version: str, events: int, facts: Mapping[str, Any]) -> int:
        """Record a file that was read; returns its row, for `ranks.source`. Of a header in `facts` only keys that are
        known to be harmless stay (`gpuscope.recorded_environment`)."""
        self.sources.append(SourceFile(path, fmt, version, events, kept_facts(facts)))
        return len(self.sources) - 1

    def thread(self, rank: int, pid: int, tid: int) -> int:
        """The row of a host thread in `threads`, made on first use."""
        return self._threads.setdefault((rank, pid, tid), len(self._threads))

    def name_thread(self, pid: int, tid: int, name: str) -> None:
        """Set a thread's name; the last one set stands."""
        self._thread_names[pid, tid] = name

    def host_is_device(self, rank: int) -> None:
        """The source knows that this rank trained on the CPU: its training threads are its device."""
        self._host_is_device.add(rank)

    def recording(self, **values: int) -> None:
        """Record how complete the file is: optional columns of `recording` by name."""
        self._recording.update(values)

    def recorded_total(self, rank: int, part: Part, ns: int, by: str) -> None:
        """Record what the file itself (`by`) gives as a part of a rank's whole recording: ours is held against it."""
        self._totals.append(RecordedTotal(rank, part, ns, by))

    def finish(self) -> Trace:
        """Order, link and check; the builder must not be used afterwards."""
        release_memory()
        data = {name: self._table(name) for name in SCHEMAS if name != "threads"}
        data["threads"] = self._thread_table()
        release_memory()
        self._drop_impossible(data)
        data["host_events"] = with_captures(data["host_events"], self.names)
        order_rows(data, "host_events")
        order_rows(data, "device_events")
        self._clip_overruns(data)
        as_barriers(data, self.names, self._host_is_device)
        data["device_events"] = self._with_host_devices(data)
        order_rows(data, "device_events")
        self._time_collectives(data)
        for name in ("ranks", "syncs", "collectives", "steps", "operations", "flight_records", "memory_samples"):
            order_rows(data, name)
        self._link(data)
        data["device_events"], data["collectives"] = with_launched(data, self.names)
        data["collectives"] = from_launching_ranges(data, self.names)
        data["collectives"] = named_by_calls(data, self.names)
        data["steps"] = self._steps(data)
        self._report_hosts_alone(data)
        trace = Trace(data, self.names, self.sources, [])
        self._compare_totals(trace)
        trace.problems = merged(self._problems)
        trace.check()
        return trace

    def _compare_totals(self, trace: Trace) -> None:
        for found in differences(trace, self._totals):
            total = found.total
            self.problem(
                reading.TOTALS_DIFFER,
                1,
                rank=total.rank,
                by=total.by,
                part=total.part.replace("_", " "),
                given_ms=total.ns / 1e6,
                own_ms=found.own / 1e6,
                window_ms=found.window / 1e6,
            )
            self.problem(reading.TOTALS_CONTRADICT, int(found.contradicts), rank=total.rank, by=total.by)

    def _table(self, name: str) -> Table:
        chunks = self._chunks.pop(name)
        if not chunks:
            return Table.empty(SCHEMAS[name])
        # Column by column, so that only one column is ever held twice.
        columns: dict[str, Array] = {}
        for column in SCHEMAS[name].columns:
            whole = concatenated([chunk.columns.pop(column.name) for chunk in chunks])
            columns[column.name] = stored(whole, column)
        return Table(SCHEMAS[name], columns)

    def _thread_table(self) -> Table:
        if not self._threads:
            return Table.empty(SCHEMAS["threads"])
        keys = list(self._threads)
        named = [self._thread_names.get((pid, tid)) for _, pid, tid in keys]
        columns = {
            "rank": [rank for rank, _, _ in keys],
            "pid": [pid for _, pid, _ in keys],
            "tid": [tid for _, _, tid in keys],
            "name": [-1 if name is None else self.names.code(name) for name in named],
        }
        return Table.build(SCHEMAS["threads"], len(keys), columns)

    def _drop_impossible(self, data: dict[str, Table]) -> None:
        """Leave out events that end before they start, and those whose clock is days off the others'."""
        low, high = _session([data[name]["start"] for name in ("device_events", "host_events", "operations")])
        for name in ("host_events", "device_events", "syncs", "steps", "operations", "counters"):
            start, end = data[name]["start"], data[name]["end"]
            negative = end < start
            if name == "counters" or not len(start) or (int(start.min()) >= low and int(end.max()) <= high):
                astray = np.zeros(1, np.bool_)
            else:
                astray = ~negative & ((start < low) | (end > high))
            self.problem(reading.NEGATIVE_DURATION, int(np.count_nonzero(negative)), table=name)
            self.problem(reading.IMPOSSIBLE_TIME, int(np.count_nonzero(astray)), table=name)
            if bool(negative.any()) or bool(astray.any()):
                select_rows(data, name, np.flatnonzero(~(negative | astray)))

    def _clip_overruns(self, data: dict[str, Table]) -> None:
        """Work on one stream is serial: what runs on after its successor has ended ends where that begins."""
        device = data["device_events"]
        found = overruns(device, data["host_events"], data["ranks"], self.names)
        if not len(found.rows):
            return
        end = device["end"].copy()
        cut = end[found.rows] - found.ends
        longest = int(found.rows[int(np.argmax(cut))])
        name = self.names[int(device["name"][longest])]
        self.problem(
            reading.OVERRUNS_STREAM,
            len(found.rows),
            of=len(device),
            cut_ms=int(cut.sum()) / 1e6,
            most_ms=int(cut.max()) / 1e6,
            name=name if len(name) <= NAME_TOLD else f"{name[:NAME_TOLD]}…",
        )
        end[found.rows] = found.ends
        data["device_events"] = Table(device.schema, {**device.columns, "end": end})

    def _with_host_devices(self, data: dict[str, Table]) -> Table:
        device, host = data["device_events"], data["host_events"]
        tables = [device]
        for rank in sorted(self._host_is_device - set(distinct_values(device["rank"]).tolist())):
            rows = np.arange(*rows_of_rank(host, rank))
            work = host_device.work(host, self.names, rows) if len(rows) else {"start": np.empty(0, np.int64)}
            count = len(work["start"])
            if count:
                tables.append(Table.build(SCHEMAS["device_events"], count, {"rank": rank, **work}))
        return joined(tables)

    def _time_collectives(self, data: dict[str, Table]) -> None:
        """A collective's times are those of the event behind it; one whose event was left out goes too."""
        table = data["collectives"]
        for column, behind in (("host_event", "host_events"), ("event", "device_events")):
            rows = table[column]
            known = rows != NA
            for time in ("start", "end"):
                times = table[time].copy()
                times[known] = data[behind][time][rows[known]]
                table.columns[time] = times
        data["collectives"] = table.take(np.flatnonzero((table["event"] != NA) | (table["host_event"] != NA)))

    def _link(self, data: dict[str, Table]) -> None:
        device, host = data["device_events"], data["host_events"]
        found, duplicated = launches(device, host)
        launch = device.schema.column("launch")
        known = device.known("launch")
        device.columns["launch"] = stored(np.where(known, device["launch"], found) if known.any() else found, launch)
        del found, known
        has_calls = bool((host["category"] == Category.RUNTIME).any())
        # A migration of unified memory has no launch: the driver makes it.
        launched = (device["kind"] != Kind.MEMORY) | device.known("correlation")
        missing = int((launched & ~device.known("launch")).sum()) if has_calls else 0
        self.problem(completeness.DUPLICATE_CORRELATION, duplicated)
        self.problem(completeness.LAUNCH_MISSING, missing)
        data["syncs"].columns["awaited_stream"], inferred = awaited_streams(data["syncs"], host, device)
        self.problem(completeness.AWAITED_STREAM_INFERRED, inferred)
        self._count_unmatched(data)

    def _count_unmatched(self, data: dict[str, Table]) -> None:
        """The row of `recording`; a launch whose kernel is not there was a record dropped."""
        device, host = data["device_events"], data["host_events"]
        if not len(device) and not len(host):
            return
        cut_off = len(device) > 0 and self._has(reading.TRUNCATED)
        launching = self.names.matching(kinds.is_kernel_launch)
        on_host = among(device["rank"], self._host_is_device)
        kernels, orphans, calls, lost = unmatched(device, host, launching, cut_off)
        lost &= ~while_capturing(host, self.names)  # a capture launches nothing
        counts = [int(found.sum()) for found in (kernels & ~on_host, orphans & ~on_host, calls, lost)]
        names = ("kernels", "kernels_without_launch", "launches", "launches_without_kernel")
        values = {"source": 0, **dict(zip(names, counts, strict=True)), **self._recording}
        data["recording"] = Table.build(SCHEMAS["recording"], 1, values)
        self.problem(completeness.KERNEL_MISSING, counts[3])
        self.problem(completeness.RECORDS_DROPPED, self._recording.get("dropped", 0))

    def _report_hosts_alone(self, data: dict[str, Table]) -> None:
        """Of ranks that launched kernels of which none was recorded, what their hosts did."""
        if not self._has(completeness.KERNELS_NOT_RECORDED):
            return
        worked = set(distinct_values(data["device_events"]["rank"]).tolist())
        for rank in distinct_values(data["host_events"]["rank"]).tolist():
            did = what_the_host_did(data["host_events"], self.names, rank) if rank not in worked else None
            if did is not None:
                self.problem(completeness.HOST_ALONE, 1, rank=rank, **did)

    def _layers_only(self, basis: str) -> bool:
        """A capture cut to a window may hold less than a step: what repeats in it are layers."""
        return basis == KERNEL_SEQUENCE and self._has(completeness.CUT_TO_WINDOW)

    def _steps(self, data: dict[str, Table]) -> Table:
        if len(data["steps"]):
            return data["steps"]
        host, device = data["host_events"], data["device_events"]
        chunks: list[Table] = []
        for rank in distinct_values(data["ranks"]["rank"]).tolist():
            found = find_steps(host, device, self.names, host["rank"] == rank, device["rank"] == rank)
            if found is not None and not self._layers_only(found.basis):
                values = {
                    "rank": rank,
                    "step": found.step,
                    "start": found.start,
                    "end": found.end,
                    "basis": self.names.code(found.basis),
                    **self._batches(found),
                }
                chunks.append(Table.build(SCHEMAS["steps"], len(found.step), values))
        if not chunks:
            return Table.empty(SCHEMAS["steps"])
        return Table(SCHEMAS["steps"], {name: np.concatenate([c[name] for c in chunks]) for name in chunks[0].columns})

    def _batches(self, found: FoundSteps) -> dict[str, Any]:
        """The columns of a server's steps."""
        if not found.batches:
            return {}
        counts = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
        told = {name: [getattr(one, name) for one in found.batches] for name in counts}
        phases = [NO_NAME if one.phase is None else self.names.code(one.phase) for one in found.batches]
        return {"phase": phases} | {name: [NA if one is None else one for one in own] for name, own in told.items()}


def _session(starts: Sequence[Times]) -> tuple[int, int]:
    """The stretch of time, without a pause of a day, that holds most events; padded by a day."""
    starts = [column for column in starts if len(column)]
    if not starts:
        return 0, 0
    low, high = min(int(column.min()) for column in starts), max(int(column.max()) for column in starts)
    if high - low <= ONE_DAY_NS:
        return _padded(low, high)
    ordered = np.sort(np.concatenate(starts))
    # Compared as floats: the difference of two absurd times may not fit an int64.
    breaks = np.flatnonzero(np.diff(ordered.astype(np.float64)) > ONE_DAY_NS) + 1
    bounds = np.concatenate(([0], breaks, [len(ordered)]))
    largest = int(np.argmax(np.diff(bounds)))
    return _padded(int(ordered[bounds[largest]]), int(ordered[bounds[largest + 1] - 1]))


def _padded(low: int, high: int) -> tuple[int, int]:
    limit = np.iinfo(np.int64)
    return max(low - ONE_DAY_NS, limit.min), min(high + ONE_DAY_NS, limit.max)
