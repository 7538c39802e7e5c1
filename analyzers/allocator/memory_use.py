"""Memory of the caching allocator: its peak by stack, fragmentation, failed requests, retries, other settings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.analyzers.allocator.allocator_settings import ANY, ASCEND, SMALL_SIZE, segment_size, variable
from gpuscope.analyzers.allocator.history import GROWS, SHRINKS, Event, History, State, histories, segment_of
from gpuscope.analyzers.base.analyzer import Need, Result, any_of
from gpuscope.analyzers.base.lanes import MEMORY
from gpuscope.analyzers.facts.run_facts import RunAnalyzer, RunFacts
from gpuscope.problems import job
from gpuscope.schema.memory_section import (
    AllocatorChangeEntry,
    AllocatorReplayEntry,
    FailureEntry,
    FragmentationEntry,
    HeldEntry,
    HeldLeft,
    KindEntry,
    MemoryEntry,
    MemorySample,
    RetryEntry,
)
from gpuscope.trace.frameworks import StackKind, kind_of, own_line, within_attention
from gpuscope.trace.schema import NA, AllocatorAction
from gpuscope.trace.table import Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words.units import memory

if TYPE_CHECKING:
    from gpuscope.analyzers.allocator import allocator_replay


# Segments that were allocated, or requests that failed, while enough free bytes lay in blocks they could not use.
#
# A cache that is large after a peak is none of this: its blocks would be used if anything asked for them.


@dataclass(frozen=True)
class Growth:
    """A request for which memory came from the device, or that failed, and what was free beforehand."""

    row: int
    event: Event
    """The request: an `alloc`, or an `oom`."""
    gained: int
    """Bytes that came from the device; 0 where the request failed."""
    own_pool: int
    """Free bytes in blocks for the same stream and pool, each too small (or kept whole by max_split_size)."""
    elsewhere: int
    """Free bytes in blocks for other streams or for the other pool (requests of at most 1 MiB have their own)."""

    @property
    def fragmented(self) -> bool:
        """Whether enough was free."""
        return self.own_pool + self.elsewhere >= self.event.size


def growths(history: History) -> list[Growth]:
    """Every growth and failure, in order."""
    found: list[Growth] = []
    free: dict[tuple[int, bool], int] = defaultdict(int)
    for segment in history.before.segments.values():
        free[segment.stream, segment.small] += segment.size
    for held in history.before.held.values():
        free[held.stream, history.settings.round(held.requested) <= SMALL_SIZE] -= held.size
    gained, first, before = 0, 0, dict(free)
    for row, event in enumerate(history.events):
        key = (event.stream, history.settings.round(event.requested) <= SMALL_SIZE)
        if event.action in GROWS:
            if not gained:
                before, first = dict(free), event.address
            gained += event.requested
            free[event.stream, _small_segment(event)] += event.requested
        elif event.action in SHRINKS:
            free[event.stream, _small_segment(event)] -= event.requested
        elif event.action == AllocatorAction.ALLOC:
            if gained:
                # New pages extend the free block before them: then that was of use.
                before[key] = before.get(key, 0) - min(max(first - event.address, 0), event.size)
                found.append(_growth(row, event, gained, before, key))
            gained = 0
            free[key] -= event.size
        elif event.action == AllocatorAction.FREE_COMPLETED:
            free[key] += event.size
        elif event.action == AllocatorAction.OOM:
            asked = event._replace(size=history.settings.round(event.requested))
            found.append(_growth(row, asked, 0, dict(free), key))
            gained = 0
    return found


def _small_segment(event: Event) -> bool:
    return segment_of(event).small


def _growth(row: int, event: Event, gained: int, free: dict[tuple[int, bool], int], key: tuple[int, bool]) -> Growth:
    own = free.get(key, 0)
    return Growth(row, event, gained, own, sum(free.values()) - own)


def wasted(found: Sequence[Growth], peak_reserved: int, peak_active: int) -> int:
    """Bytes reserved that free blocks could have served, had they lain together: at most what the peak of
    reserved memory exceeds the peak of memory in use."""
    return min(sum(growth.gained for growth in found if growth.fragmented), peak_reserved - peak_active)


def states_before(history: History, rows: Collection[int]) -> Iterator[tuple[int, State]]:
    """Each of these events (or the end) with the segments and blocks just before it: one State, which moves on."""
    wanted, state = set(rows), history.before.copy()
    for row, event in enumerate(history.events):
        if row in wanted:
            yield row, state
        state.apply(event)
    if len(history.events) in wanted:
        yield len(history.events), state


def free_sizes(state: State, stream: int, small: bool) -> list[int]:
    """Sizes of the free blocks that a request for a stream and pool may use, the largest first."""
    blocks = (size for _, size, segment in state.free_blocks() if (segment.stream, segment.small) == (stream, small))
    return sorted(blocks, reverse=True)


# What was in use at a moment, by the user's own line and by what kind of work allocated it.

LINES_KEPT = 12
CAST = (1, 2, 4)
"""Halves of what a softmax within attention allocated that other matrices of its elements take: products before it,
casts and dropout behind it. Where a sequence is longer than twice a head's size nothing else in there is as large."""
_OF_TRAINING = (
    StackKind.BACKWARD,
    StackKind.GRADIENTS,
    StackKind.OPTIMIZER,
    StackKind.OPTIMIZER_TEMPORARIES,
    StackKind.CHECKPOINTED,
)


