"""Segments that were allocated, or requests that failed, while enough free bytes lay in blocks they could not use.

A cache that is large after a peak is none of this: its blocks would be used if anything asked for them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from gpuscope.analyzers.allocator.allocator_settings import SMALL_SIZE
from gpuscope.analyzers.allocator.history import GROWS, SHRINKS, Event, History, State, segment_of
from gpuscope.trace.schema import AllocatorAction
from gpuscope.when_used import dataclass


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
