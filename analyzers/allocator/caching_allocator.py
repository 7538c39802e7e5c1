"""The caching allocator itself: pools of free blocks, best fit, splitting, merging, segments that grow.

It does what `DeviceCachingAllocator` of c10/cuda/CUDACachingAllocator.cpp does (read in PyTorch 2.3, with
`max_non_split_rounding` of 2.6 and later); the names of that file stand in the docstrings. Bytes everywhere.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import field

from gpuscope.analyzers.allocator.allocator_settings import (
    LARGE_BUFFER,
    SMALL_BUFFER,
    SMALL_SIZE,
    Settings,
    segment_size,
)
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.when_used import dataclass

Key = tuple[int, int]
"""Stream and private pool (`NO_NAME`: none)."""
ADDRESS_SPACE = 1 << 44
"""Room of an expandable segment: torch reserves more than a device has, so it never runs out first."""


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; `previous` and `next` are its neighbours in it."""

    address: int
    size: int
    pool: Pool
    allocated: bool = False
    mapped: bool = True
    expandable: int | None = None
    """Base address of the expandable segment it lies in."""
    previous: Block | None = None
    next: Block | None = None
    born: int = 0
    """Requests its pool had seen when it became free (`gc_count_base`)."""

    @property
    def split(self) -> bool:
        """Whether it shares its segment with others (`is_split`)."""
        return self.previous is not None or self.next is not None


@dataclass(slots=True, eq=False)
class Pool:
    """Free blocks for one stream: of at most 1 MiB each, or larger."""

    small: bool
    free: list[tuple[int, int]] = field(default_factory=list)
    """(size, address), ascending: the order in which a best fit is looked for (`BlockComparatorSize`)."""
    unmapped: list[int] = field(default_factory=list)
    """Addresses, ascending (`BlockComparatorAddress`)."""
    blocks: dict[int, Block] = field(default_factory=dict)
    """The blocks of both by address."""
    requests: int = 0

    def insert(self, block: Block) -> None:
        """`insert_into_blocks`."""
        block.born = self.requests
        self.blocks[block.address] = block
        insort(self.free, (block.size, block.address))

    def remove(self, block: Block) -> None:
        del self.blocks[block.address]
        if block.mapped:
            del self.free[bisect_left(self.free, (block.size, block.address))]
        else:
            del self.unmapped[bisect_left(self.unmapped, block.address)]

    def insert_unmapped(self, block: Block) -> None:
        self.blocks[block.address] = block
        insort(self.unmapped, block.address)

    def cached(self) -> Iterator[Block]:
        """The free blocks, the smallest first."""
        for _, address in list(self.free):
            yield self.blocks[address]


