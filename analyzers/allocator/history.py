"""What one device's allocator did, from a snapshot's tables: the state at the beginning, and each event.

A snapshot holds the state at its end; the state at the beginning follows by going through the events backwards.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from gpuscope.analyzers.allocator.allocator_settings import (
    ANY,
    ASCEND_PADDING,
    FROM_2_9,
    LARGE_BUFFER,
    SMALL_BUFFER,
    SMALL_SIZE,
    Settings,
    from_snapshot,
)
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.catalogue.finding import Severity, made
from gpuscope.catalogue.findings.memory import AllocatorRetries, Fragmentation, MemoryPeak, OutOfMemory
from gpuscope.report.view import report_rows
from gpuscope.schema.document import Evidence, FindingEntry
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, AllocatorAction, BlockState
from gpuscope.trace.table import Table, Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words.units import memory

# Findings of the section `memory`.

EVIDENCE = 8


def findings(entries: Sequence[MemoryEntry], *, alone: bool = False) -> list[FindingEntry]:
    """Failed requests, retries and fragmentation over all snapshots; what two snapshots both hold, once. Where they are
    `alone`, without a trace, also what holds memory at the peak."""
    found = [_failed(entries), _retried(entries), _fragmented(entries), _peak(entries) if alone else None]
    return [finding for finding in found if finding is not None]


def _peak(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    """What holds memory at the peak, told of the snapshot to speak of first; the largest lines of each as evidence."""
    first = report_rows.leading(entries)
    if first is None:
        return None
    whose = report_rows.label(first) if len(entries) > 1 else ""
    ordered = sorted((one for one in entries if one["kind"] == "snapshot"), key=lambda one: one is not first)
    each = max(EVIDENCE // max(len(ordered), 1), 1)
    evidence = [
        _evidence(
            one,
            one["peak_time_ns"],
            0,
            f"{memory(held['bytes'])}: {report_rows.short_where(held)}",
            report_rows.label(one),
        )
        for one in ordered
        for held in one["at_peak"][:each]
    ]
    ranks = {one["rank"] for one in ordered if one.get("rank_told", True)}
    return made(MemoryPeak(report_rows.peak_sentence(first), whose), ranks=ranks, evidence=evidence[:EVIDENCE])


def _failed(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    seen: dict[tuple[int, str, int, int | None, int], Evidence] = {}
    whys: dict[str, None] = {}
    kinds: set[str] = set()
    left = sum(entry.get("failures_left", 0) for entry in entries)
    for entry in entries:
        for failure in entry["failures"]:
            key = (*_whose(entry), failure["time_ns"], failure["requested_bytes"])
            where = failure["frames"][0] if failure["frames"] else "no stack recorded"
            seen[key] = _evidence(
                entry, failure["time_ns"], 0, f"request of {memory(failure['requested_bytes'])}", where
            )
            whys[failure["why"]] = None
            kinds.add(failure["kind"])
    if not seen:
        return None
    words = OutOfMemory(len(seen) + left, sorted(kinds), next(iter(whys)))
    evidence = list(seen.values())
    return made(words, ranks=_ranks(entries, evidence), evidence=evidence[:EVIDENCE])


def _retried(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    seen: dict[tuple[int, str, int, int | None, int], Evidence] = {}
    certain, spent = 0, 0
    for entry in entries:
        for retry in entry["retries"]:
            key = (*_whose(entry), retry["time_ns"], retry["released_bytes"])
            if key not in seen:
                certain += retry["certain"]
                spent += retry["dur_ns"] or 0
            name = f"{memory(retry['released_bytes'])} released for a request of {memory(retry['requested_bytes'])}"
            note = "" if retry["certain"] else "or a call of empty_cache: no stack was recorded"
            seen[key] = _evidence(entry, retry["time_ns"], retry["dur_ns"] or 0, name, note)
    if not seen:
        return None
    evidence = list(seen.values())
    return made(
        AllocatorRetries(len(seen), certain, spent),
        ranks=_ranks(entries, evidence),
        evidence=evidence[:EVIDENCE],
        severity="medium" if certain else "low",
    )


def _fragmented(entries: Sequence[MemoryEntry]) -> FindingEntry | None:
    worst: dict[tuple[int, str, int], MemoryEntry] = {}
    for entry in entries:
        if _share(entry) >= MIN_SHARE:
            key = _whose(entry)
            worst[key] = max(worst.get(key, entry), entry, key=_share)
    if not worst:
        return None
    entry = max(worst.values(), key=_share)
    fragmentation = entry["fragmentation"]
    assert fragmentation is not None  # _share is 0 without
    words = Fragmentation(
        _share(entry),
        fragmentation["reserved_bytes"],
        entry["peak_reserved_bytes"] or 0,
        fragmentation["requests"],
        fragmentation["largest_request_bytes"],
        fragmentation["free_bytes"],
        fragmentation["free_elsewhere_bytes"],
    )
    pressed = any(one["failures"] or one["retries"] for one in worst.values())
    severity: Severity = "medium" if pressed else "low"
    if any(failure["kind"] == "fragmentation" for one in worst.values() for failure in one["failures"]):
        severity = "high"
    evidence = [
        _evidence(
            one, one["peak_time_ns"], 0, f"peak of {memory(one['peak_allocated_bytes'])} in use", Path(one["path"]).name
        )
        for one in worst.values()
    ]
    return made(words, ranks=_ranks(entries, evidence), evidence=evidence[:EVIDENCE], severity=severity)


def _whose(entry: MemoryEntry) -> tuple[int, str, int]:
    """Whose memory it is: a rank's, of which several snapshots may tell the same, or a file's of its own."""
    return entry["rank"], "" if entry.get("rank_told", True) else entry["path"], entry["device"]


def _share(entry: MemoryEntry) -> float:
    fragmentation, peak = entry["fragmentation"], entry["peak_reserved_bytes"]
    return fragmentation["reserved_bytes"] / peak if fragmentation and peak else 0.0


def _evidence(entry: MemoryEntry, time: int | None, dur: int, name: str, note: str) -> Evidence:
    return {"rank": entry["rank"], "start_ns": time or 0, "dur_ns": dur, "name": name, "note": note}


def _ranks(entries: Sequence[MemoryEntry], evidence: Sequence[Evidence]) -> list[int]:
    """The ranks of the evidence, as far as anything tells the ranks of the files."""
    told = {entry["rank"] for entry in entries if entry.get("rank_told", True)}
    return sorted({one["rank"] for one in evidence} & told)


GROWS = (AllocatorAction.SEGMENT_ALLOC, AllocatorAction.SEGMENT_MAP)
SHRINKS = (AllocatorAction.SEGMENT_FREE, AllocatorAction.SEGMENT_UNMAP)


class Event(NamedTuple):
    """A row of `allocator_events`; `size` is that of the block, where `requested` is what was asked for."""

    action: AllocatorAction
    address: int
    requested: int
    stream: int
    time: int
    device_free: int
    frames: int
    size: int = 0


@dataclass(slots=True)
class Held:
    """A block in use."""

    size: int
    requested: int
    stream: int
    frames: int
    awaiting: bool = False
    """Freed, but in use on another stream."""
    exact: bool = True
    """False where the size is what the request rounds to: a remainder of up to 1 MiB may belong to it."""


@dataclass(slots=True)
class Segment:
    """Memory from the device: a cudaMalloc, or mapped pages of an expandable segment."""

    size: int
    stream: int
    small: bool
    expandable: bool = False
    private: int = NO_NAME

    @property
    def key(self) -> tuple[int, int, bool]:
        """Stream, private pool, small: whose requests it serves."""
        return self.stream, self.private, self.small


@dataclass
class State:
    """Segments and blocks in use by address."""

    segments: dict[int, Segment] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)

    def copy(self) -> State:
        """A copy that can be changed."""
        return State(
            {at: copy(segment) for at, segment in self.segments.items()}, {at: copy(h) for at, h in self.held.items()}
        )

    def add(self, address: int, segment: Segment) -> None:
        """Memory gained from the device."""
        self.segments[address] = segment

    def cut(self, address: int, size: int) -> bool:
        """Memory given back: a whole segment, or pages of an expandable one. False where it was not held."""
        own = self.segments.get(address)
        if own is not None and own.size == size:
            del self.segments[address]
            return True
        end, removed = address + size, 0
        for at, segment in list(self.segments.items()):
            low, high = max(at, address), min(at + segment.size, end)
            if not segment.expandable or low >= high:
                continue
            removed += high - low
            del self.segments[at]
            for first, last in ((at, low), (high, at + segment.size)):
                if first < last:
                    rest = copy(segment)
                    rest.size = last - first
                    self.segments[first] = rest
        return removed == size

    def apply(self, event: Event) -> None:
        """Go one event forward."""
        match event.action:
            case AllocatorAction.ALLOC:
                self.held[event.address] = Held(event.size, event.requested, event.stream, event.frames)
            case AllocatorAction.FREE_REQUESTED:
                if event.address in self.held:
                    self.held[event.address].awaiting = True
            case AllocatorAction.FREE_COMPLETED:
                self.held.pop(event.address, None)
            case AllocatorAction.SEGMENT_ALLOC | AllocatorAction.SEGMENT_MAP:
                self.add(event.address, segment_of(event))
            case AllocatorAction.SEGMENT_FREE | AllocatorAction.SEGMENT_UNMAP:
                self.cut(event.address, event.requested)
            case _:
                pass

    def free_blocks(self) -> Iterator[tuple[int, int, Segment]]:
        """Address and size of each free stretch, with the segment it begins in; pages beside each other are one."""
        held = sorted(self.held)
        for start, end, segment in self._stretches():
            at = start
            for address in held[bisect_right(held, start - 1) : bisect_right(held, end - 1)]:
                if address > at:
                    yield at, address - at, segment
                at = max(at, address + self.held[address].size)
            if at < end:
                yield at, end - at, segment

    def _stretches(self) -> Iterator[tuple[int, int, Segment]]:
        pending: tuple[int, int, Segment] | None = None
        for at, segment in sorted(self.segments.items()):
            if (
                pending is not None
                and segment.expandable
                and pending[2].expandable
                and pending[1] == at
                and pending[2].key == segment.key
            ):
                pending = (pending[0], at + segment.size, pending[2])
                continue
            if pending is not None:
                yield pending
            pending = (at, at + segment.size, segment)
        if pending is not None:
            yield pending


@dataclass
class History:
    """One device of one snapshot."""

    rank: int
    rank_told: bool
    """False where nothing tells the snapshot's rank, which is then taken to be 0."""
    device: int
    path: Path
    settings: Settings
    settings_text: str | None
    """The variable as recorded in the snapshot; None where it is not."""
    modern: bool
    """Whether the PyTorch that wrote it knows PYTORCH_ALLOC_CONF."""
    events: list[Event]
    before: State
    after: State
    inconsistent: int
    """Events that contradict the state they were found in."""
    frames: dict[int, str] = field(default_factory=dict)
    """Stacks by their code."""

    @property
    def from_start(self) -> bool:
        """Whether the allocator held nothing when the recording began."""
        return not self.before.segments

    def totals(self) -> tuple[Times, Times, Times]:
        """Bytes allocated, active (allocated or awaiting free) and reserved: before the first event and after each."""
        grows, shrinks = {int(a) for a in GROWS}, {int(a) for a in SHRINKS}
        allocated, active, reserved = (np.zeros(len(self.events) + 1, np.int64) for _ in range(3))
        allocated[0] = sum(held.size for held in self.before.held.values() if not held.awaiting)
        active[0] = sum(held.size for held in self.before.held.values())
        reserved[0] = sum(segment.size for segment in self.before.segments.values())
        for row, event in enumerate(self.events, 1):
            if event.action == AllocatorAction.ALLOC:
                allocated[row] = active[row] = event.size
            elif event.action == AllocatorAction.FREE_REQUESTED:
                allocated[row] = -event.size
            elif event.action == AllocatorAction.FREE_COMPLETED:
                active[row] = -event.size
            elif event.action in grows:
                reserved[row] = event.requested
            elif event.action in shrinks:
                reserved[row] = -event.requested
        return np.cumsum(allocated), np.cumsum(active), np.cumsum(reserved)


