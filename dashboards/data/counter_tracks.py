"""Counters as rows of the timeline, on the run's clock: what NVLink, PCIe and network ports carried, what GPUs did."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np

from gpuscope.analyzers.topology.counter_means import values_of
from gpuscope.dashboards.data.tracks import GROUPS, STEP, Group, RunClock, Track, Window
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.trace.frameworks import StackKind, kind_of
from gpuscope.trace.schema import NA, AllocatorAction, Category, Kind
from gpuscope.trace.table import Array, Times
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units, vocabulary

# Memory in use over time by what allocated it, from an allocator's recorded history.

POINTS = 500
BEFORE = StackKind.BEFORE.value
KINDS = [kind.value for kind in StackKind]


@dataclass(frozen=True)
class MemoryOverTime:
    """`time` in ns since the first event (or the number of the event where times are absent), `used` bytes by kind."""

    timed: bool
    time: Times
    used: Mapping[str, Times]


def memory_over_time(trace: Trace, entry: MemoryEntry) -> MemoryOverTime | None:
    """Of one snapshot and device; None where it has no history with stacks."""
    table = trace["allocator_events"]
    source = next((i for i, one in enumerate(trace.sources) if str(one.path) == entry["path"]), -1)
    action = table["action"]
    kept = (table["device"] == entry["device"]) & (table["source"] == source)
    rows = np.flatnonzero(kept & np.isin(action, [AllocatorAction.ALLOC, AllocatorAction.FREE_COMPLETED]))
    if not len(rows) or not (table["frames"][rows] >= 0).any():
        return None
    # A block is freed by the last request for its address before that.
    order = np.lexsort((np.arange(len(rows)), table["address"][rows]))
    placed = rows[order]
    frees = action[placed] == AllocatorAction.FREE_COMPLETED
    same = np.concatenate(([False], table["address"][placed[1:]] == table["address"][placed[:-1]]))
    of_alloc = frees & same & ~np.concatenate(([False], frees[:-1]))
    frames = table["frames"][placed].astype(np.int64)
    frames[1:][of_alloc[1:]] = frames[:-1][of_alloc[1:]]
    kind = _kinds(trace, frames)
    kind[frees & ~of_alloc] = KINDS.index(BEFORE)
    change, which = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    change[order], which[order] = np.where(frees, -table["bytes"][placed], table["bytes"][placed]), kind
    used = {name: np.cumsum(np.where(which == i, change, 0)) for i, name in enumerate(KINDS)}
    total = np.sum(list(used.values()), axis=0)
    used[BEFORE] += entry["peak_allocated_bytes"] - int(total.max())
    places = _shown(total)
    times = table["time"][rows]
    timed = bool((times != NA).all())
    at = times[places] - times[0] if timed else places
    return MemoryOverTime(timed, at, {name: np.maximum(of[places], 0) for name, of in used.items() if of.max() > 0})


def _kinds(trace: Trace, frames: Array) -> Array:
    """The kind of each row's stack, by its place in KINDS."""
    codes, inverse = np.unique(frames, return_inverse=True)
    found = [KINDS.index(kind_of(trace.names[code].splitlines() if code >= 0 else []).value) for code in codes.tolist()]
    return np.array(found, np.int64)[inverse]


def _shown(total: Times) -> Times:
    """Of equal stretches of events the one with most in use: no peak is lost."""
    edges = np.linspace(0, len(total), min(POINTS, len(total)) + 1).astype(np.int64)
    return np.array([low + int(total[low:high].argmax()) for low, high in itertools.pairwise(edges)])


# Segments of an allocator snapshot with their blocks, the largest first.

MOST = 40
"""Segments drawn; more can't be distinguished on a screen."""
MOST_BLOCKS = 4_000
"""Blocks drawn, as for the timeline's marks."""


@dataclass(frozen=True)
class Segment:
    """A segment with its blocks in order of address: (bytes, BlockState, innermost frame or empty)."""

    label: str
    blocks: Sequence[tuple[int, int, str]]


