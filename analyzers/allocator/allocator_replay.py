"""Replays a recorded history through the model: what would have been reserved under a setting."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from itertools import pairwise
from typing import Literal

from gpuscope.analyzers.allocator.allocator_settings import Settings, changed, segment_size
from gpuscope.analyzers.allocator.caching_allocator import ADDRESS_SPACE, Allocator, Block, Key, Pool
from gpuscope.analyzers.allocator.history import GROWS, SHRINKS, Event, History, State
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, AllocatorAction
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Memory given back to the device: by a retry inside a request, by `empty_cache`, or by something not recorded.
#
# The history has no event for a retry. A request that cudaMalloc refuses gives cached segments back and asks again:
# segments are freed, and the next event is a new segment or the failure. `empty_cache` looks the same where a
# request that needs a segment follows it; then stacks decide, or whether the request would have fitted beforehand.


@dataclass(frozen=True)
class Release:
    """A run of segments given back, and what followed."""

    first: int
    """Row of its first event."""
    last: int
    size: int
    kind: Literal["retry", "empty_cache", "unknown"]
    requested: int | None
    """Bytes that the request asked the device for; None where none followed."""
    time: int
    """ns from the first segment freed to what followed; `NA` where no times were recorded."""


def releases(history: History) -> list[Release]:
    """Every release of a history, in order."""
    limit = capacity(history)
    return [_release(history, first, last, reserved, limit) for first, last, reserved in _runs(history)]


def capacity(history: History) -> int | None:
    """Bytes the allocator could reserve at most: what it held when a request failed and what was then free.

    None where no request failed, or where more was free than asked for (a fraction set for the process).
    """
    found: list[int] = []
    for reserved, event in _reserved(history):
        if event.action == AllocatorAction.OOM and event.device_free != NA:
            refused = segment_size(history.settings.round(event.requested))
            if event.device_free < refused:
                found.append(reserved + event.device_free)
    return max(found, default=None)


def _reserved(history: History) -> Iterator[tuple[int, Event]]:
    """Each event and the bytes reserved before it."""
    reserved = sum(segment.size for segment in history.before.segments.values())
    for event in history.events:
        yield reserved, event
        if event.action in GROWS:
            reserved += event.requested
        elif event.action in SHRINKS:
            reserved -= event.requested


def _runs(history: History) -> Iterator[tuple[int, int, int]]:
    """First and last row of each run of frees, and what was reserved before it."""
    first: int | None = None
    before = 0
    for row, (reserved, event) in enumerate(_reserved(history)):
        if event.action in SHRINKS:
            if first is None:
                first, before = row, reserved
        elif first is not None:
            yield first, row - 1, before
            first = None
    if first is not None:
        yield first, len(history.events) - 1, before


def _release(history: History, first: int, last: int, reserved: int, limit: int | None) -> Release:
    events = history.events
    size = sum(event.requested for event in events[first : last + 1])
    following = events[last + 1] if last + 1 < len(events) else None
    inside = following is not None and following.action in (*GROWS, AllocatorAction.OOM)
    if following is None or not inside:
        return Release(first, last, size, "empty_cache", None, NA)
    stack = history.frames.get(events[first].frames, "")
    asked = following.requested
    kind: Literal["retry", "empty_cache", "unknown"] = "unknown"
    if following.action == AllocatorAction.OOM:
        kind = "retry"
    elif stack:
        kind = "empty_cache" if "empty_cache" in stack or "emptyCache" in stack else "retry"
    elif limit is not None:
        kind = "retry" if reserved + asked > limit else "empty_cache"
    times = (events[first].time, following.time)
    return Release(first, last, size, kind, asked, NA if NA in times else times[1] - times[0])


ALLOC, FREE_REQUESTED = AllocatorAction.ALLOC, AllocatorAction.FREE_REQUESTED
FREE_COMPLETED = AllocatorAction.FREE_COMPLETED
"""Named once: hundreds of thousands of events are compared with them."""


@dataclass(frozen=True)
class Outcome:
    """What a replay needed, in bytes and counts."""

    peak_reserved: int
    device_calls: int
    """cudaMalloc and cuMemMap calls."""
    retries: int
    collections: int
    """Times that garbage was given back: by cudaFree, which waits for the device as in a retry."""
    failed: int
    """Requests that found no memory."""
    served: int
    """Requests that failed when recorded and now did not."""
    placed: int
    """Requests that got the recorded address."""
    requests: int


@dataclass
class _Places:
    """Addresses that cudaMalloc gave when recorded, by size: the model takes them where it asks for the same."""

    allocator: Allocator | None = None
    recorded: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, size: int) -> int:
        if self.recorded[size]:
            return self.recorded[size].pop()
        assert self.allocator is not None
        return self.allocator.anywhere(size)


def replay(history: History, settings: Settings, limit: int | None = None, empty: bool = False) -> Outcome:
    """Replay `history` under `settings` with at most `limit` bytes reserved.

    It begins with the recorded state, or `empty`: with an empty cache into which the blocks in use at the
    beginning are allocated anew, in order of address (how they came there was not recorded).
    """
    return _Replay(history, settings, limit, empty).run()


class _Replay:
    def __init__(self, history: History, settings: Settings, limit: int | None, empty: bool) -> None:
        self.history = history
        self.places = _Places()
        self.allocator = Allocator(settings, limit, self.places)
        self.places.allocator = self.allocator
        self.allocator.keep_clear_of(max((event.address for event in history.events), default=0))
        self.allocator.keep_clear_of(max(history.before.segments, default=0))
        self.live: dict[int, Block] = {}
        self.failed = self.served = self.placed = self.requests = 0
        shrinks = any(event.action in SHRINKS for event in history.events)
        self.emptied = {one.first for one in releases(history) if one.kind != "retry"} if shrinks else set()
        self.private = sorted(
            (at, at + segment.size, segment.private)
            for at, segment in history.after.segments.items()
            if segment.private != NO_NAME
        )
        if empty:
            self._seed(history.before)
        else:
            load(self.allocator, history.before, self.live)
        self.allocator.peak = self.allocator.reserved

    def run(self) -> Outcome:
        for row, event in enumerate(self.history.events):
            self._step(row, event)
        allocator = self.allocator
        return Outcome(
            allocator.peak,
            allocator.device_calls,
            allocator.retries,
            allocator.collections,
            self.failed,
            self.served,
            self.placed,
            self.requests,
        )

    def _step(self, row: int, event: Event) -> None:
        action = event.action
        if action is ALLOC:
            self._alloc(event)
        elif action is FREE_REQUESTED:
            return  # what counts is when it is free for reuse
        elif action is FREE_COMPLETED:
            block = self.live.pop(event.address, None)
            if block is not None:
                self.allocator.free(block)
        elif action == AllocatorAction.OOM:
            block = self.allocator.malloc(event.requested, self._key(event))
            if block is None:
                self.failed += 1
            else:  # the program went on without it
                self.served += 1
                self.allocator.free(block)
        elif action in SHRINKS and row in self.emptied:
            self.allocator.empty_cache()
        elif action == AllocatorAction.SEGMENT_ALLOC:
            self.places.recorded[event.requested].append(event.address)

    def _alloc(self, event: Event) -> None:
        block = self.allocator.malloc(event.requested, self._key(event))
        self.requests += 1
        if block is None:
            self.failed += 1
            return
        self.placed += block.address == event.address
        self.live[event.address] = block

    def _key(self, event: Event) -> Key:
        if not self.private:
            return event.stream, NO_NAME
        inside = (private for start, end, private in self.private if start <= event.address < end)
        return event.stream, next(inside, NO_NAME)

    def _seed(self, state: State) -> None:
        starts = sorted(state.segments.items())
        private = {at: segment.private for at, segment in starts}
        for address, held in sorted(state.held.items()):
            pool = next((private[at] for at, s in reversed(starts) if at <= address < at + s.size), NO_NAME)
            block = self.allocator.malloc(held.requested, (held.stream, pool))
            if block is None:
                self.failed += 1
            else:
                self.live[address] = block


def load(allocator: Allocator, state: State, live: dict[int, Block]) -> None:
    """Put the recorded segments and blocks into an allocator; `live` gets the blocks in use by address."""
    chains: dict[tuple[Key, bool], list[int]] = defaultdict(list)
    held = sorted(state.held)
    for address, segment in sorted(state.segments.items()):
        key = (segment.stream, segment.private)
        if segment.expandable:
            chains[key, segment.small].append(address)
            continue
        pool = allocator.pool(key, segment.small)
        _link(_pieces(state, held, address, segment.size, pool, None), live)
        allocator.reserved += segment.size
    for (key, small), addresses in chains.items():
        pool, base = allocator.pool(key, small), addresses[0]
        blocks: list[Block] = []
        at = base
        for address in addresses:
            if address > at:
                blocks.append(Block(at, address - at, pool, mapped=False, expandable=base))
            size = state.segments[address].size
            blocks += _pieces(state, held, address, size, pool, base)
            at = max(blocks[-1].address + blocks[-1].size, address + size)
            allocator.reserved += size
        blocks.append(Block(at, base + ADDRESS_SPACE - at, pool, mapped=False, expandable=base))
        _link(_joined(blocks), live)


def _pieces(state: State, held: list[int], address: int, size: int, pool: Pool, base: int | None) -> list[Block]:
    """The blocks of a stretch: those in use, and what is between them."""
    blocks: list[Block] = []
    at, end = address, address + size
    for start in held[bisect_left(held, address) : bisect_left(held, end)]:
        if start > at:
            blocks.append(Block(at, start - at, pool, expandable=base))
        length = state.held[start].size
        blocks.append(Block(start, length, pool, allocated=True, expandable=base))
        at = start + length
    if at < end:
        blocks.append(Block(at, end - at, pool, expandable=base))
    return blocks


def _joined(blocks: list[Block]) -> list[Block]:
    """Pages are recorded by mapping: free ones beside each other are one block, one in use may span several."""
    found: list[Block] = []
    for block in blocks:
        last = found[-1] if found else None
        if last is not None and last.address + last.size > block.address:
            overlap = last.address + last.size - block.address
            block.address += overlap
            block.size -= overlap
            if block.size <= 0:
                continue
        if last is not None and not last.allocated and not block.allocated and last.mapped == block.mapped:
            last.size += block.size
        else:
            found.append(block)
    return found


def _link(blocks: list[Block], live: dict[int, Block]) -> None:
    for before, after in pairwise(blocks):
        before.next, after.previous = after, before
    for block in blocks:
        if block.allocated:
            live[block.address] = block
        elif block.mapped:
            block.pool.insert(block)
        else:
            block.pool.insert_unmapped(block)


# What another setting of the allocator would have needed, by replaying the recorded history under it.

MAX_ERROR_FRAC = 0.05
"""A replay of the history as it was must come within this of the recorded peak of reserved memory. It is exact
where the recording began with the process; where it did not, what was in use then is placed anew, and a larger
error means that the requests before the recording shaped the cache."""

CANDIDATES: tuple[tuple[str, str], ...] = (
    ("expandable_segments", "True"),
    ("max_split_size_mb", "512"),
    ("max_split_size_mb", "256"),
    ("max_split_size_mb", "128"),
    ("max_split_size_mb", "64"),
    ("roundup_power2_divisions", "8"),
    ("roundup_power2_divisions", "4"),
    ("garbage_collection_threshold", "0.8"),
    ("garbage_collection_threshold", "0.6"),
)
"""The settings tried, the least intrusive first; the values are those of PyTorch's notes on CUDA memory management and
their neighbours by powers of two."""

MANY_EVENTS = 500_000
"""A replay takes some seconds per million events: beyond this only the first candidate is tried."""


@dataclass(frozen=True)
class Baseline:
    """The replay of a history as it was, from an empty cache, and whether it can be trusted."""

    outcome: Outcome
    warm: Outcome
    """The same from the recorded state: shows whether blocks are placed as they were."""
    recorded_peak: int
    limit: int | None
    """Bytes that could be reserved, where a failed request or a retry shows them."""
    why_not: str
    """Why no other setting can be predicted; empty where it can."""

    @property
    def error(self) -> float:
        """Error of the replayed peak, as a share of the recorded one."""
        return (self.outcome.peak_reserved - self.recorded_peak) / max(self.recorded_peak, 1)


@dataclass(frozen=True)
class Change:
    """One option set to one value, and what the replay needed."""

    option: str
    value: str
    outcome: Outcome


def baseline(history: History) -> Baseline:
    """Replay a history as it was."""
    recorded = int(history.totals()[2].max())
    limit = capacity(history)
    if limit is None and any(release.kind == "retry" for release in releases(history)):
        limit = recorded  # cudaMalloc refused more; how much less than that it would have refused is unknown
    warm = replay(history, history.settings, limit)
    outcome = warm if history.from_start else replay(history, history.settings, limit, empty=True)
    found = Baseline(outcome, warm, recorded, limit, "")
    return Baseline(outcome, warm, recorded, limit, _doubt(history, found))


def _doubt(history: History, found: Baseline) -> str:
    failed = sum(event.action == AllocatorAction.OOM for event in history.events)
    if failed and found.limit is not None and not found.outcome.failed:
        return "the request that failed when recorded succeeds in the replay"
    if abs(found.error) > MAX_ERROR_FRAC:
        began = "" if history.from_start else "; record from the start of the process"
        return f"a replay of the history as it was reserves {units.signed(found.error)} of what was recorded{began}"
    return ""


def changes(history: History, found: Baseline) -> list[Change]:
    """The candidates that differ from what is set, each replayed from an empty cache."""
    if found.why_not:
        return []
    tried: list[Change] = []
    for option, value in CANDIDATES if len(history.events) <= MANY_EVENTS else CANDIDATES[:1]:
        settings = changed(history.settings, option, value)
        # Garbage is collected only under a limit (a fraction of the device's memory set for the process).
        if settings == history.settings or (settings.gc_threshold and found.limit is None):
            continue
        tried.append(Change(option, value, replay(history, settings, found.limit, empty=not history.from_start)))
    return tried


def best(tried: list[Change], found: Baseline) -> Change | None:
    """The change worth making: fewer failed requests, fewer waits for the device, or less reserved by more than the
    replay's own error and one percent. Of those that come as close, the first."""
    now = found.outcome
    margin = max(abs(now.peak_reserved - found.recorded_peak), found.recorded_peak // 100)
    worth = [
        change
        for change in tried
        if _trouble(change.outcome) < _trouble(now)
        or (_trouble(change.outcome) == _trouble(now) and change.outcome.peak_reserved < now.peak_reserved - margin)
    ]
    least = min((_trouble(change.outcome) for change in worth), default=None)
    worth = [change for change in worth if _trouble(change.outcome) == least]
    peak = min((change.outcome.peak_reserved for change in worth), default=0)
    return next((change for change in worth if change.outcome.peak_reserved <= peak + margin), None)


def _trouble(outcome: Outcome) -> tuple[int, int]:
    """Failed requests, and how often cudaFree waited for the whole device: garbage is given back by it too."""
    return outcome.failed, outcome.retries + outcome.collections