def segment_of(event: Event) -> Segment:
    """The segment an event adds or takes away. Small ones are 2 MiB, of mapped pages less than a large page."""
    expandable = event.action in (AllocatorAction.SEGMENT_MAP, AllocatorAction.SEGMENT_UNMAP)
    small = event.requested < LARGE_BUFFER if expandable else event.requested == SMALL_BUFFER
    return Segment(event.requested, event.stream, small, expandable)


def histories(trace: Trace) -> list[History]:
    """One per snapshot and device that holds memory or has events."""
    table, segments = trace["allocator_events"], trace["segments"]
    keys = {
        (int(source), int(device))
        for part in (table, segments)
        for source, device in zip(part["source"], part["device"], strict=True)
    }
    return [_history(trace, source, device) for source, device in sorted(keys)]


def _history(trace: Trace, source: int, device: int) -> History:
    table, segments = trace["allocator_events"], trace["segments"]
    rows = np.flatnonzero((table["source"] == source) & (table["device"] == device))
    own = np.flatnonzero((segments["source"] == source) & (segments["device"] == device))
    recorded = trace.sources[source].facts.get("allocator_settings")
    text = recorded.get(ANY, recorded.get(FROM_2_9)) if recorded else None
    after = _final(trace, own)
    settings = from_snapshot(recorded)
    if any(segments["expandable"][own]) and not recorded:
        settings = Settings(expandable=True)
    settings = _padded(settings, after)
    rank = int(table["rank"][rows[0]] if len(rows) else segments["rank"][own[0]])
    events, before, wrong = _backwards(_events(table, rows), after, settings)
    wrong += _overlapping(after) + (_overlapping(before) if not wrong else 0)
    told = trace.sources[source].facts.get("rank_told") is not False
    return History(
        rank,
        told,
        device,
        trace.sources[source].path,
        settings,
        text if isinstance(text, str) else None,
        # PYTORCH_ALLOC_CONF came with 2.9, as did this setting.
        recorded is not None and "graph_capture_record_stream_reuse" in recorded,
        events,
        before,
        after,
        wrong,
        {code: trace.names[code] for code in np.unique(table["frames"][rows]).tolist() if code != NO_NAME},
    )


