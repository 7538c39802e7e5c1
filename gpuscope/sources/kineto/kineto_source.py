"""Kineto JSON, as torch.profiler writes it, from 2020 on: NVIDIA, ROCm, MTIA, CPU only.

Facts of the format: pytorch/kineto `libkineto/src/output_json.cpp` (layout, `baseTimeNanoseconds`) and
`ActivityType.cpp` (categories); PyTorch `torch/csrc/distributed/c10d/ParamCommsUtils.hpp` (arguments of
collectives).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.problems import reading
from gpuscope.sources import stream
from gpuscope.sources.kineto.chrome_json import Document, FlowEnd, FlowStart, Losses
from gpuscope.sources.kineto.decimal_time import to_ns
from gpuscope.sources.kineto.event_arguments import CommunicationArguments, Loose, decode_arguments, integer, told
from gpuscope.sources.kineto.event_block import Decoded, Numbered, Rows, Work
from gpuscope.sources.kineto.event_columns import EventColumns
from gpuscope.sources.kineto.graph_nodes import flows_of
from gpuscope.sources.kineto.kineto_run import Apart, RecordedRun, check_one_recording, processes, without_device_calls
from gpuscope.sources.pytorch.execution_trace import Call, calls, process_of
from gpuscope.sources.source import Files, ReadOptions, Role, SeveralRanks, rank_in_name
from gpuscope.sources.stream import marks_of
from gpuscope.trace import kinds
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.name_pool import NamePool, is_shaped
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Mask

# What a Kineto trace lacks and the execution trace of the same process has: shapes of operators, sizes of messages.
#
# Both name a call by the id of its record function.

AGREE = 0.9
"""Share of the calls with a number in both that must have the same name: numbers begin anew in every process."""

_PASSES_ON = when_used.pattern(
    r"(c10d|_c10d_functional)::|gloo:|nccl:|record_param_comms|aten::(detach|alias|view|_unsafe_view|reshape|as_strided|"
    r"slice|split|split_with_sizes|narrow|select|chunk|unbind|t|transpose|permute|expand|expand_as|unsqueeze|squeeze)$"
)
"""Operators that use no value of a tensor: communication itself, and other views of the same storage."""

_ATTRIBUTES = {
    "collective": "collective_name",
    "dtype": "dtype",
    "elements_in": "in_msg_nelems",
    "elements_out": "out_msg_nelems",
    "group": "pg_name",
    "description": "pg_desc",
    "group_size": "pg_size",
}
"""Fields of `CommunicationArguments` by the attribute of a `record_param_comms` node that says the same."""


def link(columns: EventColumns, builder: TraceBuilder, paths: Iterable[Path]) -> None:
    """Fill in from the execution trace of this process, where one of these files is that; without one nothing changes.

    An execution trace of the process whose calls have other names is reported as a problem.
    """
    records = np.concatenate([*columns.records, np.empty((0, 2), np.int64)])
    pids = {integer(pid) for pid, _ in columns.threads}
    for path in paths if len(records) else ():
        try:
            if process_of(stream.head(path)) not in pids:
                continue
            found = calls(path)
        except InputError:
            continue  # reading the file itself says what is wrong with it
        if _agree(columns, builder, records, found):
            _fill(columns, builder, records, found)
        else:
            builder.problem(reading.OTHER_EXECUTION_TRACE, 1, file=path.name)


def _host(columns: EventColumns, column: str) -> np.ndarray:
    return np.concatenate([own[column] for table, _, own in columns.chunks if table == "host_events"])


def _agree(columns: EventColumns, builder: TraceBuilder, records: np.ndarray, found: Mapping[int, Call]) -> bool:
    names = _host(columns, "name")
    both = [(builder.names[int(names[row])], found[number].name) for row, number in records.tolist() if number in found]
    return sum(one == other for one, other in both) >= max(AGREE * len(both), 1)


def _fill(columns: EventColumns, builder: TraceBuilder, records: np.ndarray, found: Mapping[int, Call]) -> None:
    if not columns.shaped:
        shaped = builder.names.matching(is_shaped)[_host(columns, "name")[records[:, 0]]]
        _add_shapes(builder, [(row, found[number]) for row, number in records[shaped].tolist() if number in found])
    for _, gloo, _ in columns.host_collectives:
        if gloo.dims is None and (call := found.get(integer(gloo.record))) is not None:
            gloo.dims, gloo.types = call.inputs.dims, call.inputs.types
    ranges: Sequence[CommunicationArguments] = [arguments for _, arguments in columns.communication]
    for arguments in ranges:
        if not told(arguments) and (call := found.get(integer(arguments.record))) is not None:
            for name, attribute in _ATTRIBUTES.items():
                setattr(arguments, name, call.attributes.get(attribute))
    _add_uses(columns, records, found)


def _add_uses(columns: EventColumns, records: np.ndarray, found: Mapping[int, Call]) -> None:
    """Give each collective the operator that first reads what it wrote, by the storage of its tensors."""
    at = dict(zip(records[:, 1].tolist(), _host(columns, "start")[records[:, 0]].tolist(), strict=True))
    readers: dict[int, list[int]] = {}
    for number in sorted(found.keys() & at.keys()):
        if not _PASSES_ON.match(found[number].name):
            for storage in found[number].reads:
                readers.setdefault(storage, []).append(number)
    starts = _host(columns, "start")
    called = [(row, arguments) for row, arguments, _ in columns.host_collectives] + columns.communication
    for row, arguments in called:
        own = integer(arguments.record)
        written = found[own].touches if own in found else ()
        later = [
            numbers[place]
            for storage in written
            if (numbers := readers.get(storage)) and (place := bisect_right(numbers, own)) < len(numbers)
        ]
        if later:
            first = min(later)
            arguments.first_use, arguments.first_use_after = found[first].name, at[first] - int(starts[row])


def _add_shapes(builder: TraceBuilder, linked: Sequence[tuple[int, Call]]) -> None:
    def codes(values: Iterable[object]) -> list[int]:
        return [builder.names.code(msgspec.json.encode(value).decode()) for value in values]

    inputs = [call.inputs for _, call in linked]
    builder.add(
        "shapes",
        len(linked),
        {
            "event": np.array([row for row, _ in linked], np.int64),
            "dims": codes(one.dims for one in inputs),
            "types": codes(one.types for one in inputs),
            "concrete": codes(one.concrete for one in inputs),
        },
    )


# Calls and kernels of files without correlation ids (ROCm builds of Kineto), linked by what else they share.
#
# Definitions: «Call and kernel». First the arrows from a call to its work, then an External id that exactly one launch
# holds. What is linked so is given one number, as if the file had had it.

_ARROWS = frozenset({"ac2g", "async_cpu_to_gpu", "async"})
"""Categories of the arrows from a call to its work, the latter two of 2020 and 2021."""
_CLOCK_NS = 2
"""By which a time and the same time as written elsewhere may differ."""

Column = np.ndarray[Any, np.dtype[np.int64]]
Lane = tuple[int, int]


class _External(msgspec.Struct, gc=False):
    now: Loose = msgspec.field(default=None, name="External id")
    before: Loose = msgspec.field(default=None, name="external id")


def correlate(columns: EventColumns, names: NamePool, path: Path) -> None:
    """Give calls and device events that belong together one number, where the file gives them none."""
    device, host = columns.whole("device_events"), columns.whole("host_events")
    if device is None or host is None:
        return
    runtime = host["category"] == Category.RUNTIME
    calls = np.flatnonzero(runtime & names.matching(kinds.asks_for_work)[host["name"]])
    missing = device["correlation"] == NA
    if (host["correlation"][calls] == NA).any():  # then the events' own numbers may be of no use either
        missing |= ~np.isin(device["correlation"], host["correlation"][calls])
    events = np.flatnonzero(missing)
    if not len(calls) or not len(events):
        return
    try:
        found = _Found(path)
    except InputError:
        return  # what of it can't be read was told when it was read first
    of_event = np.full(len(device["start"]), NA, np.int64)
    _by_arrows(found, columns, host, calls, device, of_event)
    _by_external_id(found, names, host, calls, device, events, of_event)
    linked = events[of_event[events] != NA]
    of_call = host["correlation"].copy()
    highest = max(int(of_call.max(initial=0)), int(device["correlation"].max(initial=0)), 0)
    unnumbered = np.unique(of_event[linked])
    unnumbered = unnumbered[of_call[unnumbered] == NA]
    of_call[unnumbered] = highest + 1 + np.arange(len(unnumbered))
    correlation = device["correlation"].copy()
    correlation[linked] = of_call[of_event[linked]]
    columns.replace("host_events", "correlation", of_call)
    columns.replace("device_events", "correlation", correlation)


class _Found:
    """What a second reading gives, in the order of the rows: External ids, and both ends of the arrows."""

    def __init__(self, path: Path) -> None:
        device: list[int] = []
        host: list[int] = []
        self.sets: list[bool] = []
        """Of device events, whether each is a memset."""
        self.tails: dict[int, tuple[Lane, int]] = {}
        self.heads: list[tuple[int, Lane, int]] = []
        decoded = Decoded(NamePool(), Numbered(), {})
        for events in Document(path, flows=True).events():
            self._arrows([e for e in events if isinstance(e, FlowStart | FlowEnd) and e.cat in _ARROWS])
            block = decoded.block(events)
            if block.device is not None:
                device += _external_ids(block.device)
                self.sets += (block.device.route == Work.SET).tolist()
            if block.host is not None:
                host += _external_ids(block.host)
        self.device, self.host = np.array(device, np.int64), np.array(host, np.int64)

    def _arrows(self, ends: Sequence[FlowStart | FlowEnd]) -> None:
        for end, at in zip(ends, to_ns([end.ts for end in ends]).tolist(), strict=True):
            number, lane = integer(end.id), (integer(end.pid), integer(end.tid))
            if number != NA and at != NA and isinstance(end, FlowStart):
                self.tails[number] = lane, at
            elif number != NA and at != NA:
                self.heads.append((number, lane, at))


def _external_ids(rows: Rows) -> list[int]:
    told = decode_arguments(rows.texts(range(len(rows))), _External)
    return [integer(one.before if one.now is None else one.now) for one in told]


def _by_arrows(
    found: _Found,
    columns: EventColumns,
    host: dict[str, Column],
    calls: Column,
    device: dict[str, Column],
    of_event: Column,
) -> None:
    """An arrow leads from a time within a call on its thread to the start of work on its stream."""
    if not found.heads:
        return
    keys = [(integer(pid), integer(tid)) for pid, tid in columns.threads]
    by_lane: defaultdict[Lane, list[int]] = defaultdict(list)
    for row in calls[np.argsort(host["start"][calls], kind="stable")].tolist():
        by_lane[keys[int(host["thread"][row])]].append(row)
    starts = {lane: host["start"][rows] for lane, rows in by_lane.items()}
    lanes = zip(device["device"].tolist(), device["stream"].tolist(), device["start"].tolist(), strict=True)
    at_start = {key: row for row, key in enumerate(lanes)}
    for number, lane, at in found.heads:
        tail = found.tails.get(number)
        if tail is None or tail[0] not in by_lane:
            continue
        place = int(np.searchsorted(starts[tail[0]], tail[1] + _CLOCK_NS, "right")) - 1
        call = by_lane[tail[0]][place] if place >= 0 else NA
        near = sorted(range(-_CLOCK_NS, _CLOCK_NS + 1), key=abs)
        event = next((row for off in near if (row := at_start.get((*lane, at + off))) is not None), None)
        if event is not None and call != NA and tail[1] <= host["end"][call] + _CLOCK_NS:
            of_event[event] = call


def _by_external_id(
    found: _Found,
    names: NamePool,
    host: dict[str, Column],
    calls: Column,
    device: dict[str, Column],
    events: Column,
    of_event: Column,
) -> None:
    """Operators pass their id on to all their calls: it tells whose work an event is only where one launch (for copies
    and memsets one such call) holds it."""
    if len(found.device) != len(device["start"]) or len(found.host) != len(host["start"]):
        return  # the file changed while it was read
    launching, setting = (
        names.matching(says)[host["name"][calls]]
        for says in (kinds.is_launch_call, lambda name: "set" in name.lower() or "fill" in name.lower())
    )
    kernel = device["kind"] != Kind.MEMORY
    memset = np.array(found.sets, np.bool_)
    groups: tuple[tuple[Mask, Mask], ...] = (
        (launching, kernel),
        (~launching & setting, memset),
        (~launching & ~setting, ~kernel & ~memset),
    )
    for of_calls, of_device in groups:
        own = calls[of_calls & (found.host[calls] != NA)]
        ids, first, counts = np.unique(found.host[own], return_index=True, return_counts=True)
        single = dict(zip(ids[counts == 1].tolist(), own[first[counts == 1]].tolist(), strict=True))
        open_events = events[of_device[events] & (of_event[events] == NA)]
        for event, number in zip(open_events.tolist(), found.device[open_events].tolist(), strict=True):
            call = single.get(number)
            if call is not None and host["start"][call] <= device["start"][event]:
                of_event[event] = call


_RANK_IN_HEADER = when_used.pattern(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*?"rank"\s*:\s*(\d+)')
_KINETO_HEAD = when_used.pattern(rb'"(schemaVersion|traceEvents|deviceProperties|baseTimeNanoseconds)"\s*:')
_HEAD, _LONG_HEAD = 1 << 16, 8 << 20
_MERGED = when_used.pattern(rb'"pid"\s*:\s*"\[|"pid_raw"\s*:')
_CHROME_EVENT = when_used.pattern(rb'\{\s*"(ph|name|cat|ts|pid|tid|args|dur)"\s*:')


class KinetoSource:
    """Reads what `torch.profiler` exports as Chrome trace, plain or gzipped."""

    name = "kineto"
    files = Files(Role.TIMELINE, (".json", ".json.gz"), unmistakable=(".json.gz",), keepable=True)

    def sniff(self, path: Path, head: bytes) -> bool:
        start = head.lstrip()
        if start.startswith(b"["):
            # py-spy's threads begin with a process id as well.
            chrome = _CHROME_EVENT.match(start[1:].lstrip()) is not None and b'"owns_gil"' not in head
        elif start.startswith(b"{"):
            # What a user put into the metadata can fill the beginning.
            chrome = _KINETO_HEAD.search(head) is not None or (
                len(head) >= _HEAD and _KINETO_HEAD.search(stream.head(path, _LONG_HEAD)) is not None
            )
        else:
            chrome = False
        return chrome and not marks_of(path).of_another

    def peek_rank(self, path: Path, head: bytes) -> int | None:
        if _MERGED.search(head):
            return None  # several, and the header is that of the first
        match = _RANK_IN_HEADER.search(head)
        return int(match[1]) if match else rank_in_name(path)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        columns = EventColumns(builder)
        document = Document(path, options.advance, scanner=columns.scanner)
        for events in document.events():
            columns.take(events)
        losses = document.losses
        if losses.truncated and not options.partial:
            raise InputError(losses.truncated, hint="copy it again, or pass --partial to analyse what is left")
        if not losses.events:
            raise InputError(f"{path}: contains no events", hint="was the profiler stopped before it was exported?")
        if not columns.chunks and not columns.bad_times and not (marks := marks_of(path)).kineto:
            raise marks.refusal()
        if len(working := processes(columns)) > 1:
            raise SeveralRanks(_apart(path, working))
        without_device_calls(columns)
        check_one_recording(columns, builder.names, path)
        report_losses(builder, losses, path)
        link(columns, builder, options.linked)
        correlate(columns, builder.names, path)
        if columns.has_short_nodes:
            columns.join(flows_of(path))
        cut_off = bool(losses.truncated)
        run = RecordedRun(builder, columns, path, document.header, named_rank=options.first_rank, cut_off=cut_off)
        run.finish(losses.events)


def _apart(path: Path, working: set[Any]) -> list[TraceBuilder]:
    """A builder for each rank of a merged file, each filled as if the rank had a file of its own."""
    apart = Apart(path, working)
    ranks = apart.read()
    for rank, key in ranks.items():
        header, cut_off = apart.header_of(rank), bool(apart.losses.truncated)
        run = RecordedRun(apart.builders[key], apart.columns[key], path, header, named_rank=rank, cut_off=cut_off)
        run.finish(apart.events[key])
    builders = [apart.builders[key] for key in ranks.values()]
    report_losses(builders[0], apart.losses, path)
    return builders


def report_losses(builder: TraceBuilder, losses: Losses, path: Path) -> None:
    """Report to the builder what the JSON reader could not read of `path`."""
    builder.problem(reading.TRUNCATED, int(bool(losses.truncated)), file=path.name, what="events")
    builder.problem(reading.UNDECODABLE_EVENT, losses.undecodable, file=path.name)
    builder.problem(reading.BROKEN_METADATA, losses.broken_metadata, file=path.name)
    builder.problem(reading.INVALID_UTF8, losses.invalid_utf8, file=path.name)


SOURCE = KinetoSource()
