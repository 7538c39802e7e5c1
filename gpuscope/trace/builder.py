"""Sources feed a builder block by block; it orders, links and checks what they read, and makes a Trace."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gpuscope.native import release_memory
from gpuscope.problems import reading
from gpuscope.problems.problem import Problem, ProblemKind, merged
from gpuscope.recorded_environment import kept_facts
from gpuscope.trace import kinds, launch_links
from gpuscope.trace.intervals import overruns, union, while_capturing, with_captures
from gpuscope.trace.launch_links import awaited_streams, innermost, launches, outermost, unmatched
from gpuscope.trace.name_pool import NCCL_RANGES, NO_NAME, NamePool, total_bytes
from gpuscope.trace.optimizer_ranges import Part, RecordedTotal, as_barriers, differences, named_by_calls, with_launched
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind
from gpuscope.trace.steps import KERNEL_SEQUENCE, FoundSteps, find_steps, past_the_last_step
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    among,
    concatenated,
    distinct_values,
    joined,
    looked_up,
    order_rows,
    rows_of_rank,
    select_rows,
    stored,
)
from gpuscope.trace.trace import SourceFile, Trace

# What the host of a rank did, of a recording that holds its launches and not one of their kernels.


def what_the_host_did(host: Table, names: NamePool, rank: int) -> dict[str, Any] | None:
    """Where the time of the thread with most runtime calls went, in % of it; None where the rank made no call."""
    rows = np.arange(*rows_of_rank(host, rank))
    calls = rows[host["category"][rows] == Category.RUNTIME]
    if not len(calls):
        return None
    threads = distinct_values(host["thread"][calls])
    counts = [int(np.count_nonzero(host["thread"][calls] == thread)) for thread in threads.tolist()]
    own = rows[host["thread"][rows] == threads[int(np.argmax(counts))]]
    window = int(host["end"][own].max() - host["start"][own].min())
    category, name = host["category"][own], host["name"][own]
    operator, runtime = category == Category.OP, category == Category.RUNTIME
    waiting = runtime & looked_up(names.matching(kinds.is_blocking_call), name)

    def percent(picked: Mask) -> float:
        return 100 * union(host["start"][own[picked]], host["end"][own[picked]]).total / max(window, 1)

    return {
        "window_ms": window / 1e6,
        "operators": percent(operator),
        "calls": percent(runtime),
        "waits": percent(waiting),
        "most": _most(host, names, own[operator] if operator.any() else own[runtime]),
    }


def _most(host: Table, names: NamePool, rows: np.ndarray) -> str:
    """The name with most time among the outermost of `rows`."""
    rows = outermost(host, rows)
    codes, lasts = host["name"][rows], host["end"][rows] - host["start"][rows]
    return names[max(distinct_values(codes).tolist(), key=lambda code: int(lasts[codes == code].sum()))]


# What the range around a launch says of a collective whose kernel carries no arguments: its operation and size.
#
# NCCL runs an all-to-all by its SendRecv kernel, and RCCL's kernels are all `Generic`. The framework names
# the operation by a range around the launch (`nccl:all_to_all`), and where shapes are recorded the range's input is
# what
# is sent (`RECORD_PARAM_COMMS` and `ProcessGroupNCCL::collective` of older torch, which gives kernels no arguments).

_SENT = ("send", "recv", "send_recv", "all_to_all", "gather", "scatter")
"""Operations that NCCL carries out by its SendRecv kernel."""
_WHOLE_INPUT = ("all_reduce", "reduce_scatter", "all_to_all", "broadcast", "reduce", "send", "recv")
"""Operations whose input is the whole array; a gather's is one rank's share."""


def from_launching_ranges(data: Mapping[str, Table], names: NamePool) -> Table:
    """`collectives`, with the operation where a kernel's own name leaves it open, size and type, of the range that
    launched it. Rows that have arguments of their own stay."""
    table, device, host = data["collectives"], data["device_events"], data["host_events"]
    rows = np.flatnonzero((table["event"] != NA) & ~table.known("group"))
    rows = rows[device.at("launch", table["event"][rows]) != NA]
    if not len(rows):
        return table
    named = names.matching(lambda name: name.startswith(NCCL_RANGES))[host["name"]]
    named &= host["category"] == Category.ANNOTATION
    if not bool(named.any()):
        return table
    launch = device.at("launch", table["event"][rows])
    around = innermost(host, named, host["thread"][launch], host["start"][launch])
    rows, around = rows[around != NA], around[around != NA]
    op, agree = table["op"].copy(), np.zeros(len(rows), np.bool_)
    for place, (row, annotation) in enumerate(zip(rows.tolist(), around.tolist(), strict=True)):
        own = names[int(op[row])]
        found = kinds.collective_op(names[int(host["name"][annotation])].split(":", 1)[1])
        if found and (own == "unknown" or (own == "send_recv" and found in _SENT)):
            op[row] = names.code(found)
        agree[place] = names[int(op[row])] == found
    named_rows = Table(table.schema, {**table.columns, "op": op})
    return _with_sizes(named_rows, data["shapes"], names, rows[agree], around[agree])


def _with_sizes(table: Table, shapes: Table, names: NamePool, rows: Times, ranges: Times) -> Table:
    """Sizes in bytes and types of `rows` from the inputs of their `ranges`, each of one kernel alone."""
    known = np.isin(shapes["event"], ranges)
    place = dict(zip(shapes["event"][known].tolist(), np.flatnonzero(known).tolist(), strict=True))
    ranges_of, times = np.unique(ranges, return_counts=True)
    alone = set(ranges_of[times == 1].tolist())
    nbytes, dtype = table["bytes"].copy(), table["dtype"].copy()
    for row, event in zip(rows.tolist(), ranges.tolist(), strict=True):
        shape = place.get(event)
        if shape is None or event not in alone or nbytes[row] != NA or names[int(table["op"][row])] not in _WHOLE_INPUT:
            continue
        dims, types = (_listed(int(shapes[column][shape]), names) for column in ("dims", "types"))
        nbytes[row] = total_bytes(dims, types) or NA
        if nbytes[row] != NA and dtype[row] == NO_NAME:
            dtype[row] = names.code(str(types[0]))
    return Table(table.schema, {**table.columns, "bytes": nbytes, "dtype": dtype})


def _listed(code: int, names: NamePool) -> list[Any]:
    """A recorded list; empty where there is none, or what is recorded is no list."""
    try:
        found = json.loads(names[code]) if code != NO_NAME else []
    except ValueError:
        return []
    return found if isinstance(found, list) else []


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
        self._end_with_the_last_step(data)
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

    def _end_with_the_last_step(self, data: dict[str, Table]) -> None:
        """What the training thread was in as the recording stopped ends there; how it stopped is no part of it."""
        host = data["host_events"]
        rows, ends, behind = past_the_last_step(host, self.names)
        if len(rows):
            end = host["end"].copy()
            end[rows] = ends
            data["host_events"] = Table(host.schema, {**host.columns, "end": end})
        if len(behind):
            kept = np.ones(len(host), np.bool_)
            kept[behind] = False
            select_rows(data, "host_events", np.flatnonzero(kept))

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
            work = launch_links.work(host, self.names, rows) if len(rows) else {"start": np.empty(0, np.int64)}
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
        self.problem(reading.DUPLICATE_CORRELATION, duplicated)
        self.problem(reading.LAUNCH_MISSING, missing)
        data["syncs"].columns["awaited_stream"], inferred = awaited_streams(data["syncs"], host, device)
        self.problem(reading.AWAITED_STREAM_INFERRED, inferred)
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
        self.problem(reading.KERNEL_MISSING, counts[3])
        self.problem(reading.RECORDS_DROPPED, self._recording.get("dropped", 0))

    def _report_hosts_alone(self, data: dict[str, Table]) -> None:
        """Of ranks that launched kernels of which none was recorded, what their hosts did."""
        if not self._has(reading.KERNELS_NOT_RECORDED):
            return
        worked = set(distinct_values(data["device_events"]["rank"]).tolist())
        for rank in distinct_values(data["host_events"]["rank"]).tolist():
            did = what_the_host_did(data["host_events"], self.names, rank) if rank not in worked else None
            if did is not None:
                self.problem(reading.HOST_ALONE, 1, rank=rank, **did)

    def _layers_only(self, basis: str) -> bool:
        """A capture cut to a window may hold less than a step: what repeats in it are layers."""
        return basis == KERNEL_SEQUENCE and self._has(reading.CUT_TO_WINDOW)

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
    if not starts:  # nothing to be far away from: a digest of GPUs has steps alone
        limit = np.iinfo(np.int64)
        return int(limit.min), int(limit.max)
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
