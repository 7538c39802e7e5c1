"""Links between a launch, the operator around it, the kernel it started and the step it belongs to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from gpuscope import native
from gpuscope.trace import kinds
from gpuscope.trace.intervals import EMPTY, Spans, clip, intersect, join, subtract, union, union_at
from gpuscope.trace.name_pool import NamePool, PerName
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    among,
    blocks,
    distinct_values,
    looked_up,
    overlapping,
    places,
    rows_of_rank,
)

_ROOM = 16
"""Room per call in a list by correlation id: where ids lie further apart they are sorted."""


def _keys(rank: Times, correlation: Times) -> Times:
    """(rank, correlation) as one sortable number each: an id is unique only within its rank."""
    rank = rank.astype(np.int64, copy=False)
    least, lowest = int(rank.min()), int(correlation.min())
    ranks, ids = int(rank.max()) - least + 1, int(correlation.max()) - lowest + 1
    if ranks * ids < 2**62:
        return np.asarray((rank - least) * ids + (correlation - lowest))
    pairs = np.empty(len(rank), dtype=[("rank", np.int64), ("id", np.int64)])
    pairs["rank"], pairs["id"] = rank, correlation
    return np.asarray(np.unique(pairs, return_inverse=True)[1], np.int64)


def launches(device: Table, host: Table) -> tuple[Times, int]:
    """For each device event, the row of the runtime call that launched it, or NA; shape (n,).

    Where several calls of a rank carry one id, the last that started before the device event is taken;
    the second value counts the ids so shared. A launch that starts after its kernel is no launch.
    """
    listed = _listed_launches(device, host)
    if listed is not None:
        return listed, 0
    result = np.full(len(device), NA, np.int64)
    calls = np.flatnonzero((host["category"] == Category.RUNTIME) & host.known("correlation"))
    events = np.flatnonzero(device.known("correlation"))
    if not len(calls) or not len(events):
        return result, 0
    keys = _keys(
        np.concatenate((host["rank"][calls], device["rank"][events])),
        np.concatenate((host["correlation"][calls], device["correlation"][events])),
    )
    call_code, event_code = keys[: len(calls)], keys[len(calls) :]
    order = np.lexsort((host["start"][calls], call_code))
    calls, call_code = calls[order], call_code[order]
    low, high = places(call_code, event_code), places(call_code, event_code, "right")
    duplicated = int((np.diff(call_code) == 0).sum())
    row = high - 1
    if duplicated:
        row = _last_before(host["start"][calls], device["start"][events], low, high)
    found = (row >= low) & (high > low)
    result[events[found]] = calls[row[found]]
    return result, duplicated


def _listed_launches(device: Table, host: Table) -> Times | None:
    """As `launches`, from a list of calls by id; None where calls share an id, or ids lie far apart."""
    result = np.full(len(device), NA, np.int64)
    for rank in distinct_values(host.columns["rank"]).tolist():
        calls = _calls_by_id(host, *rows_of_rank(host, rank))
        if calls is None:
            return None
        least, row_of = calls
        low, high = rows_of_rank(device, rank)
        for block in blocks(low, high):
            ids = device.at("correlation", block)
            inside = (ids >= least) & (ids < least + len(row_of))
            if inside.any():
                row = row_of[np.where(inside, ids - least, 0)].astype(np.int64)
                result[block] = np.where(inside & (row >= 0), row, NA)
    return result


def _calls_by_id(host: Table, low: int, high: int) -> tuple[int, Array] | None:
    """The least correlation id of the runtime calls in rows low to high, and the row of each id from there on, −1
    where there is none."""

    def calls() -> Iterator[tuple[Times, Times]]:
        for block in blocks(low, high):
            ids = host.at("correlation", block)
            own = np.flatnonzero((host["category"][block] == Category.RUNTIME) & (ids != NA))
            if len(own):
                yield ids[own], own + block.start

    bounds = [(len(ids), int(ids.min()), int(ids.max())) for ids, _ in calls()]
    if not bounds:
        return 0, np.empty(0, np.int32)
    count, least = sum(number for number, _, _ in bounds), min(lowest for _, lowest, _ in bounds)
    span = max(highest for _, _, highest in bounds) - least + 1
    if span > _ROOM * count or high >= 2**31:
        return None
    row_of = np.full(span, -1, np.int32)
    for ids, rows in calls():
        row_of[ids - least] = rows
    return (least, row_of) if int(np.count_nonzero(row_of >= 0)) == count else None


def _last_before(starts: Times, at: Times, low: Times, high: Times) -> Times:
    """Per run [low, high) of `starts`, the last index whose start is not after `at`, else `low`."""
    index = high - 1
    while True:
        late = (index > low) & (starts[np.clip(index, 0, len(starts) - 1)] > at)
        if not late.any():
            return np.asarray(index)
        index = index - late


def unmatched(device: Table, host: Table, launching: Mask, cut_off: bool) -> tuple[Mask, Mask, Mask, Mask]:
    """Kernels and launches that lack each other, after linking; `launching` says of name codes which calls launch.

    Masks over `device` (kernels, those without a launching call) and over `host` (launches, those without a kernel).
    Only launches within the recorded device activity count: the kernels of later ones had not begun. In a file that
    was cut off, those were lost too: kernels are written in blocks of their own.
    """
    kernel = device["kind"] != Kind.MEMORY
    calls = (host["category"] == Category.RUNTIME) & host.known("correlation")
    calls &= looked_up(launching, host["name"])
    if not cut_off:
        calls &= host["end"] < int(device["start"].max(initial=NA))
    linked, has_launch = np.zeros(len(host), np.bool_), device.known("launch")
    for block in blocks(0, len(device)):
        linked[device.at("launch", block)[has_launch[block]]] = True
    return kernel, kernel & ~has_launch, calls, calls & ~linked


def innermost(host: Table, candidates: Mask, thread: Times, at: Times) -> Times:
    """The innermost of the `candidates` that covers instant `at` on `thread`, or NA; shape as `at`. Ranges of one
    thread nest."""
    count = np.count_nonzero(candidates)
    if not count or not len(at):
        return np.full(len(at), NA, np.int64)
    if 16 * count >= len(host):
        return native.innermost(host["start"], host["end"], host["thread"], candidates, thread, at)
    rows = np.flatnonzero(candidates)  # then the others are not even looked at
    start, end, own = (host[name][rows] for name in ("start", "end", "thread"))
    found = native.innermost(start, end, own, np.ones(len(rows), np.bool_), thread, at)
    for block in blocks(0, len(found)):
        part = found[block]
        inside = part != NA
        part[inside] = rows[part[inside]]
    return found


def outermost(host: Table, rows: Times) -> Times:
    """Those of `rows` (of one thread) that no other of them encloses, in order of start."""
    rows, reach, found = longer_first(host, rows), np.iinfo(np.int64).min, [rows[:0]]
    for block in blocks(0, len(rows)):
        end = host["end"][rows[block]]
        before = np.maximum.accumulate(np.concatenate(([reach], end)))
        found.append(rows[block][end > before[:-1]])
        reach = int(before[-1])
    return np.concatenate(found)


def longer_first(host: Table, rows: Times) -> Times:
    """Rows in order of start, of those that start at once the longer ones first: the rows themselves, where they stand
    so."""
    for block in overlapping(len(rows)):
        start, end = host["start"][rows[block]], host["end"][rows[block]]
        if not bool(((start[1:] > start[:-1]) | ((start[1:] == start[:-1]) & (end[1:] <= end[:-1]))).all()):
            return np.asarray(rows[np.lexsort((-host["end"][rows], host["start"][rows]))])
    return rows


def awaited_streams(syncs: Table, host: Table, device: Table) -> tuple[Times, int]:
    """`syncs.awaited_stream` with what can be inferred, and how many values were; shape (n,).

    torch 2.15's CUPTI back end names the call that recorded the event, not its stream. Frameworks record an event
    behind the work that others are to wait for (c10d's `syncStream`, `Stream.wait_stream`), so it is taken to be on the
    stream of its thread's last launch; not where that is the waiting stream itself, or where the thread had launched
    nothing.
    """
    awaited = np.array(syncs["awaited_stream"])
    open_rows = np.flatnonzero((awaited == NA) & (syncs["record"] != NA) & (syncs["stream"] != NA))
    launched = np.flatnonzero((device["launch"] != NA) & (device["stream"] != NA))
    calls = np.flatnonzero((host["category"] == Category.RUNTIME) & host.known("correlation"))
    if not len(open_rows) or not len(launched) or not len(calls):
        return awaited, 0
    by_call = {
        (rank, number): call
        for rank, number, call in zip(
            host["rank"][calls].tolist(), host["correlation"][calls].tolist(), calls.tolist(), strict=True
        )
    }
    inferred = 0
    launches = _LaunchesOfThreads(host, device, launched)
    for row in open_rows.tolist():
        record = by_call.get((int(syncs["rank"][row]), int(syncs["record"][row])))
        stream = None if record is None else launches.last_stream(record)
        if stream is not None and stream != int(syncs["stream"][row]):
            awaited[row] = stream
            inferred += 1
    return awaited, inferred


class _LaunchesOfThreads:
    """Launching calls of each thread, in order of time, with the stream of what they launched."""

    def __init__(self, host: Table, device: Table, launched: Times) -> None:
        self._host = host
        launch = device["launch"][launched]
        thread, start = host["thread"][launch], host["start"][launch]
        order = np.lexsort((start, thread))
        self._thread, self._start, self._stream = thread[order], start[order], device["stream"][launched][order]

    def last_stream(self, call: int) -> int | None:
        """The stream of the last launch of the call's thread before it."""
        thread = self._host["thread"][call]
        low = int(np.searchsorted(self._thread, thread, "left"))
        high = int(np.searchsorted(self._thread, thread, "right"))
        place = low + int(np.searchsorted(self._start[low:high], self._host["start"][call])) - 1
        return int(self._stream[place]) if place >= low else None


# Pauses of the training threads of a CPU run that are waits for a collective.
#
# A blocking wait (`Work.wait`) leaves no event. It is known by two things: no training thread is inside an operator
# that computes, and the pause ends as a collective does.

BLOCKED_NS = 50_000
"""A pause must be at least so long before a collective's end to be a wait for it: Python between two operators
takes 5–50 µs."""
WAKE_NS = 300_000
"""A thread that was waiting goes on within this time of the collective's end (tens of µs on an idle machine), or on
a busy one within as long as it had waited."""
EARLY_NS = 1_000_000
"""By which the waiting thread may go on before gloo's thread has recorded the end: both do so as the work is done, and
on a busy machine gloo's thread may have to wait for a core first."""


_COMMUNICATING = ("c10d::", "_c10d_functional", "c10d_functional::")
_WAITS = ("c10d_functional::wait_tensor", "c10d::barrier", "c10d::monitored_barrier_")


def is_waiting_op(name: str) -> bool:
    """Operators in which a thread is blocked on a collective; the others only issue one and go on."""
    return name.endswith(_WAITS)


def is_message_op(name: str) -> bool:
    """Operators that issue a message: gloo writes what the socket takes before it returns."""
    return name.startswith(("c10d::send", "c10d::recv"))


def pauses(host: Table, names: NamePool, own: Times, threads: Times) -> Spans:
    """Where none of the `threads` computes for `BLOCKED_NS` or longer, between two of their events.

    `own` are the rows of those threads' host events, collectives left out. An operator computes where it has no others
    inside, or none that communicates and is PyTorch's own (`aten::mm` looks at its inputs before it multiplies); in all
    else (Python, a node of autograd, an operator that waits or issues a collective) a pause can be a wait.
    """
    start, end = _long_gaps(host, own)
    if not len(start):
        return EMPTY
    computing = _computing(host, names, own)
    every = np.zeros(len(host), np.bool_)
    every[own] = True
    free: Mask = np.ones(len(start), np.bool_)
    for thread in threads.tolist():
        rows = innermost(host, every, np.full(len(start), thread), (start + end) // 2)
        free &= ~((rows != NA) & computing[np.maximum(rows, 0)])
    return Spans(start[free], end[free])


def _long_gaps(host: Table, own: Times) -> tuple[Times, Times]:
    """Where none of these events begins or ends for `BLOCKED_NS` or longer."""
    found: list[Spans] = []
    for block in blocks(0, len(own)):
        bounds = np.concatenate((host["start"][own[block]], host["end"][own[block]]))
        bounds.sort()
        found.append(union(bounds, bounds + (BLOCKED_NS - 1)))
    near = join(*found)
    return near.end[:-1] - (BLOCKED_NS - 1), near.start[1:]


def _computing(host: Table, names: NamePool, own: Times) -> Mask:
    """Per host event, whether it is one of `own` that computes between the events inside it, too."""
    found = np.zeros(len(host), np.bool_)
    idle = names.matching(lambda name: is_waiting_op(name) or name.startswith("c10d::"))
    communicates = names.matching(lambda name: is_waiting_op(name) or name.startswith(_COMMUNICATING))
    own_work = names.matching(lambda name: name.startswith("aten::"))
    threads = host["thread"][own]
    for thread in distinct_values(threads).tolist():
        rows = own[threads == thread]
        rows = longer_first(host, rows)
        inner = host["start"][rows[looked_up(communicates, host["name"][rows])]]
        begun = np.zeros(1, np.int64)
        for block in blocks(0, len(rows)):
            name, end = host["name"][rows[block]], host["end"][rows[block]]
            after = host["start"][rows[block.start + 1 : block.stop + 1]]
            nested = np.zeros(len(end), np.bool_)
            nested[: len(after)] = after < end[: len(after)]
            begun = begun[-1] + np.cumsum(communicates[name])
            holds = np.searchsorted(inner, end) > begun  # one that communicates begins inside it
            computes = ~idle[name] & np.where(own_work[name], ~holds, ~nested)
            found[rows[block]] = computes & (host["category"][rows[block]] == Category.OP)
    return found


def ended_by(found: Spans, ends: Times, begins: Times | None = None, early: int = EARLY_NS) -> Spans:
    """Of pauses, those that end with one of the collectives' `ends` (ns), at most `early` before: for each the longest
    that can be. Where `begins` is given nobody waits for a collective before it."""
    before, after = found.start, found.end
    begins = np.full(len(ends), before.min(initial=0)) if begins is None else begins
    length = after - before
    picked = np.zeros(len(before), np.bool_)
    low = np.searchsorted(after, ends - early, "left")
    high = np.searchsorted(before, ends - BLOCKED_NS, "right")
    for begin, end, first, last in zip(begins.tolist(), ends.tolist(), low.tolist(), high.tolist(), strict=True):
        places = np.arange(first, last)
        blocked = np.minimum(after[places], end) - np.maximum(before[places], begin)
        places = places[(blocked >= BLOCKED_NS) & (after[places] - end <= np.maximum(WAKE_NS, blocked))]
        if len(places):
            picked[places[np.argmax(length[places])]] = True
    return Spans(before[picked], after[picked])


# CPU training has no device: its training threads are the device (definitions: «Breakdown of a window»).
#
# Operators become compute, time blocked on a collective becomes communication, also where it is a node of autograd
# that blocks (FSDP's hooks, an all-to-all's backward); waiting for the data loader is left open, so that it is idle
# time
# with the cause `input`. The rows so made refer to their host events.

_BACKWARD = "autograd::engine::evaluate_function"


def training_threads(host: Table, names: NamePool, rows: Times) -> list[int]:
    """The thread that spends most time in operators, and those that run the backward pass."""
    spent: defaultdict[int, list[Spans]] = defaultdict(list)
    backward = names.matching(lambda name: name.startswith(_BACKWARD))
    found: set[int] = set()
    for ops in (rows[block] for block in blocks(0, len(rows))):
        ops = ops[host["category"][ops] == Category.OP]
        threads = host["thread"][ops]
        for thread in distinct_values(threads).tolist():
            own = ops[threads == thread]
            spent[thread].append(union(host["start"][own], host["end"][own]))
        found.update(distinct_values(threads[backward[host["name"][ops]]]).tolist())
    if not spent:
        return []
    main = max(sorted(spent), key=lambda thread: join(*spent[thread]).total)
    return [main, *sorted(found - {main})]


def work(host: Table, names: NamePool, rows: Times) -> dict[str, Times]:
    """Columns of device events for one rank (`rows`: its host events): what its training threads did."""
    threads = training_threads(host, names, rows)
    category, name = host.at("category", rows), host.at("name", rows)
    on_thread = among(host.at("thread", rows), threads)
    wrapper = names.matching(kinds.is_compile_wrapper) | names.matching(kinds.is_frame_compilation)
    ops: Mask = on_thread & (category == Category.OP) & ~wrapper[name]
    waits = rows[ops & names.matching(is_waiting_op)[name]]
    calls = rows[category == Category.COMMUNICATION]
    in_message = PerName(names, lambda name: kinds.collective_op(name) in kinds.POINT_TO_POINT)
    message = in_message(host["name"][calls]).astype(np.bool_)
    loading = _spans(host, rows[on_thread & names.matching(kinds.is_loader)[name]])
    blocked = intersect(_blocked(host, names, rows, calls, message, np.array(threads, np.int64)), _spans(host, calls))
    compiling = _spans(host, rows[on_thread & names.matching(kinds.is_frame_compilation)[name]])
    not_compute = join(loading, _spans(host, waits), blocked, compiling)
    parts = [(waits, _spans_of(host, waits), Kind.COMMUNICATION)]
    for thread in threads:
        top = outermost(host, rows[ops & (host.at("thread", rows) == thread)])
        spans = subtract(_spans(host, top), not_compute)
        owner = top[np.searchsorted(host["start"][top], spans.start, "right") - 1]
        parts.append((owner, spans, Kind.COMPUTE))
    # A thread that waits for the loader is not blocked on a collective that happens to be in flight.
    # Schedules post messages early and collect them late: in between they are seen where work hides them alone.
    seen = subtract(join(blocked, *(spans for _, spans, _ in parts)), loading)
    for call, posted in zip(calls.tolist(), message.tolist(), strict=True):
        whole = _spans_of(host, np.array([call]))
        spans = clip(seen, int(whole.start[0]), int(whole.end[0])) if posted else subtract(whole, loading)
        parts.append((np.full(len(spans.start), call), spans, Kind.COMMUNICATION))
    source = np.concatenate([owner for owner, _, _ in parts])
    return {
        "start": np.concatenate([spans.start for _, spans, _ in parts]),
        "end": np.concatenate([spans.end for _, spans, _ in parts]),
        "kind": np.concatenate([np.full(len(owner), kind, np.int8) for owner, _, kind in parts]),
        "name": host["name"][source],
        "launch": source,
    }


def _blocked(host: Table, names: NamePool, rows: Times, calls: Times, message: Mask, threads: Times) -> Spans:
    """Pauses of the training threads in which they wait for one of the `calls`, of which some are `message`s."""
    if not len(calls) or not len(threads):
        return EMPTY
    own = rows[among(host.at("thread", rows), threads) & (host.at("category", rows) != Category.COMMUNICATION)]
    found = pauses(host, names, own, threads)
    handing = own[names.matching(is_message_op)[host["name"][own]]]
    begin, end = host["start"][calls[message]], host["end"][calls[message]]
    # A collective runs on a thread of gloo's, which may note its end late; a message's end is that of the wait for it.
    of_messages = join(ended_by(found, end, begin, early=0), _spans(host, handing))
    return join(
        ended_by(found, distinct_values(host["end"][calls[~message]])), intersect(of_messages, union(begin, end))
    )


def _spans(host: Table, rows: Times) -> Spans:
    return union_at(host["start"], host["end"], rows)


def _spans_of(host: Table, rows: Times) -> Spans:
    """One span per row, not merged."""
    return Spans(host["start"][rows], host["end"][rows])