@dataclass
class _Line:
    """What one line of the user's allocated."""

    bytes: int = 0
    blocks: int = 0
    stacks: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    """Bytes by stack."""
    kinds: dict[StackKind, int] = field(default_factory=lambda: defaultdict(int))
    """The same by kind."""


@dataclass(frozen=True)
class Contents:
    """Memory in use at one moment."""

    lines: list[HeldEntry]
    left: HeldLeft
    kinds: list[KindEntry]


NOTHING = Contents([], {"lines": 0, "blocks": 0, "bytes": 0}, [])


def contents(history: History, state: State, frames: Mapping[int, str]) -> Contents:
    """What was in use in `state`, by line and by kind, the most bytes first; what both leave out is told."""
    began = {address for address, held in history.before.held.items() if state.held.get(address) == held}
    lines: dict[tuple[str, bool], _Line] = defaultdict(_Line)
    kinds: dict[StackKind, list[int]] = defaultdict(lambda: [0, 0])
    stacks = {held.frames: frames.get(held.frames, "").splitlines() for held in state.held.values()}
    read = {code: (own_line(stack), kind_of(stack)) for code, stack in stacks.items()}
    attending = {
        code for code, stack in stacks.items() if read[code][1] is StackKind.FORWARD and within_attention(stack)
    }
    softmax = (held.size for held in state.held.values() if read[held.frames][1] is StackKind.ATTENTION_SCORES)
    as_scores = {size * part // 2 for size in softmax for part in CAST}
    for address, held in state.held.items():
        if held.awaiting:
            continue
        line, kind = read[held.frames]
        if held.frames in attending and held.size in as_scores:
            kind = StackKind.ATTENTION_SCORES
        early = address in began
        own = lines[line, early]
        own.bytes += held.size
        own.blocks += 1
        own.stacks[held.frames] += held.size
        kind = StackKind.BEFORE if early and kind is StackKind.NO_STACK else kind
        own.kinds[kind] += held.size
        of_kind = kinds[kind]
        of_kind[0] += held.size
        of_kind[1] += 1
    ordered = sorted(lines.items(), key=lambda item: -item[1].bytes)
    left = [own for _, own in ordered[LINES_KEPT:]]
    return Contents(
        [_peak_contents_entry(line, early, own, frames) for (line, early), own in ordered[:LINES_KEPT]],
        {"lines": len(left), "blocks": sum(own.blocks for own in left), "bytes": sum(own.bytes for own in left)},
        [
            {"kind": kind.value, "bytes": size, "blocks": blocks}
            for kind, (size, blocks) in sorted(kinds.items(), key=lambda item: -item[1][0])
        ],
    )


def _peak_contents_entry(line: str, early: bool, own: _Line, frames: Mapping[int, str]) -> HeldEntry:
    largest = max(own.stacks, key=lambda code: own.stacks[code])
    stack = frames.get(largest, "").splitlines()
    return {
        "bytes": own.bytes,
        "blocks": own.blocks,
        "line": line,
        "stacks": len(own.stacks),
        "kind": max(own.kinds, key=lambda kind: own.kinds[kind]).value,
        "frames": stack,
        "before_recording": early,
    }


def trains(history: History, frames: Mapping[int, str]) -> bool:
    """Whether the recording shows training: an allocation of the backward pass or of an optimizer, or one without a
    stack, as the thread of the backward pass has none where C++ frames are not recorded."""
    codes = {event.frames for event in history.events if event.action == AllocatorAction.ALLOC}
    stacks = [frames.get(code, "").splitlines() for code in codes]
    some = any(stacks)
    return any(kind_of(stack) in _OF_TRAINING or (some and not stack) for stack in stacks)


FAILURES_KEPT = 16
"""A job that catches the error and goes on may fail again thousands of times, in the same way."""
FREE_SHOWN = 8

Frames = Mapping[int, str]


def run(facts: RunFacts) -> Result:
    """The section `memory` and its findings; nothing for a run without snapshots or memory events."""
    from gpuscope.analyzers.allocator.history import findings

    result, trace = Result(ANALYZER.name), facts.trace
    frames = {code: trace.names[code] for code in np.unique(trace["allocator_events"]["frames"]).tolist()}
    frames |= {code: trace.names[code] for code in np.unique(trace["blocks"]["frames"]).tolist()}
    found = histories(trace)
    entries = [_entry(history, frames) for history in found]
    worst = max(range(len(entries)), key=lambda place: _trouble(entries[place]), default=None)
    if worst is not None and any(_trouble(entries[worst])) and entries[worst]["replay"] is not None:
        entries[worst]["replay"] = _replayed(found[worst], try_changes=True)
    for history in found:
        result.problem(job.HISTORY_INCONSISTENT, history.inconsistent, file=history.path.name)
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
    from gpuscope.analyzers.allocator.allocator_replay import releases

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
    from gpuscope.analyzers.allocator import allocator_replay

    found = allocator_replay.baseline(history)
    tried = allocator_replay.changes(history, found) if try_changes else []
    chosen = allocator_replay.best(tried, found)
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


def _change(change: allocator_replay.Change) -> AllocatorChangeEntry:
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
