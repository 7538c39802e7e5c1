"""What each rank did before each of its collectives: the table `activity`, all that stays of a file's events.

The time between a collective's start and what its rank communicated before is cut where device work ends: busy
time carries the name of the operation, idle time that of what the launching thread did meanwhile, both with the
phase of the step. Of each collective only the longest operations keep their names, so the table grows with the
collectives of a run and not with its events.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Need, Result
from gpuscope.analyzers.base.evidence import Phases, main_thread
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.trace.intervals import Spans, clip, intersect, subtract, union
from gpuscope.trace.kernel_categories import ENGINE
from gpuscope.trace.kinds import POINT_TO_POINT
from gpuscope.trace.launch_links import innermost, is_message_op
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, SCHEMAS, Category, Kind, MessageOrder
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.table import Array, Mask, Table, Times, distinct, distinct_values, places
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# In what order each rank sends, receives and computes within a step: whether it may be a pipeline's stage.

_BYTES, _INTEGERS = ("unsigned char", "byte", "uint8"), ("long int", "long", "int64")
INTEGER = 8
"""Bytes of the integer that says how many bytes an object has (torch.distributed's `_object_to_tensor`)."""
FORWARD_SHARE = 0.05
"""What a stage computes between a receive and its first send is at least this part of an even share: of the step's
compute by its messages. A forward pass is about a third of one; packing a border for a neighbour far less."""


class _Messages(NamedTuple):
    """A rank's messages of one group, by when they begin; columns of one length."""

    sends: Mask
    start: Times
    """When it begins, where it was carried out."""
    end: Times
    issued: Times
    """When the host called for it."""


def message_orders_run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `message_orders`."""
    result = Result(MESSAGE_ORDERS_ANALYZER.name)
    rows = [row for view in lanes for row in _of_rank(trace, view)]
    if rows:
        rank, group, order, steps = (list(column) for column in zip(*rows, strict=True))
        columns = {"rank": rank, "group": group, "first_send": order, "steps": steps}
        schema = SCHEMAS["message_orders"]
        result.tables[schema.name] = Table.build(schema, len(rows), columns)
    return result


def _of_rank(trace: Trace, view: LaneView) -> Iterator[tuple[int, int, int, int]]:
    """(rank, group, order of most steps, in how many) of each group in which the rank sends or receives."""
    table, names = trace["collectives"], trace.names
    message = names.matching(POINT_TO_POINT.__contains__)[table["op"]]
    own = np.flatnonzero(message & (table["rank"] == view.lane.rank) & (table["start"] != NA))
    computing, backward, windows = _computing(trace, view), _backward(trace, view.lane.rank), _windows(trace, view)
    objects = _of_objects(trace, own)
    for group in distinct_values(table["group"][own]).tolist():
        mine = table["group"][own] == group
        if not (mine & ~objects).any():
            yield view.lane.rank, group, int(MessageOrder.SENDS_FIRST), len(windows)
            continue
        messages = _messages(trace, view, own[mine & ~objects])
        counted = Counter(
            order for window in windows if (order := _order(messages, computing, backward, window)) is not None
        )
        if counted:
            order, steps = max(counted.items(), key=lambda item: (item[1], -item[0]))
            yield view.lane.rank, group, int(order), steps


def _windows(trace: Trace, view: LaneView) -> list[tuple[int, int]]:
    """The host's steps; the steps of the kernels, or the recording, where it names none."""
    table = trace["steps"]
    own = table.take(np.flatnonzero(table["rank"] == view.lane.rank))
    if len(own) and view.basis != KERNEL_SEQUENCE:
        return list(zip(own["start"].tolist(), own["end"].tolist(), strict=True))
    return [(step.start, step.end) for step in view.steps if step.step != NA] or [view.window]


def _computing(trace: Trace, view: LaneView) -> Spans:
    """When the rank computes; calls that hand a message over are operators of its thread, too, and no computing."""
    host = trace["host_events"]
    calls = np.flatnonzero((host["rank"] == view.lane.rank) & trace.names.matching(is_message_op)[host["name"]])
    if view.lane.device != NA or not len(calls):
        return view.parts.compute
    return subtract(view.parts.compute, union(host["start"][calls], host["end"][calls]))


def _of_objects(trace: Trace, rows: Times) -> Mask:
    """Which messages carry Python objects (`send_object_list`): bytes, and before them how many, a single integer."""
    table, names = trace["collectives"], trace.names
    item = names.matching(lambda name: name.lower() in _BYTES)
    integer = names.matching(lambda name: name.lower() in _INTEGERS)
    dtype = table["dtype"][rows]
    known = dtype != NO_NAME
    as_bytes = known & item[np.maximum(dtype, 0)]
    counts = known & integer[np.maximum(dtype, 0)] & (table["bytes"][rows] == INTEGER)
    follows = np.append(np.zeros(min(len(rows), 1), np.bool_), counts[:-1]) & as_bytes
    return np.asarray(follows | np.append(follows[1:], np.zeros(min(len(rows), 1), np.bool_)), np.bool_)


def _messages(trace: Trace, view: LaneView, rows: Times) -> _Messages:
    """The messages behind rows of `collectives`. Where one kernel both sends and receives, the calls tell which came
    first; their kernels' times are then those of the calls."""
    table, host, device, names = trace["collectives"], trace["host_events"], trace["device_events"], trace.names
    single = rows[table["op"][rows] != names.find("send_recv")]
    if len(single) == len(rows):
        event, caller = table["event"][single], table["host_event"][single].copy()
        if len(device):
            caller = np.where(event != NA, device.at("launch", np.maximum(event, 0)), caller)
        start = table["start"][single]
        issued = np.where(caller == NA, start, host["start"][np.maximum(caller, 0)]) if len(host) else start
        found = _Messages(table["op"][single] == names.find("send"), start, table["end"][single], issued)
    else:
        mine = (host["rank"] == view.lane.rank) & (host["category"] == Category.OP)
        called = np.flatnonzero(mine & names.matching(is_message_op)[host["name"]])
        sends = names.matching(lambda name: name.startswith("c10d::send"))[host["name"][called]]
        found = _Messages(sends, host["start"][called], host["end"][called], host["start"][called])
    order = np.argsort(found.start, kind="stable")
    return _Messages(found.sends[order], found.start[order], found.end[order], found.issued[order])


def _backward(trace: Trace, rank: int) -> Times:
    """When autograd's nodes of a rank begin on its host, ascending; of a digest, its backward phases."""
    host, names = trace["host_events"], trace.names
    nodes = names.matching(lambda name: name.startswith(ENGINE) or name == "backward")
    own = (host["rank"] == rank) & (host["category"] == Category.OP) & nodes[host["name"]]
    return np.sort(host["start"][own])


def _order(messages: _Messages, computing: Spans, backward: Times, window: tuple[int, int]) -> MessageOrder | None:
    """The order within a step; None of one without messages."""
    inside = np.flatnonzero((messages.issued >= window[0]) & (messages.issued < window[1]))
    if not len(inside):
        return None
    sends, start, end = (column[inside] for column in (messages.sends, messages.start, messages.end))
    if sends[0]:
        first = messages.issued[inside[0]]
        low, sent, high = np.searchsorted(backward, [window[0], first, window[1]])
        return MessageOrder.SENDS_GRADIENTS if low < sent == high else MessageOrder.SENDS_FIRST
    if not sends.any():
        return MessageOrder.NEEDS_INPUT
    sent = int(start[np.argmax(sends)])
    received = int(end[0])
    between = clip(computing, received, sent).total
    share = clip(computing, *window).total / len(inside)
    computes = between > 0 and between >= FORWARD_SHARE * share
    return MessageOrder.NEEDS_INPUT if computes else MessageOrder.SENDS_FIRST


MESSAGE_ORDERS_ANALYZER = FileAnalyzer(
    "message_orders",
    message_orders_run,
    (Need("collectives", "record collectives: a job on one device has none", optional=True),),
)


KEPT = 4
"""Operations per collective that keep their names; the others count by phase alone."""
CUT_AT_ONCE = 1 << 16
"""Spans of a lane, on average, that are looked at with some of its collectives: what is made of them needs room."""
IDLE = "idle"
"""Operation of idle time in which nothing was recorded on the launching thread."""


@dataclass(frozen=True)
class _Cut:
    """A lane cut where its device work ends: disjoint spans in order, each with a phase and an operation (codes)."""

    spans: Spans
    phase: Array
    operation: Array


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `activity` of a file's lanes."""
    result = Result(ACTIVITY_ANALYZER.name)
    rows = [_of_lane(trace, view) for view in lanes]
    result.tables["activity"] = (
        Table(SCHEMAS["activity"], {name: np.concatenate([row[name] for row in rows]) for name in rows[0].columns})
        if rows
        else Table.empty(SCHEMAS["activity"])
    )
    return result


def _of_lane(trace: Trace, view: LaneView) -> Table:
    table = trace["collectives"]
    own = np.flatnonzero(table["rank"] == view.lane.rank)
    event = table["event"][own]
    if view.lane.device != NA:
        own = own[(event != NA) & (trace["device_events"]["device"][np.maximum(event, 0)] == view.lane.device)]
    since = lead(table)
    known = own[since.since[own] != NA]
    known = known[table["start"][known] > since.since[known]]
    if not len(known):
        return Table.empty(SCHEMAS["activity"])
    cut = _cut(trace, view)
    # Since the collective before began or ended: the stretches of one lane's collectives are disjoint.
    windows = Spans(since.since[known], table["start"][known])
    size = -(-len(known) // (1 + len(cut.phase) // CUT_AT_ONCE))
    pieces = (slice(low, low + size) for low in range(0, len(known), size))
    found = [_within(cut, known[own], Spans(windows.start[own], windows.end[own])) for own in pieces]
    collective, phase, operation, spent = (np.concatenate(column) for column in zip(*found, strict=True))
    values = {"rank": view.lane.rank, "collective": collective, "phase": phase, "operation": operation, "dur": spent}
    return Table.build(SCHEMAS["activity"], len(collective), values)


def _within(cut: _Cut, collective: Times, windows: Spans) -> tuple[Times, Array, Array, Times]:
    """What a lane did in the window of each collective."""
    parts = intersect(windows, clip(cut.spans, int(windows.start[0]), int(windows.end[-1])))
    which = places(windows.start, parts.start, "right") - 1
    of_cut = places(cut.spans.start, parts.start, "right") - 1
    return _summed(collective[which], cut.phase[of_cut], cut.operation[of_cut], parts.end - parts.start)


def _summed(collective: Times, phase: Array, operation: Array, spent: Times) -> tuple[Times, Array, Array, Times]:
    """Time by collective, phase and operation; all but the `KEPT` longest operations of a collective lose theirs."""
    collective, phase, operation, spent = _added(collective, phase, operation, spent)
    order = np.lexsort((-spent, collective))
    first = places(collective[order], collective[order])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) - first
    return _added(collective, phase, np.where(place < KEPT, operation, NO_NAME), spent)


def _added(collective: Times, phase: Array, operation: Array, spent: Times) -> tuple[Times, Array, Array, Times]:
    room = int(operation.max(initial=NO_NAME)) + 2
    labels, label = distinct((phase.astype(np.int64) + 1) * room + operation + 1)
    keys, which = distinct(collective * (len(labels) + 1) + label)
    label = labels[keys % (len(labels) + 1)]
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, which, spent)
    return keys // (len(labels) + 1), label // room - 1, label % room - 1, total


