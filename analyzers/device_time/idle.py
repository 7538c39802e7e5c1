"""Why a device was idle: judged instant by instant on the thread that launches what ends the gap.

Definitions: «Stalls: class and cause». Loader, garbage collection, allocator and file or network calls
win wherever they cover the instant; what is left is `sync` where a blocking call let the queue run dry,
else `launch`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.analyzers.frame.analyzer import Attributed, FileAnalyzer, Result, attribute, longest, only_present
from gpuscope.analyzers.frame.causes import UNATTRIBUTED
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import DEVICE_EVENTS
from gpuscope.report.schema.document import Evidence
from gpuscope.trace.columns.table import Mask, Table, Times
from gpuscope.trace.intervals import EMPTY, Spans, clip, intersect, join, subtract, union
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace

EXPLAINING = (Category.OP, Category.RUNTIME, Category.PYTHON, Category.OS)
"""Host events dense enough that time without any of them is Python between calls."""

COVERING: tuple[tuple[str, tuple[tuple[Category, ...], Callable[[str], bool]]], ...] = (
    ("input", ((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_loader)),
    ("gc", ((Category.OP, Category.ANNOTATION, Category.PYTHON), kinds.is_garbage_collection)),
    ("allocator", ((Category.RUNTIME,), kinds.is_allocator_call)),
    ("host_other", ((Category.ANNOTATION, Category.PYTHON), kinds.is_host_other)),
    (
        "host_other",
        (
            (Category.OS,),
            lambda name: kinds.is_file_or_network_call(name) or kinds.is_lock_or_sleep_call(name),
        ),
    ),
)
"""Causes that win wherever their host events cover an idle instant, the first first."""


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of a lane: what ends each, when that was launched and by which thread."""

    start: Times
    end: Times
    event: Times
    """Row of the device event that ends the gap, or NA at the window's end."""
    launch: Times
    """Row of its launch, or NA."""
    thread: Times
    """Thread that launches it; where that is not told, the one that launches most."""

    def __len__(self) -> int:
        return len(self.start)


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """Attribute the idle time of every lane."""
    result = Result(ANALYZER.name)
    for view in lanes:
        result.causes[view.key] = _attribute(trace, view)
    return result


def _attribute(trace: Trace, view: LaneView) -> dict[str, Attributed]:
    host = trace["host_events"]
    idle = view.parts.idle
    rows = np.flatnonzero(host["rank"] == view.lane.rank)
    explaining = rows[np.isin(host["category"][rows], EXPLAINING)]
    if not len(explaining):
        return only_present({UNATTRIBUTED: attribute(idle, view, _untold(view, idle))})
    gaps = find_gaps(trace, view, rows)
    found: dict[str, Spans] = {}
    left = idle
    for cause, (categories, predicate) in COVERING:
        picked = rows[np.isin(host["category"][rows], categories) & trace.names.matching(predicate)[host["name"][rows]]]
        covered = intersect(left, _on_launching_thread(host, picked, gaps)) if len(picked) else EMPTY
        if cause == "host_other" and len(covered.start):
            # A lock inside a runtime call is that call waiting, not the program.
            covered = subtract(covered, _runtime(host, rows, gaps))
        found[cause] = join(found.get(cause, EMPTY), covered)
        left = subtract(left, covered)
    # What a recorded launch ends is explained to its end, also behind the last call of the host.
    last = np.concatenate((host["end"][explaining], gaps.end[gaps.launch != NA]))
    recorded = (int(host["start"][explaining].min()), int(last.max()))
    inside = clip(left, *recorded)
    found[UNATTRIBUTED] = subtract(left, inside)
    dry = _ran_dry(trace, view, gaps, rows)
    own = np.searchsorted(gaps.start, inside.start, "right") - 1
    found["sync"] = Spans(inside.start[dry[own]], inside.end[dry[own]])
    found["launch"] = Spans(inside.start[~dry[own]], inside.end[~dry[own]])
    return only_present(
        {cause: attribute(spans, view, _evidence(trace, view, spans, gaps)) for cause, spans in found.items()}
    )


def find_gaps(trace: Trace, view: LaneView, host_rows: Times) -> Gaps:
    """The idle gaps of a lane's window, each with what ends it."""
    device, host = trace["device_events"], trace["host_events"]
    idle, events = view.parts.idle, view.rows
    position = np.searchsorted(device["start"][events], idle.end, "left")
    ended = position < len(events)
    event = np.where(ended, events[np.minimum(position, len(events) - 1)], NA)
    launch = np.where(ended, device["launch"][np.where(ended, event, 0)], NA)
    launches = device["launch"][events]
    launches = launches[launches != NA]
    main = _most_frequent(host["thread"][launches if len(launches) else host_rows])
    thread = np.where(launch == NA, main, host["thread"][np.where(launch == NA, 0, launch)])
    return Gaps(idle.start, idle.end, event, launch, thread)


def _most_frequent(values: Times) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)])


