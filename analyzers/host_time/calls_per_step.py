"""What each rank's launching threads call in a judged step: blocking calls, allocations, and whether steps repeat."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Literal

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import FileAnalyzer, entries_of_devices
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.base.needs import DEVICE_EVENTS
from gpuscope.analyzers.base.sections import HOST_CALLS
from gpuscope.analyzers.host_time.blocking_sites import blocking_sites
from gpuscope.analyzers.host_time.judged_windows import Judged, judged
from gpuscope.schema.host_calls_section import HostCallsEntry
from gpuscope.trace.columns.distinct import counted
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Times, blocks, rows_of_rank, rows_where
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

DDP_FORWARD = "DistributedDataParallel.forward"
_MAPS = when_used.pattern(r"(cu|hip)Mem(Map|Create|AddressReserve)")
_FREES = when_used.pattern(r"(cuda|hip)Free(Async)?(_|$)|cuMemFree|(AscendCL@)?aclrtFree")
_ALLOCATES = when_used.pattern(
    r"(cuda|hip)Malloc(Async|FromPoolAsync|Managed)?(_|$)|cuMemAlloc(_|$|Async)|(AscendCL@)?aclrtMalloc"
)


def _of_lane(trace: Trace, view: LaneView) -> Iterator[HostCallsEntry]:
    host, names = trace["host_events"], trace.names
    steps = judged(view)
    rows = rows_of_rank(host, view.lane.rank)
    called = np.zeros(len(names) + 1, np.int64)  # the first place is that of absent names
    for piece in blocks(*rows):
        places = host["name"][piece][host["category"][piece] == Category.RUNTIME] - NO_NAME
        called += np.bincount(places, minlength=len(called))
    called = called[1:]
    allocations, frees = (_per_step(trace, rows, pattern, steps) for pattern in (_ALLOCATES, _FREES))
    kernels, repeated = _kernels(trace, view, steps)
    yield {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "runtime": _runtime(trace, called),
        "steps": len(steps),
        "steady": steps.steady,
        "kernels_per_step": kernels,
        "repeated_frac": repeated,
        "blocking_calls": blocking_sites(trace, view, steps),
        "allocations_per_step": float(allocations.mean()),
        "frees_per_step": float(frees.mean()),
        "least_allocations": int(allocations.min()),
        "least_frees": int(frees.min()),
        "maps_segments": _number(called, names.matching(lambda name: _MAPS.match(name) is not None)) > 0,
        "caches": _caches(trace, view),
        "frees_outside_per_step": _outside(trace, rows, steps),
        "passes_per_step": _passes(trace, view.lane.rank),
    }


def _runtime(trace: Trace, called: Times) -> Literal["cuda", "hip", "acl"] | None:
    """Whose runtime most calls are; `called` counts them by the code of their name."""
    counts: dict[Literal["cuda", "hip", "acl"], int] = {
        "cuda": _number(called, trace.names.matching(lambda text: text.startswith("cu"))),
        "hip": _number(called, trace.names.matching(lambda text: text.startswith("hip"))),
        "acl": _number(called, trace.names.matching(lambda text: "acl" in text)),
    }
    best = max(counts, key=lambda runtime: counts[runtime])
    return best if counts[best] else None


def _number(called: Times, wanted: Mask) -> int:
    return int(called[wanted[: len(called)]].sum())


def _calls(trace: Trace, rows: tuple[int, int], wanted: Mask) -> Times:
    """Runtime calls of wanted names among the host events between two rows."""
    host = trace["host_events"]
    if not wanted.any():
        return np.empty(0, np.int64)
    return rows_where(*rows, lambda block: wanted[host["name"][block]] & (host["category"][block] == Category.RUNTIME))


def _per_step(trace: Trace, rows: tuple[int, int], pattern: re.Pattern[str], steps: Judged) -> Times:
    """Calls of such a name in each judged step, shape (n,)."""
    wanted: Mask = trace.names.matching(lambda name: kinds.is_allocator_call(name) and bool(pattern.match(name)))
    place = steps.place(trace["host_events"]["start"][_calls(trace, rows, wanted)])
    return np.bincount(place[place != NA], minlength=len(steps)).astype(np.int64)


def _outside(trace: Trace, of_rank: tuple[int, int], steps: Judged) -> float | None:
    """Frees per judged step that no operator made; None where no operators were recorded, or some step has none."""
    host = trace["host_events"]
    rows = _calls(trace, of_rank, trace.names.matching(lambda name: _FREES.match(name) is not None))
    operators = host["category"] == Category.OP
    if not len(rows) or not operators.any():
        return None
    around = innermost(host, operators, host["thread"][rows], host["start"][rows])
    place = steps.place(host["start"][rows[around == NA]])
    counts = np.bincount(place[place != NA], minlength=len(steps))
    return float(counts.mean()) if counts.min() > 0 else None


def _passes(trace: Trace, rank: int) -> int | None:
    """Forward passes in a step of the host, which runs ahead of the device's."""
    host, steps = trace["host_events"], trace["steps"]
    code = trace.names.find(DDP_FORWARD)
    if code == NO_NAME:
        return None
    forward = host["start"][rows_where(*rows_of_rank(host, rank), lambda block: host["name"][block] == code)]
    begins = np.sort(steps["start"][steps["rank"] == rank])
    step = np.searchsorted(begins, forward, "right") - 1
    if not len(begins) or not (step >= 0).any():
        return None
    counts = np.bincount(step[step >= 0])
    return int(np.median(counts[counts > 0]))


def _kernels(trace: Trace, view: LaneView, steps: Judged) -> tuple[float, float | None]:
    """Compute kernels per judged step, and how many of a steady step's the one before it ran too."""
    device, count = trace["device_events"], 0

    def pieces() -> Iterator[tuple[Times, Times]]:
        for piece in blocks(0, len(view.rows)):
            rows = view.rows[piece]
            rows = rows[device["kind"][rows] == Kind.COMPUTE]
            place = steps.place(device["start"][rows])
            yield device["name"][rows[place != NA]] - NO_NAME, place[place != NA]

    used = np.zeros(len(trace.names) + 1, np.bool_)
    for name, _ in pieces():
        used[name] = True
        count += len(name)
    per_step = count / max(len(steps), 1)
    if not steps.steady or not count:
        return per_step, None
    width, column = int(np.count_nonzero(used)), np.cumsum(used) - 1
    table = np.zeros(len(steps) * width, np.int64)
    for name, place in pieces():
        # Of the few steps of a piece only: the table may be much larger.
        found, times = counted(place * width + column[name])
        table[found] += times
    tables = pairwise(table.reshape(len(steps), -1))
    alike = [float(np.minimum(one, other).sum() / max(one.sum(), other.sum(), 1)) for one, other in tables]
    return per_step, float(np.median(alike))


def _caches(trace: Trace, view: LaneView) -> bool | None:
    """Whether the allocator of the lane's rank reported reserved memory; None where nothing of it is recorded."""
    samples = trace["memory_samples"]
    own = np.flatnonzero((samples["rank"] == view.lane.rank) & (samples["device"] == view.lane.device))
    return bool((samples["reserved"][own] > 0).any()) if len(own) else None


ANALYZER = FileAnalyzer(
    "host_calls", entries_of_devices("host_calls", HOST_CALLS, _of_lane), (DEVICE_EVENTS,), (HOST_CALLS,)
)