def _cut(trace: Trace, view: LaneView) -> _Cut:
    """Busy and idle spans of a lane. Collectives do no work of their own here, but end the idle time before them."""
    device, host = trace["device_events"], trace["host_events"]
    rows = view.rows
    start = device["start"][rows]
    end = np.where(device["kind"][rows] == Kind.COMMUNICATION, start, device["end"][rows])
    reach = np.maximum.accumulate(end)
    before = np.concatenate((start[:1], reach[:-1]))
    busy, idle = reach > np.maximum(before, start), start > before
    begin = np.concatenate((np.maximum(before, start)[busy], before[idle]))
    until = np.concatenate((reach[busy], start[idle]))
    gap = (before[idle] + start[idle]) // 2
    del start, end, reach, before
    launch = device.at("launch", rows)
    main = main_thread(host, view.lane.rank, launch)
    thread = np.where(launch == NA, np.int64(main), host["thread"][np.maximum(launch, 0)] if len(host) else main)
    launched = np.where(launch == NA, NA, host["start"][np.maximum(launch, 0)] if len(host) else NA)
    del launch
    phases = Phases(trace, view.lane.rank, main)
    code = np.concatenate((phases.at(thread[busy], launched[busy]), phases.at(thread[idle], gap))).astype(np.int32)
    del launched
    doing = _doing(trace, view.lane.rank, thread[idle], gap)
    name = np.concatenate((device["name"][rows][busy], doing))
    order = np.argsort(begin, kind="stable")
    return _Cut(Spans(begin[order], until[order]), code[order], name[order])