def _overlapping(state: State) -> int:
    """Segments that lie within each other, and blocks that do or lie in no segment."""
    mapped = sorted((at, at + segment.size) for at, segment in state.segments.items())
    held = sorted((at, at + held.size) for at, held in state.held.items())
    wrong = sum(first[1] > second[0] for spans in (mapped, held) for first, second in pairwise(spans))
    starts = [start for start, _ in mapped]
    for start, _ in held:
        at = bisect_right(starts, start) - 1
        wrong += at < 0 or start >= mapped[at][1]
    return wrong


def _events(table: Table, rows: Times) -> list[Event]:
    columns = ("action", "address", "bytes", "stream", "time", "device_free", "frames")
    values = zip(*(table[column][rows].tolist() for column in columns), strict=True)
    return [Event(AllocatorAction(action), *rest) for action, *rest in values]


def _final(trace: Trace, own: Times) -> State:
    segments, blocks = trace["segments"], trace["blocks"]
    state = State()
    streams: dict[int, int] = {}
    for row in own.tolist():
        state.add(
            int(segments["address"][row]),
            Segment(
                int(segments["bytes"][row]),
                int(segments["stream"][row]),
                bool(segments["small"][row]),
                bool(segments["expandable"][row]),
                int(segments["private_pool"][row]),
            ),
        )
        streams[row] = int(segments["stream"][row])
    used = np.flatnonzero((blocks["state"] != BlockState.INACTIVE) & np.isin(blocks["segment"], own))
    columns = ("address", "bytes", "requested", "segment", "frames", "state")
    for address, size, asked, row, frames, kind in zip(*(blocks[c][used].tolist() for c in columns), strict=True):
        requested = size if asked == NA else asked
        state.held[address] = Held(size, requested, streams[row], frames, kind == BlockState.AWAITING_FREE)
    return state


