"""The host threads that launch: which take turns, where they were blocked, and how full the launch queue was."""

from __future__ import annotations

from functools import partial

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.trace import kinds
from gpuscope.trace.intervals import Spans, join, union
from gpuscope.trace.kernel_categories import OPTIMIZER, is_optimizer_step, kernel_category
from gpuscope.trace.launch_links import outermost
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    among,
    blocks,
    counted,
    distinct_values,
    places,
    rows_of_rank,
    rows_where,
)
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Whether a recording is whole, or someone dropped events from it (definitions: «Is the trace whole?»).
#
# A thinned trace keeps its breakdown: what is there took the time that it took. But idle time may be work that was
# dropped, and a gap's cause an event that was: it supports no cause of idle time. Where the kernels that are missing
# could change what bounds the run, it supports no verdict either (`verdict.class_stands`).

IDS_AT_LEAST = 1_000
"""External ids from which their density says something."""
ID_DENSITY = 0.6
"""Share of the external ids between the first and the last that a whole trace has (97–100 %; a sampled one 1.4 %)."""
TRIMMED = 0.01
"""Share of the ids left out at either end: a few stray ones say nothing of the rest."""
UNLINKED = 0.2
"""Share of the kernels without a launching call, and of these calls without a kernel."""
QUEUED_BEFORE = 50_000
"""ns by which an operation must have been queued before all it waits for had ended, to be ready without doubt."""
LATE_AFTER = 20_000
"""ns after which such operations start, in the median, only where work before them was dropped (whole: 0–2 µs)."""
READY_AT_LEAST = 20
"""Operations so queued from which their median says something."""


def why_thinned(trace: Trace, view: LaneView) -> str:
    """What shows that events of a lane were dropped; empty where nothing does."""
    density, without_launch, without_kernel, _ = _of_file(trace, view)
    if density is not None and density < ID_DENSITY:
        return f"only {units.share(density)} of the operators' External ids are there"
    if without_launch > UNLINKED and without_kernel > UNLINKED:
        return (
            f"{units.share(without_launch)} of the kernels have no launching call and {units.share(without_kernel)} of "
            "the launching calls no kernel"
        )
    late = start_delay_when_ready(trace, view)
    if late is not None and late >= LATE_AFTER:
        return f"operations that were queued and ready start {units.duration(late)} later in the median"
    return ""


def lost_work(trace: Trace, view: LaneView) -> int | None:
    """How long the kernels that a lane's file lacks may have run, ns: as many as launching calls have none, and as many
    as the operators that are missing would have launched, each as long as the mean of those that are there. None where
    only the kernels' late starts show that some are missing."""
    density, without_launch, without_kernel, idle_calls = _of_file(trace, view)
    sparse = density is not None and density < ID_DENSITY
    if not sparse and not (without_launch > UNLINKED and without_kernel > UNLINKED):
        return None
    device, rows = trace["device_events"], view.rows
    kernels = rows[device["kind"][rows] != Kind.MEMORY]
    if not len(kernels):
        return 0
    lost = max(idle_calls, len(kernels) * (1 / density - 1) if sparse and density else 0)
    return round(lost * float((device["end"][kernels] - device["start"][kernels]).mean()))


def _of_file(trace: Trace, view: LaneView) -> tuple[float | None, float, float, int]:
    """Of the file a lane is from: density of its operators' External ids (None where there are too few), shares of
    its kernels without a launching call and of its launching calls without a kernel, and how many these are."""
    ranks, table = trace["ranks"], trace["recording"]
    source = ranks["source"][np.flatnonzero(ranks["rank"] == view.lane.rank)]
    rows = np.flatnonzero(np.isin(table["source"], source))
    if not len(rows):
        return None, 0.0, 0.0, 0
    row = int(rows[0])
    ids, span, kernels, launches, alone, idle = (
        int(table[name][row])
        for name in (
            "operator_ids",
            "operator_id_span",
            "kernels",
            "launches",
            "kernels_without_launch",
            "launches_without_kernel",
        )
    )
    density = ids / span if ids != NA and ids >= IDS_AT_LEAST * (1 - 2 * TRIMMED) else None
    return density, alone / max(kernels, 1), idle / max(launches, 1), idle


