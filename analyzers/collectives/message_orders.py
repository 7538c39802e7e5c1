"""In what order each rank sends, receives and computes within a step: whether it may be a pipeline's stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import Need
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.cpu_run.blocking_waits import is_message_op
from gpuscope.trace.intervals import Spans, clip, subtract, union
from gpuscope.trace.naming.kernel_categories import ENGINE
from gpuscope.trace.naming.kinds import POINT_TO_POINT
from gpuscope.trace.schema import NA, SCHEMAS, Category, MessageOrder
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.trace import Trace

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


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table `message_orders`."""
    result = Result(ANALYZER.name)
    rows = [row for view in lanes for row in _of_rank(trace, view)]
    if rows:
        rank, group, order, steps = (list(column) for column in zip(*rows, strict=True))
        columns = {"rank": rank, "group": group, "order": order, "steps": steps}
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


ANALYZER = FileAnalyzer(
    "message_orders", run, (Need("collectives", "record collectives: a job on one device has none", optional=True),)
)
