"""Host calls that waited for the device: where they are, and what they waited for."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.launching_threads import blocking_calls, queue_waits
from gpuscope.analyzers.host_time.blocking_sites import sites
from gpuscope.analyzers.replay.graph import ALLOCATION, NONE, QUEUE, Edge
from gpuscope.analyzers.replay.graph_builder import Builder, Window, median
from gpuscope.trace import kinds
from gpuscope.trace.launch_links import innermost, outermost
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Device operations of a window, and the constant delays between them.

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


CALL_NS = 5_000
"""What a call that finds nothing to wait for costs at most."""


@dataclass(frozen=True)
class Returns:
    """Host calls of a window that waited for the device, in order of return."""

    rows: Times
    begin: Times
    end: Times
    labels: list[str]
    sites: list[str]
    """The places of the program, as the report's `host_calls` tells them apart."""
    queue: Mask
    """Launches that waited for room in the queue; they begin as that wait does."""
    drains: Mask
    """Allocator calls that waited for all that was launched, and then went to work."""


def returns_of(trace: Trace, view: LaneView, ops: Operations, rows: Times) -> Returns:
    """Blocking calls, launches into a full queue and allocator calls that drain the device."""
    host = trace["host_events"]
    launches = ops.launch[ops.launch != NA]
    found = blocking_calls(trace, view)
    inside = (host["start"][found] >= host["start"][launches].min()) & (host["end"][found] <= ops.at.max())
    found = found[inside & np.isin(host["thread"][found], np.unique(host["thread"][launches]))]
    full, excess = queue_waits(trace, view, np.unique(launches))
    kept = np.isin(full, launches) & (host["end"][full] <= ops.at.max()) & ~np.isin(full, found)
    full, excess = full[kept], excess[kept]
    drains = _drains(trace, ops, rows)
    parts = (found, full, drains)
    every = np.concatenate(parts)
    end = host["end"][every]
    begin = np.concatenate((host["start"][found], host["end"][full] - excess, host["start"][drains]))
    labels = [*_labels(trace, found, rows), *[QUEUE] * len(full), *[ALLOCATION] * len(drains)]
    places = [*sites(trace, view, rows, found), *[""] * (len(full) + len(drains))]
    order = np.argsort(end, kind="stable")
    part = np.repeat(range(len(parts)), [len(own) for own in parts])[order]
    labels, places = ([own[place] for place in order.tolist()] for own in (labels, places))
    return Returns(every[order], begin[order], end[order], labels, places, part == 1, part == 2)


def _drains(trace: Trace, ops: Operations, rows: Times) -> Times:
    """Allocator calls of the launching threads that waited for the device."""
    host, launches = trace["host_events"], ops.launch[ops.launch != NA]
    rows = rows[np.isin(host["thread"][rows], np.unique(host["thread"][launches]))]
    rows = rows[(host["start"][rows] >= host["start"][launches].min()) & (host["end"][rows] <= ops.at.max())]
    return draining_calls(trace, rows, ops.at, ops.end, CLOCK_NS)


def _labels(trace: Trace, calls: Times, rows: Times) -> list[str]:
    """Outermost operator, innermost operator and call, as `aten::item/aten::_local_scalar_dense/cudaMemcpyAsync`."""
    host, names = trace["host_events"], trace.names
    if not len(calls):
        return []
    operators = np.zeros(len(host), np.bool_)
    operators[rows] = host["category"][rows] == Category.OP
    inner = innermost(host, operators, host["thread"][calls], host["start"][calls])
    found: list[str] = []
    tops = {
        thread: outermost(host, np.flatnonzero(operators & (host["thread"] == thread)))
        for thread in np.unique(host["thread"][calls]).tolist()
    }
    for call, own in zip(calls.tolist(), inner.tolist(), strict=True):
        top = tops[int(host["thread"][call])]
        at = int(np.searchsorted(host["start"][top], host["start"][call], "right")) - 1
        chain = [int(top[at])] if own != NA and at >= 0 else []
        chain += [own] if own != NA else []
        found.append("/".join(dict.fromkeys(names[int(host["name"][row])] for row in (*chain, call))))
    return found