def segments_of(trace: Trace, path: str, device: int) -> tuple[list[Segment], int]:
    """The largest segments of one device of one snapshot, and how many are left out."""
    table, blocks = trace["segments"], trace["blocks"]
    source = next((i for i, one in enumerate(trace.sources) if str(one.path) == path), None)
    rows = np.flatnonzero((table["device"] == device) & (table["source"] == (-1 if source is None else source)))
    largest = rows[np.argsort(-table["bytes"][rows], kind="stable")]
    first = np.searchsorted(blocks["segment"], largest, "left")
    last = np.searchsorted(blocks["segment"], largest, "right")
    drawn: list[Segment] = []
    count = 0
    for segment, low, high in zip(largest[:MOST].tolist(), first.tolist(), last.tolist(), strict=False):
        count += high - low
        if drawn and count > MOST_BLOCKS:
            break
        own = [
            (
                int(blocks["bytes"][row]),
                int(blocks["state"][row]),
                trace.names[int(blocks["frames"][row])].split("\n")[0],
            )
            for row in range(low, high)
        ]
        size = units.memory(int(table["bytes"][segment]))
        drawn.append(Segment(f"{len(drawn) + 1}: {size}, stream {int(table['stream'][segment])}", own))
    return drawn, len(largest) - len(drawn)


PERCENT = "%"
_OF_GPU = "GPU "


@dataclass(frozen=True)
class CounterTrack:
    """One counter: samples by start, which do not overlap; times in ns on the run's clock."""

    rank: int
    """Of the GPU; of a network port, the first rank whose file recorded it."""
    place: str
    """`GPU 0`, `NIC mlx5_0`."""
    label: str
    unit: str
    start: Times
    end: Times
    value: Array
    top: float
    """What the full height stands for: 100 for percent, else the largest value."""
    known: Times
    """How much time the samples before each cover, ns; shape (n + 1,)."""
    area: Array
    """∫ value dt over the samples before each; shape (n + 1,)."""

    @property
    def of_gpu(self) -> bool:
        """Whether it belongs to a GPU, not to a port of the host."""
        return self.place.startswith(_OF_GPU)

    def _before(self, at: Times) -> tuple[Times, Array]:
        """Covered time and ∫ value dt before each instant."""
        last = np.searchsorted(self.start, at, "right") - 1
        held = np.maximum(last, 0)
        part = np.where(last >= 0, np.clip(at - self.start[held], 0, self.end[held] - self.start[held]), 0)
        return self.known[held] + part, self.area[held] + part * self.value[held]


@dataclass(frozen=True)
class CounterDetail:
    """A window of a counter: cells that samples cover, shape (c,) each."""

    at: Times
    """Their numbers."""
    mean: Array
    """Mean value by time."""
    most: Array
    """The largest sample that reaches into the cell."""
    count: Times
    """Samples that start in it."""


def counter_detail(track: CounterTrack, window: Window) -> CounterDetail:
    """What is seen of a counter in this window."""
    edges = window.edges
    known, area = track._before(edges)
    covered, sums = np.diff(known), np.diff(area)
    at = np.flatnonzero(covered)
    first = np.searchsorted(track.start, edges, "left")
    return CounterDetail(at, sums[at] / covered[at], _most(track, edges, at), np.diff(first)[at])


def _most(track: CounterTrack, edges: Times, at: Times) -> Array:
    """The largest of the samples that overlap each of these cells."""
    low = np.searchsorted(track.end, edges[at], "right")
    high = np.searchsorted(track.start, edges[at + 1], "left")
    ends = np.column_stack((low, np.maximum(high, low + 1))).ravel()
    if not len(ends):
        return track.value[:0]
    return np.asarray(np.maximum.reduceat(np.append(track.value, track.value[-1:]), ends)[::2])