def start_delay_when_ready(trace: Trace, view: LaneView) -> float | None:
    """Median ns from the end of a stream's last operation to the start of the next one, over those that had been
    queued long before; None where there are too few."""
    device, host = trace["device_events"], trace["host_events"]
    rows = view.rows[device.known("launch")[view.rows] & ~device.known("graph")[view.rows]]
    if not len(rows) or _waits_unknown(trace, view):
        return None
    order = np.lexsort((device["start"][rows], device.at("stream", rows)))
    rows = rows[order]
    same = device.at("stream", rows)[1:] == device.at("stream", rows)[:-1]
    ready = device["end"][rows][:-1]
    issued = host["end"][device.at("launch", rows)][1:]
    queued = same & (issued <= ready - QUEUED_BEFORE) & ~_another_stream_runs(trace, view, rows)
    if int(queued.sum()) < READY_AT_LEAST:
        return None
    return float(np.median((device["start"][rows][1:] - ready)[queued]))


def _waits_unknown(trace: Trace, view: LaneView) -> bool:
    """Whether a lane's streams wait for more than the trace model holds: Ascend's for notifications of other NPUs."""
    ranks = trace["ranks"]
    backends = ranks["backend"][ranks["rank"] == view.lane.rank]
    return trace.names.find("hccl") in backends.tolist()


def _another_stream_runs(trace: Trace, view: LaneView, rows: Times) -> Times:
    """For each operation but the first, whether the device was busy between its stream's last one and it: it may
    have waited for that."""
    device = trace["device_events"]
    start, end = (np.sort(device[column][view.rows], kind="stable") for column in ("start", "end"))
    since, until = device["end"][rows][:-1], device["start"][rows][1:]
    return np.asarray(places(start, until) > places(end, since, "right"))


AT_ONCE = 0.1
"""Share of a thread's blocking calls during which another one launches, from which the two do not take turns."""
QUEUE_AT_LEAST = 500
"""Operations: CUDA blocks a launch at about 1,000 pending ones; a recording that never comes near was not limited."""
NEARLY_FULL = 0.9
"""Share of the longest queue seen from which it counts as full."""
BLOCKED_LAUNCH = 10
"""A launch call that lasts so many usual ones with a full queue waited for the device."""


@dataclass(frozen=True)
class Turns:
    """Threads that take turns launching, as one sequence of calls."""

    threads: Times
    launches: Times
    """Rows of `host_events` that launch, in order of start."""
    blocking: Times
    """Rows of its outermost blocking calls, in order of start."""
    queue_waits: Spans
    """What its launch calls waited for a full queue."""

    def blocked(self, host: Table) -> Spans:
        """When it could not go on before the device had: blocking calls, and launches into a full queue."""
        return join(union(host["start"][self.blocking], host["end"][self.blocking]), self.queue_waits)


_TRAINS = when_used.pattern(r"(?i)backward|(?<![a-z])bwd(?![a-z])|dgrad|wgrad")
"""Autograd's nodes and ranges around them; cuDNN's, CUTLASS's and Triton's kernels for gradients."""
MOSTLY_BARE = 0.9
"""Share of a stretch that no event within it may cover: what a thread records on its way to the wait and from it is
short; and that ranges from outside must cover to be around it."""


def trains(trace: Trace, view: LaneView) -> bool:
    """Whether a rank shows a backward pass or an optimizer, on its host or its device."""
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    low, high = rows_of_rank(host, view.lane.rank)
    of_host = names.matching(lambda name: _TRAINS.search(name) is not None or is_optimizer_step(name))
    of_device = names.matching(lambda name: _TRAINS.search(name) is not None or kernel_category(name) == OPTIMIZER)
    named = any(bool(of_host[host["name"][low:high][block]].any()) for block in blocks(0, high - low))
    return named or any(
        bool(of_device[device.at("name", view.rows[block])].any()) for block in blocks(0, len(view.rows))
    )


