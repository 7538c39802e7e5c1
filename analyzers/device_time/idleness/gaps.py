"""The idle gaps of a lane: what ends each, which thread that is owed to, and since when it had been launched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.idleness.launching_threads import most_launching
from gpuscope.analyzers.device_time.idleness.longest_gaps import ending
from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Mask, Table, Times, blocks, compact, rows_of_rank, rows_where
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class Gaps:
    """Idle gaps of a lane: what ends each, when that was issued and by which thread."""

    start: Times
    end: Times
    launched: Mask
    """Whether the launch of the device event that ends it is recorded."""
    explained: Mask
    """Whether its launch is recorded, or a launching thread that worked meanwhile."""
    thread: Array
    """Thread that launches it; where none did (a migration, the driver's own memset), the launching thread that host
    events cover most of the gap on."""
    begins: Times
    """Start of each of the lane's device events."""
    rows: Times
    """Rows of these."""

    def __len__(self) -> int:
        return len(self.start)

    def of(self, spans: Spans) -> Times:
        """The gap that each span lies in, shape (n,)."""
        return places(self.start, spans.start, "right") - 1

    def event(self, gaps: Array | slice) -> Times:
        """Rows of the device events that end these gaps, or NA at the window's end; shape (n,)."""
        return ending(self.begins, self.rows, self.end[gaps])

    def where(self, picked: Mask) -> Spans:
        """These gaps as a set."""
        return Spans(self.start[picked], self.end[picked])


def find_gaps(trace: Trace, view: LaneView) -> tuple[Gaps, Spans]:
    """The idle gaps of a lane's window, each with what ends it; and the part of each in which that had been launched
    already."""
    device, host = trace["device_events"], trace["host_events"]
    idle, begins = view.parts.idle, device.at("start", view.rows)
    main = most_launching(trace, view)
    launched, thread = np.zeros(len(idle.end), np.bool_), np.full(len(idle.end), main, host["thread"].dtype)
    issue = np.array(idle.end)  # the end of the launch call, or the gap's own end if that is earlier
    for block in blocks(0, len(idle.end)):
        event = ending(begins, view.rows, idle.end[block])
        launch = np.where(event == NA, NA, device.at("launch", np.maximum(event, 0)))
        known = np.flatnonzero(launch != NA)
        launch = launch[known]
        launched[known + block.start] = True
        thread[block][known] = host["thread"][launch]
        issue[block][known] = np.minimum(host["end"][launch], idle.end[block][known])
    explained = np.array(launched)
    if view.lane.device == NA:  # a training thread is its own device
        explained[:] = True
    elif not launched.all():
        own = ~launched
        thread[own], explained[own] = _working_meanwhile(trace, view, Spans(idle.start[own], idle.end[own]), main)
    gaps = Gaps(idle.start, idle.end, launched, explained, compact(thread), begins, view.rows)
    queued_from = np.maximum(issue, idle.start, out=issue)
    keep = idle.end > queued_from
    return gaps, Spans(queued_from, idle.end) if keep.all() else Spans(queued_from[keep], idle.end[keep])


def _working_meanwhile(trace: Trace, view: LaneView, spans: Spans, main: int) -> tuple[Times, Mask]:
    """For each span the launching thread with most of it covered by host events (of equals the main one), and whether
    there is any."""
    host = trace["host_events"]
    linked = trace["device_events"].at("launch", view.rows)
    launching = distinct_values(host["thread"][linked[linked != NA]]).tolist()
    steps = trace.names.matching(kinds.is_step_range)
    thread, most = np.full(len(spans.start), main), np.zeros(len(spans.start), np.int64)
    low, high = rows_of_rank(host, view.lane.rank)
    for number in (main, *(other for other in launching if other != main)):
        rows = rows_where(low, high, partial(_done_by, host, steps, number))
        covered = measure_within(union(host["start"][rows], host["end"][rows]), *spans)
        more = covered > most
        thread[more], most[more] = number, covered[more]
    return thread, most > 0


def _done_by(host: Table, steps: Mask, thread: int, block: slice) -> Mask:
    """Which of these rows are events of a thread, ranges around whole steps left out."""
    return np.asarray((host["thread"][block] == thread) & ~steps[host["name"][block]])


def named_events(trace: Trace, view: LaneView, categories: Sequence[Category], predicate: object) -> Times:
    """The host events of a lane's rank that are of these categories and have a name for which the predicate holds."""
    host, wanted = trace["host_events"], trace.names.matching(predicate)
    if not wanted.any():  # most causes do not occur in a trace
        return np.empty(0, np.int64)
    return rows_where(
        *rows_of_rank(host, view.lane.rank),
        lambda block: wanted[host["name"][block]] & among(host["category"][block], categories),
    )
