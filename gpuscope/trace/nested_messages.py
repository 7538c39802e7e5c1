"""Sends and receives inside a collective's or a barrier's own call: they are part of it, no messages of the program.

gloo's monitored barrier is made of messages, and `TORCH_DISTRIBUTED_DEBUG=DETAIL` puts one, with two gathers of what
each rank is about to call, in front of every collective. NCCL runs an all-to-all by its SendRecv kernel.
"""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask, Table, Times, joined
from gpuscope.trace.cpu_run.blocking_waits import is_message_op
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category

_CALL = "c10d::"
_GATHERS = 2
"""DETAIL gathers the sizes of what the ranks call, then that itself (torch's ProcessGroupWrapper.cpp)."""


def is_debug_check(name: str) -> bool:
    """Whether a call whose row is a barrier made of messages is another one than a barrier: DETAIL checks it first."""
    return name.startswith(_CALL) and not name.startswith((f"{_CALL}barrier", f"{_CALL}monitored_barrier"))


def as_barriers(data: dict[str, Table], names: NamePool, host_is_device: set[int]) -> None:
    """One barrier for each call that is made of messages, in `collectives`; its messages and gathers go.

    Such a call returns only when all ranks have come: on a rank without a device (`host_is_device`) its thread is
    blocked meanwhile, and its call stands for the communication.
    """
    table, host = data["collectives"], data["host_events"]
    rows = np.flatnonzero(table["host_event"] != NA)
    rows = rows[names.matching(kinds.POINT_TO_POINT.__contains__)[table["op"][rows]]]
    if not len(rows):
        return
    messages = table["host_event"][rows]
    calls = _around(host, names, host["thread"][messages], host["start"][messages])
    rows, calls = rows[calls != NA], calls[calls != NA]
    if not len(rows):
        return
    inside = np.union1d(rows, _gathers(table, host, names, calls))
    kept: Mask = np.ones(len(table), np.bool_)
    kept[inside] = False
    _, first = np.unique(calls, return_index=True)
    whole = table.take(rows[first])
    group = {name: whole[name] for name in ("rank", "group", "group_description", "group_size", "group_ranks")}
    values = {**group, "event": NA, "host_event": calls[first], "op": names.code("barrier")}
    made = Table.build(table.schema, len(first), values)
    data["collectives"] = joined([table.take(np.flatnonzero(kept)), made])
    category = host["category"].copy()
    category[table["host_event"][inside]] = Category.ANNOTATION
    on_host = np.isin(host["rank"][calls], sorted(host_is_device))
    category[calls[on_host]] = Category.COMMUNICATION
    data["host_events"] = Table(host.schema, {**host.columns, "category": category})


def named_by_calls(data: dict[str, Table], names: NamePool) -> Table:
    """`collectives`, with the operation of the collective call that launched a kernel for sends and receives."""
    table, device, host = data["collectives"], data["device_events"], data["host_events"]
    message = names.matching(kinds.POINT_TO_POINT.__contains__)[table["op"]]
    rows = np.flatnonzero(message & (table["event"] != NA))
    rows = rows[device.at("launch", table["event"][rows]) != NA]
    if not len(rows):
        return table
    launch = device.at("launch", table["event"][rows])
    calls = _around(host, names, host["thread"][launch], host["start"][launch])
    rows, calls = rows[calls != NA], calls[calls != NA]
    op = table["op"].copy()
    for row, code in zip(rows.tolist(), host["name"][calls].tolist(), strict=True):
        found = kinds.collective_op(names[code].removeprefix(_CALL))
        op[row] = names.code(found) if found else op[row]
    return Table(table.schema, {**table.columns, "op": op})


def _around(host: Table, names: NamePool, thread: Times, at: Times) -> Times:
    """The call of a collective that is under way on each thread at that instant; NA where there is none, or it is a
    send or a receive itself."""
    called = names.matching(lambda name: name.startswith(_CALL))
    issues = names.matching(is_message_op)
    found = innermost(host, called[host["name"]] & (host["category"] == Category.OP), thread, at)
    return np.where((found == NA) | issues[host["name"][np.maximum(found, 0)]], NA, found)


def _gathers(table: Table, host: Table, names: NamePool, calls: Times) -> Times:
    """Rows of the gathers by which DETAIL compares what the ranks call: they begin and end within the call."""
    gathers = np.flatnonzero((table["op"] == names.find("all_gather")) & (table["host_event"] != NA))
    gathers = gathers[np.argsort(host["start"][table["host_event"][gathers]], kind="stable")]
    events = table["host_event"][gathers]
    start, end, rank = host["start"][events], host["end"][events], host["rank"][events]
    found = [gathers[:0]]
    for call in distinct_values(calls).tolist():
        if is_debug_check(names[int(host["name"][call])]) or names[int(host["name"][call])].startswith("c10d::barrier"):
            low, high = np.searchsorted(start, [host["start"][call], host["end"][call]])
            own = np.arange(low, high)
            own = own[(rank[own] == host["rank"][call]) & (end[own] <= host["end"][call])]
            found.append(gathers[own[:_GATHERS]])
    return np.concatenate(found)
