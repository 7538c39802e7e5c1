"""What the host did in the parts of a recording that are not steady: compiling, loading, first use, a checkpoint.

Only while the device was idle, for that is what it costs. Compilation and loading show by name, first use by a
runtime call of a millisecond or more that waits for no work of the device (lazy loading of a module, the context,
the first allocation); elsewhere the innermost event that covers most of the idle time is named.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope.analyzers.base.lanes import RECORDING, HostWork, LaneView
from gpuscope.analyzers.base.step_roles import Role
from gpuscope.analyzers.device_time.idleness.host_activity import host_activity
from gpuscope.analyzers.device_time.idleness.launching_threads import blocking_calls, most_launching
from gpuscope.analyzers.host_time.blocking_sites import plain
from gpuscope.analyzers.host_time.judged_windows import judged
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.table import Mask, Times, rows_of_rank, rows_where
from gpuscope.trace.intervals import Spans, clip, intersect
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace

SLOW_CALL = 1_000_000
"""ns from which a runtime call that waits for nothing did something that is done once."""
NAMED = 3
"""Kinds of work named per part."""
_ONCE = (Role.SETUP, Role.WARMUP, Role.OUTLIER)


def work_done_once(trace: Trace, view: LaneView) -> Mapping[int, tuple[HostWork, ...]]:
    """By place among the lane's steps (`RECORDING` where too few are steady), the work that took longest."""
    parts = {
        place: (step.start, step.end)
        for place, (step, role) in enumerate(zip(view.steps, view.roles, strict=True))
        if role in _ONCE
    }
    whole = judged(view)
    if not whole.steady:
        parts[RECORDING] = int(whole.start[0]), int(whole.end[-1])
    low, high = rows_of_rank(trace["host_events"], view.lane.rank)
    if not parts or low == high:
        return {}
    first_use = _first_use(trace, view)
    thread = most_launching(trace, view)
    found: dict[int, tuple[HostWork, ...]] = {}
    for place, (start, end) in parts.items():
        idle = clip(view.parts.idle, start, end)
        found[place] = _largest(trace, first_use, idle) or _covering(trace, view, thread, idle)
    return found


def _first_use(trace: Trace, view: LaneView) -> Times:
    """Rows of host events that compile, load, or use something for the first time."""
    host = trace["host_events"]
    compiles = trace.names.matching(kinds.is_compilation)

    def may_be(part: slice) -> Mask:
        slow = (host["category"][part] == Category.RUNTIME) & (host["end"][part] - host["start"][part] >= SLOW_CALL)
        return np.asarray(slow | compiles[host["name"][part]])

    rows = rows_where(*rows_of_rank(host, view.lane.rank), may_be)
    return rows[~np.isin(rows, blocking_calls(trace, view)) | compiles[host["name"][rows]]]


def _largest(trace: Trace, rows: Times, idle: Spans) -> tuple[HostWork, ...]:
    """The names under which most idle time lies, each instant under the innermost of the rows on its thread."""
    host = trace["host_events"]
    wanted = np.zeros(len(host), np.bool_)
    wanted[rows] = True
    spent: dict[str, int] = {}
    for thread in distinct_values(host["thread"][rows]).tolist():
        own = rows[host["thread"][rows] == thread]
        bounds = distinct_values(np.concatenate((host["start"][own], host["end"][own])))
        pieces = intersect(Spans(bounds[:-1], bounds[1:]), idle)
        if not len(pieces.start):
            continue
        middle = (pieces.start + pieces.end) // 2
        inner = innermost(host, wanted, np.full(len(middle), thread, np.int64), middle)
        for row, length in zip(inner.tolist(), (pieces.end - pieces.start).tolist(), strict=True):
            if row != NA:
                name = plain(trace.names[int(host["name"][row])])
                spent[name] = spent.get(name, 0) + length
    longest = sorted(spent.items(), key=lambda item: -item[1])[:NAMED]
    return tuple(HostWork(name, length, first_use=True) for name, length in longest)


def _covering(trace: Trace, view: LaneView, thread: int, idle: Spans) -> tuple[HostWork, ...]:
    """The innermost event that covers most of the longest idle stretch, where nothing is done for the first time: on
    the thread that launches what ends the stretch, else on `thread`."""
    if not len(idle.start):
        return ()
    place = int(np.argmax(idle.end - idle.start))
    start, end = int(idle.start[place]), int(idle.end[place])
    device = trace["device_events"]
    behind = view.rows[int(np.searchsorted(device["start"][view.rows], end)) :][:1]
    launch = device.at("launch", behind)
    ending = int(trace["host_events"]["thread"][launch[0]]) if len(launch) and launch[0] != NA else thread
    found = host_activity(trace, view, ending, start, end)
    return (HostWork(plain(found.name), found.covered or end - start, first_use=False),) if found.name else ()