def waits(
    trace: Trace, builder: Builder, ops: Operations, last: list[int], waiters: list[int], returns: Returns
) -> None:
    """Operation → the call that waited for it: on each stream the last one launched before and done by then. `last`:
    the node of each operation that ends with it; `waiters`: that of each call."""
    copied = {int(call): place for place, call in enumerate(ops.launch.tolist()) if call != NA}
    own_copy = np.array([copied.get(call, NONE) for call in returns.rows.tolist()], np.int64)
    own_copy[returns.queue | returns.drains] = NONE
    sources = _waited_for(ops, returns, own_copy)
    reached = [max((int(ops.end[source]) for source in found), default=NA) for found in sources]
    # Calls of one name that copy in one direction return in the same way.
    copy_kind = np.where(own_copy < 0, NO_NAME, trace["device_events"]["copy_kind"][ops.rows][own_copy])
    names = np.where(returns.queue, NO_NAME, trace["host_events"]["name"][returns.rows]).tolist()
    same: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, key in enumerate(zip(names, copy_kind.tolist(), strict=True)):
        if not returns.drains[place]:
            same[key].append(place)
    for place in np.flatnonzero(returns.drains).tolist():
        own = max(0, int(returns.end[place]) - max(int(returns.begin[place]), reached[place]))
        builder.nodes["dur"][waiters[place]] = builder.nodes["allocator"][waiters[place]] = own
        for source in sources[place]:
            builder.edge(last[source], waiters[place], 0, Edge.SYNC)
    for key, places in same.items():
        held = [place for place in places if reached[place] > returns.begin[place] + CLOCK_NS]
        delay = median(np.array([returns.end[place] - reached[place] for place in held], np.int64), 0)
        free = [int(returns.end[place] - returns.begin[place]) for place in places if place not in held]
        # With room in the queue a launch waits for nothing; what it costs itself is the host's.
        own = 0 if key[0] == NO_NAME else min(median(np.array(free, np.int64), CALL_NS), CALL_NS)
        for place in held:
            node = waiters[place]
            lasts = builder.nodes["dur"][node] = min(int(builder.nodes["dur"][node]), own)
            for source in sources[place]:
                builder.edge(last[source], node, delay - lasts, Edge.SYNC)
        # One that came when all was done waits once the host comes sooner.
        for place in set(places).difference(held) if key[0] != NO_NAME else ():
            for source in sources[place]:
                slack = int(returns.begin[place] - ops.end[source])
                builder.edge(last[source], waiters[place], min(delay - own, slack), Edge.SYNC)


def _waited_for(ops: Operations, returns: Returns, own_copy: Times) -> list[list[int]]:
    """Per call, what it waited for: the copy it makes, in stream order behind all else, or on each stream the last
    operation launched before the call and done by its return."""
    streams = [np.flatnonzero(ops.stream == which) for which in np.unique(ops.stream)]
    found: list[list[int]] = []
    for begin, end, copy in zip(returns.begin.tolist(), returns.end.tolist(), own_copy.tolist(), strict=True):
        ready = [
            own[(ops.at[own] <= begin + CLOCK_NS) & (ops.end[own] <= end + CLOCK_NS)]
            for own in (streams if copy < 0 else ())
        ]
        found.append([copy] if copy >= 0 else [int(own[-1]) for own in ready if len(own)])
    return found


FREES = frozenset({"cudaFree", "cudaFreeHost", "cuMemFree", "cuMemFree_v2", "hipFree", "hipHostFree"})
"""Calls that are known to wait for the device («implicit synchronization» in NVIDIA's CUDA programming guide): they do
also where the recording never shows it, because the host had waited before each."""
FEWEST = 3
"""Calls from which it shows that others of a name do."""


def draining_calls(trace: Trace, rows: Times, launched: Times, ended: Times, clock_ns: int) -> Times:
    """Of a rank's host events (`rows`) the allocator calls that wait for its device, whose operations were `launched`
    and `ended` then.

    A call that returned while earlier work was unfinished shows that those of its name don't. One of another name than
    `FREES` is shown to wait where its calls' time behind the last work's end varies less than their whole time.
    """
    host = trace["host_events"]
    named = trace.names.matching(kinds.is_allocator_call)[host["name"][rows]]
    calls = rows[named & (host["category"][rows] == Category.RUNTIME)]
    begin, end = host["start"][calls], host["end"][calls]
    order = np.argsort(launched, kind="stable")
    done = np.append(0, np.maximum.accumulate(ended[order]))[np.searchsorted(launched[order], begin, "right")]
    held, name = done > begin + clock_ns, host["name"][calls]
    found = np.zeros(len(calls), np.bool_)
    for which in np.unique(name).tolist():
        own = name == which
        if not (done[own] > end[own] + clock_ns).any():
            known = trace.names[which] in FREES
            found |= own & (known or _seen(begin[own & held], end[own & held], done[own & held]))
    return np.asarray(calls[found])


def _seen(begin: Times, end: Times, done: Times) -> bool:
    return len(begin) >= FEWEST and bool(np.std(end - done) < np.std(end - begin))
