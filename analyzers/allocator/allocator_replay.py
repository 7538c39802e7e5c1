"""Replays a recorded history through the model: what would have been reserved under a setting."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import field
from itertools import pairwise

from gpuscope.analyzers.allocator.allocator_settings import Settings
from gpuscope.analyzers.allocator.caching_allocator import ADDRESS_SPACE, Allocator, Block, Key, Pool
from gpuscope.analyzers.allocator.history import SHRINKS, Event, History, State
from gpuscope.analyzers.allocator.releases import releases
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import AllocatorAction
from gpuscope.when_used import dataclass

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
