"""Memory of the caching allocator: its peak by stack, fragmentation, failed requests, retries, other settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.analyzers.allocator.allocator_settings import ANY, ASCEND, SMALL_SIZE, segment_size, variable
from gpuscope.analyzers.allocator.fragmentation import Growth, free_sizes, growths, states_before, wasted
from gpuscope.analyzers.allocator.history import History, State, histories
from gpuscope.analyzers.base.analyzer import Result
from gpuscope.analyzers.base.needs import Need, any_of
from gpuscope.analyzers.base.sections import MEMORY
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.problems import allocator
from gpuscope.schema.memory_section import (
    AllocatorChangeEntry,
    AllocatorReplayEntry,
    FailureEntry,
    FragmentationEntry,
    MemoryEntry,
    MemorySample,
    RetryEntry,
)
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA, AllocatorAction
from gpuscope.trace.trace import Trace
from gpuscope.words.units import memory

if TYPE_CHECKING:
    from gpuscope.analyzers.allocator import other_settings

FAILURES_KEPT = 16
"""A job that catches the error and goes on may fail again thousands of times, in the same way."""
FREE_SHOWN = 8

Frames = Mapping[int, str]


def run(facts: RunFacts) -> Result:
    """The section `memory` and its findings; nothing for a run without snapshots or memory events."""
    from gpuscope.analyzers.allocator.memory_findings import findings

    result, trace = Result(ANALYZER.name), facts.trace
    frames = {code: trace.names[code] for code in np.unique(trace["allocator_events"]["frames"]).tolist()}
    frames |= {code: trace.names[code] for code in np.unique(trace["blocks"]["frames"]).tolist()}
    found = histories(trace)
    entries = [_entry(history, frames) for history in found]
    worst = max(range(len(entries)), key=lambda place: _trouble(entries[place]), default=None)
    if worst is not None and any(_trouble(entries[worst])) and entries[worst]["replay"] is not None:
        entries[worst]["replay"] = _replayed(found[worst], try_changes=True)
    for history in found:
        result.problem(allocator.HISTORY_INCONSISTENT, history.inconsistent, file=history.path.name)
    entries += profiled(trace)
    if entries:
        result.sections[MEMORY] = entries
        result.findings += findings(entries, alone=not facts.lanes)
    return result


def _trouble(entry: MemoryEntry) -> tuple[int, int, int]:
    """How badly another setting is needed: failed requests, retries, bytes reserved by fragmentation."""
    fragmentation = entry["fragmentation"]
    return (
        len(entry["failures"]) + entry.get("failures_left", 0),
        len(entry["retries"]),
        fragmentation["reserved_bytes"] if fragmentation else 0,
    )


def _entry(history: History, frames: Frames) -> MemoryEntry:
    from gpuscope.analyzers.allocator.peak_contents import NOTHING, contents, trains

    allocated, active, reserved = history.totals()
    peak = int(np.argmax(allocated))
    times = np.array([NA] + [event.time for event in history.events], np.int64)
    if len(times) > 1:
        times[0] = times[1]
    found = growths(history)
    failed = {growth.row: growth for growth in found if growth.event.action == AllocatorAction.OOM}
    kept = [*failed][:FAILURES_KEPT]
    failures: list[FailureEntry] = []
    held = NOTHING
    for row, state in states_before(history, [peak, *kept]):
        if row == peak:
            held = contents(history, state, frames)
        if row in kept:
            failures.append(_failure(state, failed[row], int(allocated[row]), int(reserved[row]), frames))
    return {
        "rank": history.rank,
        "rank_told": history.rank_told,
        "device": history.device,
        "path": str(history.path),
        "kind": "snapshot",
        "events": len(history.events),
        "from_start": history.from_start if history.events else None,
        "settings": history.settings_text,
        "variable": _variable(history),
        "end_allocated_bytes": int(allocated[-1]),
        "end_reserved_bytes": int(reserved[-1]),
        "peak_allocated_bytes": int(allocated[peak]),
        "peak_active_bytes": int(active.max()),
        "peak_reserved_bytes": int(reserved.max()),
        "peak_time_ns": _time(int(times[peak])),
        "at_peak": held.lines,
        "at_peak_left": held.left,
        "peak_by_kind": held.kinds,
        "trains": trains(history, frames),
        "timeline": timeline(times, allocated, reserved),
        "fragmentation": _fragmentation(found, wasted(found, int(reserved.max()), int(active.max()))),
        "failures": failures,
        "failures_left": len(failed) - len(kept),
        "retries": _retries(history),
        "replay": _replayed(history, try_changes=False) if history.events and not history.inconsistent else None,
    }


def _variable(history: History) -> str:
    if history.settings.padding:
        return ASCEND
    # A snapshot has the text that is set, but not by which variable.
    return variable(modern=history.modern, set_already=(ANY,) if history.settings_text else ())


def _fragmentation(found: Sequence[Growth], size: int) -> FragmentationEntry | None:
    own = [growth for growth in found if growth.fragmented]
    if not own:
        return None
    largest = max(own, key=lambda growth: growth.event.size)
    return {
        "requests": len(own),
        "reserved_bytes": size,
        "largest_request_bytes": largest.event.size,
        "free_bytes": largest.own_pool,
        "free_elsewhere_bytes": largest.elsewhere,
    }


def _failure(state: State, growth: Growth, allocated: int, reserved: int, frames: Frames) -> FailureEntry:
    event, free = growth.event, growth.own_pool + growth.elsewhere
    device_free = None if event.device_free == NA else event.device_free
    usable = free_sizes(state, event.stream, event.size <= SMALL_SIZE)
    largest = memory(usable[0]) if usable else "none"
    asked = f"a request of {memory(event.requested)}"
    lay = f"{memory(free)} were free in reserved blocks, the largest of its own pool {largest}"
    left = "" if device_free is None else f", and {memory(device_free)} on the device"
    if growth.fragmented:
        kind, why = "fragmentation", f"{asked} failed while {lay}{left}"
    elif device_free is not None and device_free >= segment_size(event.size):
        kind = "limit"
        why = f"{asked} failed though {memory(device_free)} were free on the device: a limit set for the process"
    elif device_free is not None and free + device_free >= event.size:
        kind = "scattered"
        why = f"{asked} failed: {lay}{left}: enough in all, but no single piece is large enough"
    else:
        kind, why = "full", f"{asked} failed: {memory(allocated)} were in use; {lay}{left}"
    return {
        "time_ns": _time(event.time),
        "requested_bytes": event.requested,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "free_bytes": free,
        "device_free_bytes": device_free,
        "free_blocks": usable[:FREE_SHOWN],
        "kind": kind,  # type: ignore[typeddict-item]
        "why": why,
        "frames": frames.get(event.frames, "").splitlines(),
    }


def _retries(history: History) -> list[RetryEntry]:
    from gpuscope.analyzers.allocator.releases import releases

    return [
        {
            "time_ns": _time(history.events[release.first].time),
            "released_bytes": release.size,
            "requested_bytes": release.requested or 0,
            "dur_ns": _time(release.time),
            "certain": release.kind == "retry",
        }
        for release in releases(history)
        if release.kind != "empty_cache"
    ]


def _replayed(history: History, *, try_changes: bool) -> AllocatorReplayEntry:
    from gpuscope.analyzers.allocator import other_settings

    found = other_settings.baseline(history)
    tried = other_settings.changes(history, found) if try_changes else []
    chosen = other_settings.best(tried, found)
    return {
        "peak_reserved_bytes": found.outcome.peak_reserved,
        "error_frac": found.error,
        "placed_frac": found.warm.placed / max(found.warm.requests, 1),
        "retries": found.outcome.retries,
        "failed": found.outcome.failed,
        "usable": not found.why_not,
        "why": found.why_not,
        "changes": [_change(change) for change in tried],
        "best": None if chosen is None else _change(chosen),
    }


def _change(change: other_settings.Change) -> AllocatorChangeEntry:
    outcome = change.outcome
    return {
        "option": change.option,
        "value": change.value,
        "peak_reserved_bytes": outcome.peak_reserved,
        "device_calls": outcome.device_calls,
        "retries": outcome.retries,
        "collections": outcome.collections,
        "failed": outcome.failed,
    }


def _time(time: int) -> int | None:
    return None if time == NA else time


ANALYZER = RunAnalyzer(
    "allocator",
    run,
    (
        Need(
            "allocator events",
            "record a snapshot (gpuscope record --memory on, torch.cuda.memory._dump_snapshot) or profile_memory",
            any_of("allocator_events", "segments", "memory_samples"),
            optional=True,
        ),
    ),
    (MEMORY,),
)


POINTS = 240
"""Of a timeline in the report: more than a terminal or a page shows."""


def timeline(times: Times, allocated: Times, reserved: Times | None) -> list[MemorySample]:
    """At most `POINTS` points: of each stretch the one with most allocated, so that no peak is lost."""
    count = len(allocated)
    edges = np.unique(np.linspace(0, count, min(count, POINTS) + 1).astype(np.int64))
    rows = [low + int(np.argmax(allocated[low:high])) for low, high in pairwise(edges.tolist())]
    return [
        {
            "time_ns": None if times[row] == NA else int(times[row]),
            "allocated_bytes": int(allocated[row]),
            "reserved_bytes": None if reserved is None or reserved[row] == NA else int(reserved[row]),
        }
        for row in rows
    ]


def profiled(trace: Trace) -> list[MemoryEntry]:
    """One entry per rank and device of which a profiler recorded memory events."""
    table, ranks = trace["memory_samples"], trace["ranks"]
    entries: list[MemoryEntry] = []
    for rank, device in sorted(set(zip(table["rank"].tolist(), table["device"].tolist(), strict=True))):
        own = table.take((table["rank"] == rank) & (table["device"] == device))
        sources = ranks["source"][ranks["rank"] == rank]
        path = trace.sources[int(sources[0])].path if len(sources) else ""
        allocated, reserved = own["allocated"], own["reserved"]
        peak = int(np.argmax(allocated))
        known = reserved[reserved != NA]
        entries.append(
            {
                "rank": rank,
                "device": device,
                "path": str(path),
                "kind": "profiler",
                "events": len(own),
                "from_start": None,
                "settings": None,
                "variable": variable(modern=False),
                "end_allocated_bytes": int(allocated[-1]),
                "end_reserved_bytes": None if reserved[-1] == NA else int(reserved[-1]),
                "peak_allocated_bytes": int(allocated[peak]),
                "peak_active_bytes": None,
                "peak_reserved_bytes": int(known.max()) if len(known) else None,
                "peak_time_ns": int(own["time"][peak]),
                "at_peak": [],
                "timeline": timeline(own["time"], allocated, reserved),
                "fragmentation": None,
                "failures": [],
                "retries": [],
                "replay": None,
            }
        )
    return entries