def counter_tracks(trace: Trace, clock: RunClock) -> list[CounterTrack]:
    """All counters: those of GPUs by rank, then those of ports."""
    table, found = trace["counters"], []
    keys = np.column_stack([table[name].astype(np.int64) for name in ("source", "place", "counter")])
    for source, place, counter in np.unique(keys, axis=0).tolist() if len(keys) else ():
        rows = np.flatnonzero((keys == (source, place, counter)).all(axis=1))
        rank = _rank(trace, source, trace.names[place])
        if rank is None:
            continue
        unit = trace.names[int(table["unit"][rows[0]])]
        start, end = (clock.common(rank, table[column][rows]) for column in ("start", "end"))
        found.append(
            make_counter(rank, trace.names[place], trace.names[counter], unit, start, end, values_of(trace, rows))
        )
    return sorted(found, key=lambda one: (not one.of_gpu, one.rank, one.place, one.label))


def make_counter(rank: int, place: str, label: str, unit: str, start: Times, end: Times, value: Array) -> CounterTrack:
    """A track of samples in any order; one that overlaps the next ends where that begins."""
    order = np.argsort(start, kind="stable")
    start, end, value = start[order], end[order], value[order].astype(np.float64)
    end = np.minimum(end, np.append(start[1:], end[-1:]))
    length = np.maximum(end - start, 0)
    known = np.concatenate(([0], np.cumsum(length)))
    area = np.concatenate(([0.0], np.cumsum(length * value)))
    top = 100.0 if unit == PERCENT else float(value.max(initial=0)) or 1.0
    return CounterTrack(rank, place, label, unit, start, end, value, top, known, area)


def _rank(trace: Trace, source: int, place: str) -> int | None:
    """The rank of a file that has the GPU of this place, else its first rank; None for a file without ranks."""
    ranks = trace["ranks"]
    own = np.flatnonzero(ranks["source"] == source)
    if not len(own):
        return None
    device = place.removeprefix(_OF_GPU)
    devices = ranks["device"][own]
    fits = own[devices == int(device)] if place.startswith(_OF_GPU) and device.isdecimal() else own[:0]
    fits = fits[ranks["device"][fits] != NA]
    return int(ranks["rank"][fits[0] if len(fits) else own[0]])


# Tracks as a tree: rank → steps, streams, threads → ranges, operators, Python, system calls, by depth.

FEW_RANKS = 4
"""Of up to so many ranks all are open at first; of more, each is one row until it is opened."""
FEW_EVENTS = 10
"""A thread with fewer events than the busiest one by this factor is closed at first."""
CLOSED: tuple[Group, ...] = ("python", "os")
"""Sections closed at first: rarely what is asked for, and many rows."""


class Node(TypedDict):
    """A line of the tree. `rows` are tracks by number: those of a section by depth. When closed `summary` is drawn, and
    below it `beside`, -1 where there is none: a rank's second stream, mostly of communication."""

    id: str
    label: str
    rows: list[int]
    summary: int
    beside: int
    open: bool
    children: list[Node]


def tree(tracks: Sequence[Track], ranks: Collection[int] | None, counters: Sequence[CounterTrack] = ()) -> list[Node]:
    """The nodes of these ranks, in order; tracks are named by their place in `tracks`, counters after them."""
    by_rank: dict[int, list[int]] = {}
    for place, track in enumerate(tracks):
        if ranks is None or track.rank in ranks:
            by_rank.setdefault(track.rank, []).append(place)
    few = len(by_rank) <= FEW_RANKS
    nodes = [_track_tree_rank(tracks, rank, places, few) for rank, places in by_rank.items()]
    links = _links(counters, len(tracks), by_rank)
    for node in nodes:
        node["children"] += links.pop(node["id"], [])
    return nodes + [ports for own in links.values() for ports in own]


def _links(counters: Sequence[CounterTrack], first: int, ranks: Collection[int]) -> dict[str, list[Node]]:
    """Sections of counters: of a GPU by the node of its rank, of a host's ports by a key of their own."""
    found: dict[str, list[tuple[int, CounterTrack]]] = {}
    for number, one in enumerate(counters, first):
        if one.rank in ranks:
            found.setdefault(f"r{one.rank}" if one.of_gpu else f"n{one.rank}", []).append((number, one))
    sections = {}
    for key, own in found.items():
        leaves = [
            _node(f"{key}.c{number}", one.label if one.of_gpu else f"{one.place}: {one.label}", [number])
            for number, one in own
        ]
        of_file = f" (file of rank {own[0][1].rank})" if sum(one[0] == "n" for one in found) > 1 else ""
        title = "Link counters" if key[0] == "r" else f"Network ports{of_file}"
        sections[key] = [_node(f"{key}.links", title, [], own[0][0], key[0] == "n", leaves)]
    return sections