class Allocator:
    """One device's allocator under a setting, with at most `limit` bytes reserved (None: no limit)."""

    def __init__(self, settings: Settings, limit: int | None = None, place: Callable[[int], int] | None = None) -> None:
        self.settings, self.limit = settings, limit
        self.reserved = self.peak = 0
        self.device_calls = 0
        """cudaMalloc and cuMemMap calls."""
        self.retries = self.collections = 0
        self.pools: dict[tuple[Key, bool], Pool] = {}
        self._next_address = 1 << 50
        self._place = place or self.anywhere

    def malloc(self, requested: int, key: Key) -> Block | None:
        """A block for a request; None where memory ran out."""
        size = self.settings.round(requested)
        pool = self.pool(key, size <= SMALL_SIZE)
        block = self._best_fit(pool, size)
        if block is None:
            if self.limit is not None and self.settings.gc_threshold:
                self._collect_garbage(int(self.limit * self.settings.gc_threshold))
            block = self._grow(pool, size)
            if block is None and self._release_oversize(pool, size):
                block = self._grow(pool, size)
            if block is None:
                self.empty_cache()
                self.retries += 1
                block = self._grow(pool, size)
        return None if block is None else self._take(block, size)

    def free(self, block: Block) -> None:
        """`free_block`: back into the pool, merged with free neighbours."""
        block.allocated = False
        self._merge(block, block.previous)
        self._merge(block, block.next)
        block.pool.insert(block)

    def empty_cache(self) -> None:
        """`release_cached_blocks`: give every free segment and page back to the device."""
        for pool in self.pools.values():
            for block in list(pool.cached()):
                if block.expandable is not None:
                    self._unmap(block)
                elif not block.split:
                    self._release(block)

    def pool(self, key: Key, small: bool) -> Pool:
        """The pool of a stream, made on first use."""
        found = self.pools.get((key, small))
        if found is None:
            found = self.pools[key, small] = Pool(small)
        return found

    def _best_fit(self, pool: Pool, size: int) -> Block | None:
        """`get_free_block`: the smallest free block that is large enough."""
        pool.requests += 1
        at = bisect_left(pool.free, (size, 0))
        if at == len(pool.free):
            return None
        block = pool.blocks[pool.free[at][1]]
        if block.expandable is not None:
            at = self._least_expandable(pool, at) if self.settings.expandable else self._skip_expandable(pool, at)
            if at == len(pool.free):
                return None
            block = pool.blocks[pool.free[at][1]]
        most = self.settings.max_split
        if most is not None and size < most <= block.size:
            return None
        if most is not None and size >= most and block.size >= size + self.settings.max_non_split_rounding:
            return None
        pool.remove(block)
        return block

    @staticmethod
    def _least_expandable(pool: Pool, at: int) -> int:
        """Of a block that can grow, what counts is the size it can grow to: a later one may fit better."""

        def room(place: int) -> int:
            block = pool.blocks[pool.free[place][1]]
            return block.size + (block.next.size if block.next and not block.next.mapped else 0)

        while (
            pool.blocks[pool.free[at][1]].expandable is not None and at + 1 < len(pool.free) and room(at + 1) < room(at)
        ):
            at += 1
        return at

    @staticmethod
    def _skip_expandable(pool: Pool, at: int) -> int:
        while at < len(pool.free) and pool.blocks[pool.free[at][1]].expandable is not None:
            at += 1
        return at

    def _take(self, block: Block, size: int) -> Block:
        """`alloc_found_block`: cut off what is left over, hand out the rest."""
        if self.settings.splits(block.size - size, size, block.pool.small):
            taken = Block(
                block.address, size, block.pool, expandable=block.expandable, previous=block.previous, next=block
            )
            if taken.previous:
                taken.previous.next = taken
            block.previous = taken
            block.address += size
            block.size -= size
            block.pool.insert(block)
            block = taken
        block.allocated = True
        return block

    def _merge(self, into: Block, other: Block | None) -> None:
        """`try_merge_blocks`: `into` is in no pool."""
        if other is None or other.allocated or into.mapped != other.mapped:
            return
        other.pool.remove(other)
        if into.previous is other:
            into.address = other.address
            into.previous = other.previous
            if into.previous:
                into.previous.next = into
        else:
            into.next = other.next
            if into.next:
                into.next.previous = into
        into.size += other.size

    def _grow(self, pool: Pool, size: int) -> Block | None:
        """`alloc_block`: more memory from the device; None where it would pass the limit."""
        wanted = segment_size(size)
        if self.settings.expandable:
            return self._expand(pool, size)
        if not self._reserve(wanted):
            return None
        return Block(self._place(wanted), wanted, pool)

    def _reserve(self, size: int) -> bool:
        if self.limit is not None and self.reserved + size > self.limit:
            return False
        self.reserved += size
        self.peak = max(self.peak, self.reserved)
        self.device_calls += 1
        return True

    def _expand(self, pool: Pool, size: int) -> Block | None:
        """`try_allocate_expandable_block`."""
        block = self._expandable_block(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.next
            assert following is not None  # _expandable_block saw enough room
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.remove(block)
        return block

    def _expandable_block(self, pool: Pool, size: int) -> Block:
        """`find_expandable_block`: the lowest unmapped place, with the free block before it, where `size` fits."""
        for address in pool.unmapped:
            block = pool.blocks[address]
            if block.previous is not None and not block.previous.allocated:
                block = block.previous
            room, at = 0, block
            while at is not None and not at.allocated and room < size:
                room += at.size
                at = at.next  # type: ignore[assignment]
            if room >= size:
                return block
        base = self.anywhere(ADDRESS_SPACE)
        block = Block(base, ADDRESS_SPACE, pool, mapped=False, expandable=base)
        pool.insert_unmapped(block)
        return block

    def _map(self, block: Block, size: int) -> bool:
        """`map_block`: whole pages at the block's beginning; merged with what is free beside them."""
        page, base = page_size(block.pool.small), block.expandable or 0
        size = -(-(block.address + size - base) // page) * page - (block.address - base)
        size = min(size, block.size)
        if not self._reserve(size):
            return False
        pool = block.pool
        pool.remove(block)
        if size < block.size:
            rest = Block(
                block.address + size,
                block.size - size,
                pool,
                mapped=False,
                expandable=block.expandable,
                previous=block,
                next=block.next,
            )
            if rest.next:
                rest.next.previous = rest
            block.next, block.size = rest, size
            pool.insert_unmapped(rest)
        block.mapped = True
        self._merge(block, block.previous)
        self._merge(block, block.next)
        pool.insert(block)
        return True

    def _unmap(self, block: Block) -> None:
        """`unmap_block`: the whole pages inside a free block go back to the device."""
        page, base, pool = page_size(block.pool.small), block.expandable or 0, block.pool
        start = base + -(-(block.address - base) // page) * page
        end = base + (block.address + block.size - base) // page * page
        if start >= end:
            return
        pool.remove(block)
        if start > block.address:
            before = Block(
                block.address, start - block.address, pool, expandable=base, previous=block.previous, next=block
            )
            if before.previous:
                before.previous.next = before
            block.previous = before
            pool.insert(before)
        if end < block.address + block.size:
            after = Block(end, block.address + block.size - end, pool, expandable=base, previous=block, next=block.next)
            if after.next:
                after.next.previous = after
            block.next = after
            pool.insert(after)
        block.address, block.size, block.mapped = start, end - start, False
        self._merge(block, block.previous)
        self._merge(block, block.next)
        pool.insert_unmapped(block)
        self.reserved -= end - start

    def _release(self, block: Block) -> None:
        """`release_block`: cudaFree."""
        block.pool.remove(block)
        self.reserved -= block.size

    def _release_oversize(self, pool: Pool, size: int) -> bool:
        """`release_available_cached_blocks`: oversize blocks, but only as many as make room for the request."""
        if self.settings.max_split is None:
            return False
        wanted = max(size, self.settings.max_split)
        at = bisect_left(pool.free, (wanted, 0))
        if at < len(pool.free):
            block = pool.blocks[pool.free[at][1]]
            if block.expandable is not None or block.split:
                return False
            self._release(block)
            return True
        released = 0
        while pool.free and released < wanted and pool.free[-1][0] >= self.settings.max_split:
            block = pool.blocks[pool.free[-1][1]]
            if block.expandable is not None or block.split:
                return False
            released += block.size
            self._release(block)
        return released >= wanted

    def _collect_garbage(self, threshold: int) -> None:
        """`garbage_collect_cached_blocks`: unsplit large blocks older than the mean, until enough is given back."""
        target, reclaimed = self.reserved - threshold, 0
        pools = [pool for (key, small), pool in self.pools.items() if not small and key[1] == NO_NAME]
        while reclaimed < target:
            idle = [(p.requests - b.born, b) for p in pools for b in p.cached() if not b.split and b.expandable is None]
            if not idle:
                return
            self.collections += not reclaimed
            mean = sum(age for age, _ in idle) / len(idle)
            for age, block in idle:
                if age >= mean:
                    reclaimed += block.size
                    self._release(block)

    def keep_clear_of(self, address: int) -> None:
        """Give no address near or below this one."""
        self._next_address = max(self._next_address, address + ADDRESS_SPACE)

    def anywhere(self, size: int) -> int:
        """An address above all others, as cudaMalloc and cuMemAddressReserve mostly give."""
        address = self._next_address
        self._next_address += -(-size // LARGE_BUFFER) * LARGE_BUFFER
        return address


def page_size(small: bool) -> int:
    """Bytes mapped at once into an expandable segment: 2 MiB in the small pool, 20 MiB in the large one."""
    return SMALL_BUFFER if small else LARGE_BUFFER