def _padded(settings: Settings, state: State) -> Settings:
    """With Ascend's padding, where that explains the sizes of blocks better than without."""
    padded = Settings(**{**vars(settings), "padding": ASCEND_PADDING})
    sizes = [(held.size, held.requested) for held in state.held.values()]

    def explained(candidate: Settings) -> int:
        return sum(size == candidate.round(requested) for size, requested in sizes)

    return padded if explained(padded) > explained(settings) else settings


def _backwards(events: list[Event], after: State, settings: Settings) -> tuple[list[Event], State, int]:
    """The events with the sizes of their blocks, the state before them, and how many contradict it."""
    state, wrong = after.copy(), 0
    sized: list[Event] = []
    for event in reversed(events):
        size = event.requested
        match event.action:
            case AllocatorAction.ALLOC:
                held = state.held.pop(event.address, None)
                wrong += held is None
                size = settings.round(event.requested) if held is None else held.size
            case AllocatorAction.FREE_COMPLETED:
                wrong += event.address in state.held
                size = settings.round(event.requested)
                state.held[event.address] = Held(size, event.requested, event.stream, NO_NAME, True, exact=False)
            case AllocatorAction.FREE_REQUESTED:
                held = state.held.get(event.address)
                wrong += held is None
                size = settings.round(event.requested) if held is None else held.size
                if held is not None:
                    held.awaiting = False
            case AllocatorAction.SEGMENT_ALLOC | AllocatorAction.SEGMENT_MAP:
                wrong += not state.cut(event.address, event.requested)
            case AllocatorAction.SEGMENT_FREE | AllocatorAction.SEGMENT_UNMAP:
                state.add(event.address, segment_of(event))
            case _:
                pass
        sized.append(event._replace(size=size))
    return _widened(sized[::-1], state, settings), state, wrong


def _widened(events: list[Event], state: State, settings: Settings) -> list[Event]:
    """A block whose size is only known by rounding also has the remainder that was too small to be split off:
    blocks of the large pool are larger than 1 MiB, so a smaller gap behind one is no free block."""
    if settings.expandable:
        return events
    ends = {at + held.size: at for at, held in state.held.items() if not held.exact}
    for address, gap, segment in list(state.free_blocks()):
        at = ends.get(address)
        if at is not None and gap <= SMALL_SIZE and not segment.small and not segment.expandable:
            state.held[at].size += gap
    sizes = {at: held.size for at, held in state.held.items()}
    found: list[Event] = []
    for event in events:
        if event.action in (AllocatorAction.FREE_REQUESTED, AllocatorAction.FREE_COMPLETED):
            completed = event.action == AllocatorAction.FREE_COMPLETED
            size = sizes.pop(event.address, None) if completed else sizes.get(event.address)
            event = event if size is None else event._replace(size=size)
        found.append(event)
    return found