def _doing(trace: Trace, rank: int, thread: Times, at: Times) -> Times:
    """What the threads did at those instants: codes of the innermost host events, steps apart."""
    host, names = trace["host_events"], trace.names
    steps = names.matching(lambda name: name.startswith("ProfilerStep"))
    rows = innermost(host, (host["rank"] == rank) & ~steps[host["name"]], thread, at) if len(host) else at * 0 + NA
    idle = names.code(IDLE)
    return np.where(rows == NA, idle, host["name"][np.maximum(rows, 0)] if len(host) else idle)


ACTIVITY_ANALYZER = FileAnalyzer(
    "activity",
    run,
    (Need("collectives", "a job on one device has none; else record NCCL's calls", optional=True),),
    cost=3,
    large=True,
)


@dataclass(frozen=True)
class Lead:
    """Per row of `collectives`: the last instant before its start at which its rank began or ended another."""

    since: Times
    """That instant, on the rank's own clock; NA for a rank's first collective."""
    row: Times
    """The other collective, or NA."""
    ended: Mask
    """Whether it ended there; else it began there."""


def lead(table: Table) -> Lead:
    """The lead of every row of `collectives`, which are ordered by rank and start."""
    count = len(table)
    start, end, rank = table["start"], table["end"], table["rank"]
    begun = np.arange(count) - 1
    begun[np.concatenate((np.ones(min(count, 1), np.bool_), rank[1:] != rank[:-1]))] = NA
    done = _last_ended(rank, start, end)
    begun_at = np.where(begun == NA, NA, start[np.maximum(begun, 0)])
    done_at = np.where(done == NA, NA, end[np.maximum(done, 0)])
    ended = (done != NA) & (done_at >= begun_at)
    return Lead(np.where(ended, done_at, begun_at), np.where(ended, done, begun), ended)


def _last_ended(rank: Times, start: Times, end: Times) -> Times:
    """For each row the row of its rank that ended last among those that ended before it began, or NA."""
    found = np.full(len(rank), NA, np.int64)
    bounds = np.concatenate(([0], np.flatnonzero(np.diff(rank)) + 1, [len(rank)]))
    for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        order = np.argsort(end[low:high], kind="stable")
        place = places(end[low:high][order], start[low:high], "right") - 1
        own = low + order[np.maximum(place, 0)]
        # One that took no time ends where it began: it is not its own predecessor.
        found[low:high] = np.where((place >= 0) & (own < np.arange(low, high)), own, NA)
    return found


ANALYZERS = (ACTIVITY_ANALYZER, MESSAGE_ORDERS_ANALYZER)