def _track_tree_rank(tracks: Sequence[Track], rank: int, places: list[int], is_open: bool) -> Node:
    streams = [place for place in places if tracks[place].group == "streams"]
    busy = sorted(streams or places, key=lambda place: int(tracks[place].covered[-1]) if len(tracks[place]) else 0)
    single = [place for place in places if tracks[place].group in ("steps", "streams")]
    leaves = [_node(f"r{rank}.{place}", tracks[place].label, [place]) for place in single]
    leaves += _threads(tracks, rank, places)
    return _node(f"r{rank}", f"rank {rank}", [], busy[-1], is_open, leaves, busy[-2] if len(streams) > 1 else -1)


def _threads(tracks: Sequence[Track], rank: int, places: list[int]) -> Iterator[Node]:
    """The busiest thread first; open are those that work as much. Those without operators last, as one."""
    by_thread: dict[int, list[int]] = {}
    for place in places:
        if tracks[place].table == "host_events":
            by_thread.setdefault(tracks[place].thread, []).append(place)
    events = {thread: sum(len(tracks[place]) for place in own) for thread, own in by_thread.items()}
    most = max(events.values(), default=0)
    idlers = []
    for order, thread in enumerate(sorted(by_thread, key=lambda thread: -events[thread])):
        own = by_thread[thread]
        sections = []
        for group in GROUPS:
            of_group = [place for place in own if tracks[place].group == group]
            if of_group:
                name = f"r{rank}.t{thread}.{group}"
                sections.append(_node(name, GROUPS[group], of_group, of_group[0], group not in CLOSED))
        summary = max(own, key=lambda place: (tracks[place].depth == 0, len(tracks[place])))
        node = _node(
            f"r{rank}.t{thread}", tracks[own[0]].label, [], summary, events[thread] * FEW_EVENTS >= most, sections
        )
        if order and all(_by_the_way(tracks[place]) for place in own):
            idlers.append(node)
        else:
            yield node
    if len(idlers) > 1:
        yield _node(f"r{rank}.idlers", f"{len(idlers)} threads without operators", [], is_open=False, children=idlers)
    else:
        yield from idlers


def _by_the_way(track: Track) -> bool:
    """Whether a track of a thread holds nothing of the training: system calls, or the profiler's own work."""
    return track.group == "os" or bool((track.look == len(Kind) + Category.OVERHEAD).all())


def _node(
    name: str,
    label: str,
    rows: list[int],
    summary: int = -1,
    is_open: bool = True,
    children: list[Node] | None = None,
    beside: int = -1,
) -> Node:
    return Node(id=name, label=label, rows=rows, summary=summary, beside=beside, open=is_open, children=children or [])


# What each kind of event is called and how it is coloured on the timeline.

EVENT_STYLES: dict[int, tuple[str, str]] = {
    Kind.COMPUTE: ("compute", vocabulary.BLUE),
    Kind.COMMUNICATION: ("communication", vocabulary.ORANGE),
    Kind.MEMORY: ("memory copy", vocabulary.PURPLE),
    len(Kind) + Category.OP: ("operator", vocabulary.SKY),
    len(Kind) + Category.RUNTIME: ("runtime call", vocabulary.GREEN),
    len(Kind) + Category.ANNOTATION: ("range", vocabulary.YELLOW),
    len(Kind) + Category.PYTHON: ("Python", vocabulary.GREY),
    len(Kind) + Category.OS: ("system call", vocabulary.VERMILLION),
    len(Kind) + Category.OVERHEAD: ("profiler's own work", "#6B6B6B"),
    len(Kind) + Category.COMMUNICATION: ("communication call", vocabulary.ORANGE),
    STEP: ("step", "#BBBBBB"),
}
"""Label and colour by look of an event (`Track.look`)."""
