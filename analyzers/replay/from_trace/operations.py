"""Device operations of a window, and the constant delays between them."""

from __future__ import annotations

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.replay.from_trace.graph_builder import median
from gpuscope.analyzers.replay.from_trace.recorded_steps import Window
from gpuscope.analyzers.replay.graph import NONE
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

LAUNCH_NS = 6_000
"""Latency of a launch where none is seen on an idle stream: 5–7 µs on PCIe GPUs of 2017–2023."""
HAND_OVER_NS = 20_000
"""An operation that starts within this time of another stream's end, and of nothing else, waited for it: an event
takes 1–10 µs to be seen by another stream."""
CLOCK_NS = 2_000
"""By which a profiler's host and device stamps of one rank may disagree."""
PAUSE_NS = 10_000
"""A GPU starts a queued kernel 1–3 µs after the one before it; a pause longer than this has another reason."""


@dataclass(frozen=True)
class Operations:
    """Device operations of a window, in order of start."""

    rows: Times
    start: Times
    end: Times
    stream: Times
    work: Times
    launch: Times
    """Row of the host call, or NA."""
    at: Times
    """When it was launched, or its start."""
    call: Times
    """The same number for what one call launched; NA where the launch is not recorded."""
    before: Times
    """Place of the operation before it on its stream, `NONE` of the first."""


@dataclass(frozen=True)
class Delays:
    """ns, one of each per rank."""

    launch: Array
    """By kind of work."""
    queue: int
    event: int


def operations(trace: Trace, view: LaneView, window: Window) -> Operations:
    """Those of a lane."""
    device, host = trace["device_events"], trace["host_events"]
    start = device["start"][view.rows]
    low, high = np.searchsorted(start, [window.start, window.end])
    # The operation that begins the step behind the window ends the last one.
    high = min(int(high) + (not window.closed), len(start))
    rows = view.rows[int(low) : high]
    stream, launch = device.at("stream", rows), device.at("launch", rows)
    start, end = device["start"][rows], device["end"][rows]
    at = np.where(launch == NA, start, host["start"][np.where(launch == NA, 0, launch)])
    call = launch.copy()
    lost = np.flatnonzero((launch == NA) & (device.at("correlation", rows) != NA))
    before = _call_before(trace, view, device.at("correlation", rows)[lost])
    # The call itself was lost: it was made after the last one before it that was not.
    at[lost] = np.where(before == NA, start[lost], np.minimum(host["end"][np.maximum(before, 0)], start[lost]))
    call[lost] = np.where(before == NA, NA, -2 - lost)
    before = np.full(len(rows), NONE, np.int64)
    for own in (np.flatnonzero(stream == which) for which in np.unique(stream)):
        before[own[1:]] = own[:-1]
    return Operations(rows, start, end, stream, device["kind"][rows].astype(np.int64), launch, at, call, before)


def _call_before(trace: Trace, view: LaneView, correlation: Times) -> Times:
    """The last recorded runtime call with a lower id: ids count a process's calls in order. NA where there is none."""
    host = trace["host_events"]
    if not len(correlation):
        return correlation
    known = (host["rank"] == view.lane.rank) & (host["category"] == Category.RUNTIME) & host.known("correlation")
    calls = np.flatnonzero(known)
    calls = calls[np.argsort(host["correlation"][calls], kind="stable")]
    at = np.searchsorted(host["correlation"][calls], correlation) - 1
    return np.where(at >= 0, calls[np.maximum(at, 0)], NA) if len(calls) else np.full(len(correlation), NA, np.int64)


def delays_of(ops: Operations) -> Delays:
    """Launch latency and pauses, from operations that waited for nothing else."""
    previous = np.where(ops.before >= 0, ops.end[ops.before], ops.at)
    linked = (ops.launch != NA) & (ops.before >= 0)
    idle = linked & (previous + CLOCK_NS < ops.at)
    # Several operations of one call: only the first waits for the call.
    idle &= np.concatenate(([True], ops.launch[1:] != ops.launch[:-1]))
    idle &= ~_began_as_another_ended(ops)
    waited = (ops.start - ops.at)[idle]
    overall = median(waited, LAUNCH_NS)
    by_kind = np.full(len(Kind), overall, np.int64)
    for kind in Kind:
        own = (ops.start - ops.at)[idle & (ops.work == kind)]
        by_kind[kind] = median(own, overall) if len(own) >= 5 else overall
    queued = linked & (ops.at + 2 * overall < previous)
    pause = (ops.start - previous)[queued]
    return Delays(by_kind, median(pause[(pause >= 0) & (pause <= PAUSE_NS)], 1_500), 2_000)


def _began_as_another_ended(ops: Operations) -> Mask:
    """Operations that began as one of another stream ended, which had been launched before and ran on then: they waited
    for it, not for their launch."""
    by_end = np.argsort(ops.end, kind="stable")
    last = by_end[np.maximum(np.searchsorted(ops.end[by_end], ops.start, "right") - 1, 0)]
    since = ops.start - ops.end[last]
    other = (ops.stream[last] != ops.stream) & (ops.at[last] < ops.at) & (ops.end[last] > ops.at)
    return np.asarray(other & (since >= 0) & (since <= HAND_OVER_NS))
