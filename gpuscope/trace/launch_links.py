"""Links between a launch, the operator around it, the kernel it started and the step it belongs to."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope import native
from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Array, Mask, Table, Times, blocks, looked_up, overlapping, rows_of_rank
from gpuscope.trace.schema import NA, Category, Kind

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