def waits_for_work(trace: Trace, own: Turns, stretches: Spans) -> Spans:
    """Of long stretches those that begin as a blocking call returns, in which nothing is recorded and around which no
    range lies: the threads may wait there for work from another process. Ranges that end or begin within one say
    nothing of the rest."""
    host, threads = trace["host_events"], own.threads.tolist()
    behind = np.isin(stretches.start, own.blocked(host).end)
    low, high = rows_of_rank(host, int(host["rank"][own.launches[0]])) if len(own.launches) else (0, 0)
    kept = []
    for start, end in zip(stretches.start[behind].tolist(), stretches.end[behind].tolist(), strict=True):
        until = low + int(np.searchsorted(host["start"][low:high], end, "left"))
        overlap = partial(_of_threads, host, threads, start)
        rows = rows_where(low, until, overlap)
        begins, ends = host["start"][rows], host["end"][rows]
        within = (begins >= start) & (ends <= end)
        recorded = union(begins[within], ends[within]).total
        around = union(np.maximum(begins[~within], start), np.minimum(ends[~within], end)).total
        if around < MOSTLY_BARE * (end - start) and recorded <= (1 - MOSTLY_BARE) * (end - start):
            kept.append((start, end))
    bounds = np.array(kept, np.int64).reshape(-1, 2)
    return Spans(bounds[:, 0], bounds[:, 1])


def _of_threads(host: Table, threads: list[int], after: int, part: slice) -> Mask:
    """Which of these rows are events of the threads that end after an instant."""
    return np.asarray(among(host["thread"][part], threads) & (host["end"][part] > after))


def launching_threads(trace: Trace, view: LaneView, blocking: Times) -> list[Turns]:
    """The sequences of threads that launch a lane's work, the busiest first; `blocking` are its blocking calls.

    Where no operation is linked to its launch, there is one: the thread with most events, and its calls that launch.
    """
    host, device = trace["host_events"], trace["device_events"]
    linked = device.at("launch", view.rows)
    launches = distinct_values(linked if (known := linked != NA).all() else linked[known])
    del linked
    if not len(launches):
        main, calls = most_launching(trace, view), trace.names.matching(kinds.is_launch_call)
        unlinked = rows_where(
            *rows_of_rank(host, view.lane.rank),
            lambda part: calls[host["name"][part]] & (host["thread"][part] == main),
        )
        return [_turns(host, np.array([main]), unlinked, blocking, (launches, launches))]
    threads, count = counted(host["thread"][launches])
    waits = queue_waits(trace, view, launches)
    groups: list[list[int]] = []
    for thread in threads[np.argsort(-count, kind="stable")].tolist():
        for group in groups:
            if not any(_at_once(host, launches, blocking, thread, other) for other in group):
                group.append(thread)
                break
        else:
            groups.append([thread])
    return [_turns(host, np.array(group, np.int64), launches, blocking, waits) for group in groups]


def _turns(host: Table, threads: Times, launches: Times, blocking: Times, waits: tuple[Times, Times]) -> Turns:
    of_threads = among(host["thread"][launches], threads.tolist())
    own = launches if of_threads.all() else launches[of_threads]  # in order of start, as a rank's rows are
    calls, excess = waits
    mine = np.isin(host["thread"][calls], threads)
    end = host["end"][calls[mine]]
    return Turns(
        threads,
        own,
        _by_start(host, blocking[np.isin(host["thread"][blocking], threads)]),
        union(end - excess[mine], end),
    )


def _by_start(host: Table, rows: Times) -> Times:
    return rows[np.argsort(host["start"][rows], kind="stable")]


def _at_once(host: Table, launches: Times, blocking: Times, one: int, other: int) -> bool:
    """Whether either of two threads launches while the other is blocked."""
    return any(
        _inside(host, blocking[host["thread"][blocking] == a], launches[host["thread"][launches] == b]) > AT_ONCE
        for a, b in ((one, other), (other, one))
    )


def _inside(host: Table, calls: Times, launches: Times) -> float:
    """Share of the calls in which a launch begins."""
    if not len(calls):
        return 0.0
    starts = np.sort(host["start"][launches], kind="stable")
    first = np.searchsorted(starts, host["start"][calls], "right")
    last = np.searchsorted(starts, host["end"][calls], "left")
    return float((last > first).mean())


