"""Tracks as a tree: rank → steps, streams, threads → ranges, operators, Python, system calls, by depth."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TypedDict

from gpuscope.dashboards.data.rows.counter_tracks import CounterTrack
from gpuscope.dashboards.data.rows.tracks import GROUPS, Group, Track
from gpuscope.trace.schema import Category, Kind

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
    nodes = [_rank(tracks, rank, places, few) for rank, places in by_rank.items()]
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


def _rank(tracks: Sequence[Track], rank: int, places: list[int], is_open: bool) -> Node:
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