def _on_launching_thread(host: Table, picked: Times, gaps: Gaps) -> Spans:
    """Where the picked host events cover a gap on that gap's launching thread."""
    parts: list[Spans] = []
    for thread in np.unique(gaps.thread).tolist():
        own = gaps.thread == thread
        events = picked[host["thread"][picked] == thread]
        if len(events):
            covering = union(host["start"][events], host["end"][events])
            parts.append(intersect(Spans(gaps.start[own], gaps.end[own]), covering))
    return join(*parts) if parts else EMPTY


def _runtime(host: Table, rows: Times, gaps: Gaps) -> Spans:
    calls = rows[host["category"][rows] == Category.RUNTIME]
    return _on_launching_thread(host, calls, gaps)


def blocking_returns(trace: Trace, view: LaneView, rows: Times) -> Times:
    """Rows of the host calls that returned only when device work was done, ordered by their end."""
    host, device = trace["host_events"], trace["device_events"]
    calls = rows[host["category"][rows] == Category.RUNTIME]
    named = calls[trace.names.matching(kinds.is_blocking_call)[host["name"][calls]]]
    # An «asynchronous» copy from or to pageable memory blocks: its call outlasts the copy.
    copies = view.rows[device.known("copy_kind")[view.rows] & (device["launch"][view.rows] != NA)]
    crossing = trace.names.matching(lambda kind: kind.startswith(("HtoD", "DtoH")))[device["copy_kind"][copies]]
    copies = copies[crossing]
    outlasted = copies[host["end"][device["launch"][copies]] >= device["end"][copies]]
    found = np.unique(np.concatenate((named, device["launch"][outlasted])))
    return found[np.argsort(host["end"][found], kind="stable")]


def _ran_dry(trace: Trace, view: LaneView, gaps: Gaps, rows: Times) -> Mask:
    """Per gap: is what ends it the first launch since a blocking call returned with the queue empty?"""
    host, device = trace["host_events"], trace["device_events"]
    blocking = blocking_returns(trace, view, rows)
    if not len(blocking) or not len(gaps):
        return np.zeros(len(gaps), np.bool_)
    launches = device["launch"][view.rows]
    launched = np.unique(host["start"][launches[launches != NA]])
    at = np.where(gaps.launch == NA, gaps.end, host["start"][np.where(gaps.launch == NA, 0, gaps.launch)])
    returns = host["end"][blocking]
    last = np.searchsorted(returns, at, "right") - 1
    returned = returns[np.maximum(last, 0)]
    # Returned within the gap: everything launched before has run, so the queue was empty.
    within = (last >= 0) & (returned >= gaps.start)
    first = np.searchsorted(launched, returned, "left")
    following = launched[np.minimum(first, len(launched) - 1)] if len(launched) else at
    return np.asarray(within & ((following >= at) | (gaps.launch == NA)))


def _evidence(trace: Trace, view: LaneView, spans: Spans, gaps: Gaps) -> list[Evidence]:
    """The longest spans of a cause, with what the host did there and what ended the gap."""
    device, host, names = trace["device_events"], trace["host_events"], trace.names
    own = np.searchsorted(gaps.start, spans.start, "right") - 1
    found: list[Evidence] = []
    for index in longest(spans).tolist():
        gap = int(own[index])
        start, end = int(spans.start[index]), int(spans.end[index])
        event = int(gaps.event[gap])
        ended_by = names[int(device["name"][event])] if event != NA else "the end of the trace"
        active = _host_activity(trace, view.lane.rank, int(gaps.thread[gap]), start, end)
        name = names[int(host["name"][active])] if active != NA else ended_by
        note = (
            f"device idle until {ended_by}" if active != NA else "device idle; nothing recorded on the launching thread"
        )
        found.append({"rank": view.lane.rank, "start_ns": start, "dur_ns": end - start, "name": name, "note": note})
    return found


def _host_activity(trace: Trace, rank: int, thread: int, start: int, end: int) -> int:
    """The host event that covers most of [start, end) on a thread, the innermost of equals; NA if none."""
    host = trace["host_events"]
    low, high = np.searchsorted(host["rank"], [rank, rank + 1])
    high = low + int(np.searchsorted(host["start"][low:high], end, "left"))
    rows = np.arange(low, high)[host["thread"][low:high] == thread]
    cover = np.minimum(host["end"][rows], end) - np.maximum(host["start"][rows], start)
    if not len(rows) or int(cover.max()) <= 0:
        return NA
    best = rows[cover >= 0.5 * cover.max()]
    return int(best[np.argmin(host["end"][best] - host["start"][best])])


def _untold(view: LaneView, idle: Spans) -> list[Evidence]:
    return [
        {"rank": view.lane.rank, "start_ns": int(idle.start[i]), "dur_ns": int(idle.end[i] - idle.start[i]),
         "name": "idle", "note": "no host events recorded for this rank"}
        for i in longest(idle).tolist()
    ]  # fmt: skip


ANALYZER = FileAnalyzer(
    "idle",
    run,
    (DEVICE_EVENTS,),
    causes=(*dict.fromkeys(cause for cause, _ in COVERING), "sync", "launch", UNATTRIBUTED),
)