def most_launching(trace: Trace, view: LaneView) -> int:
    """The thread that launches most of a lane's work; without launches, that with most events of its rank."""
    host, device = trace["host_events"], trace["device_events"]
    thread = host["thread"]
    counts = np.zeros(int(thread.max(initial=0)) + 1, np.int64)
    for block in blocks(0, len(view.rows)):
        launch = device.at("launch", view.rows[block])
        counts += np.bincount(thread[launch[launch != NA]], minlength=len(counts))
    if not counts.any():
        counts = np.bincount(thread[slice(*rows_of_rank(host, view.lane.rank))])
    return int(np.argmax(counts))


def blocking_calls(trace: Trace, view: LaneView) -> Times:
    """Host calls of a lane's rank that return only when device work is done: outermost synchronisations,
    synchronous copies, asynchronous copies with a pageable side. Rows of `host_events`, ordered by end."""
    host, device = trace["host_events"], trace["device_events"]
    blocking = trace.names.matching(kinds.is_blocking_call)
    named = np.empty(0, np.int64)
    if blocking.any():
        named = rows_where(
            *rows_of_rank(host, view.lane.rank),
            lambda block: blocking[host["name"][block]] & (host["category"][block] == Category.RUNTIME),
        )
    copies = view.rows[device.known("copy_kind")[view.rows]]
    copies = copies[device.at("launch", copies) != NA]
    kind = device["copy_kind"][copies]
    pageable = trace.names.matching(lambda name: name.endswith("pageable"))[kind]
    # Where the kind of memory is not recorded, a call that outlasts its copy has waited for it.
    crossing = trace.names.matching(lambda name: name in ("HtoD", "DtoH"))[kind]
    outlasted = crossing & (host["end"][device.at("launch", copies)] >= device["end"][copies])
    found = distinct_values(np.concatenate((named, device.at("launch", copies[pageable | outlasted]))))
    outer = [
        outermost(host, found[host["thread"][found] == thread]) for thread in distinct_values(host["thread"][found])
    ]
    found = np.concatenate(outer) if outer else found
    return found[np.argsort(host["end"][found], kind="stable")]


def queue_waits(trace: Trace, view: LaneView, launches: Times) -> tuple[Times, Times]:
    """Launch calls that waited for room in the queue, and for how long, ns."""
    host = trace["host_events"]
    none = np.empty(0, np.int64)
    if not len(launches):
        return none, none
    full = queue_length(trace, view, launches)
    longest = int(full.max(initial=0))
    if longest < QUEUE_AT_LEAST:
        return none, none
    duration = host["end"][launches] - host["start"][launches]
    room = full < NEARLY_FULL * longest
    # Most launches of a host that is always ahead are blocked: the usual one is one that found room.
    usual = int(np.median(duration[room] if room.any() else duration))
    waited = ~room & (duration > BLOCKED_LAUNCH * usual)
    return launches[waited], duration[waited] - usual


def queue_length(trace: Trace, view: LaneView, calls: Times) -> Array:
    """Launches of a lane that were issued before each of some calls and whose work had not ended then."""
    host = trace["host_events"]
    issued, done = _issued_and_done(trace, view)
    found = np.empty(len(calls), np.int32)
    for block in blocks(0, len(calls)):
        at = host["start"][calls[block]]
        found[block] = places(issued, at) - places(done, at, "right")
    return found


def _issued_and_done(trace: Trace, view: LaneView) -> tuple[Times, Times]:
    """When each launch of a lane was issued, and when the work of each had ended; both ascending."""
    host, device = trace["host_events"], trace["device_events"]
    rows, launch = view.rows, device.at("launch", view.rows)
    if not (known := launch != NA).all():
        rows, launch = rows[known], launch[known]
    calls = distinct_values(launch)  # the nodes of a graph are one launch
    if calls is launch:
        ended = device.at("end", rows)
    else:
        ended = np.full(len(calls), NA, np.int64)
        np.maximum.at(ended, places(calls, launch), device.at("end", rows))
    del launch
    if not bool((ended[1:] >= ended[:-1]).all()):
        ended = np.sort(ended, kind="stable")  # nearly in order
    return host["start"][calls], ended
