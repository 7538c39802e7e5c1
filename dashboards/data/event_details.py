"""Everything recorded about one event: its operator, launch, stack, step, collective, and the other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field
from typing import Any

import numpy as np

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.tracks import TableName, bounds, stream_label, thread_label
from gpuscope.trace.intervals import Breakdown, break_down, union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import short_kernel

LAUNCHED_SHOWN = 12
LETTERS: dict[TableName, str] = {"device_events": "d", "host_events": "h", "steps": "s"}
"""How the reference of an event begins, by its table."""


@dataclass(frozen=True)
class Event:
    """One event; times in ns, `start` on its rank's own clock and `shown` on the run's."""

    ref: str
    rank: int
    where: str
    what: str
    name: str
    start: int
    duration: int
    shown: int

    @property
    def span(self) -> tuple[int, int]:
        """Start and end on the run's clock."""
        return self.shown, self.shown + self.duration


@dataclass(frozen=True)
class Details:
    """An event and its context."""

    event: Event
    facts: list[tuple[str, int | str]] = field(default_factory=list)
    """Columns of its row that have values."""
    step: int | None = None
    on_host: bool = False
    """The training thread of a CPU run is its device: `launch` is the same event, seen by the host."""
    launch: Event | None = None
    operator: Event | None = None
    ranges: list[Event] = field(default_factory=list)
    """Annotations around the launch (or the event itself), outermost first."""
    stack: list[Event] = field(default_factory=list)
    """Python functions around it, outermost first."""
    launched: list[Event] = field(default_factory=list)
    """Device events it launched, the first few."""
    launched_count: int = 0
    collective: list[tuple[str, int | str]] = field(default_factory=list)
    partners: list[Event] = field(default_factory=list)
    """The same collective on the other ranks."""


def event(events: Events, ref: str) -> Event | None:
    """The event of a reference (`d12`: row 12 of device_events, `h3`: of host_events); None if invalid."""
    names = {"d": "device_events", "h": "host_events"}
    if not ref[1:].isascii() or not ref[1:].isdigit() or len(ref) > 18 or ref[0] not in names:
        return None
    table, row = events.trace[names[ref[0]]], int(ref[1:])
    if row >= len(table):
        return None
    rank, start, end = (int(table[column][row]) for column in ("rank", "start", "end"))
    device = ref[0] == "d"
    what = Kind(int(table["kind"][row])).name if device else Category(int(table["category"][row])).name
    return Event(
        ref,
        rank,
        _where(events, ref[0], row),
        what.lower(),
        events.trace.names[int(table["name"][row])],
        start,
        end - start,
        events.clock.shown(rank, start),
    )


def _where(events: Events, letter: str, row: int) -> str:
    if letter == "h":
        return thread_label(events.trace, int(events.trace["host_events"]["thread"][row]))
    device = events.trace["device_events"]
    return stream_label(int(device["device"][row]), int(device["stream"][row]))


def details(events: Events, ref: str) -> Details | None:
    """Everything known about the event `ref`; None if there is no such event."""
    found = event(events, ref)
    if found is None:
        return None
    device, row = ref[0] == "d", int(ref[1:])
    launch = int(events.trace["device_events"]["launch"][row]) if device else NA
    called = row if not device else launch
    around = list(enclosing(events, called)) if called != NA else []
    host = events.trace["host_events"]

    def of(category: Category) -> list[Event]:
        rows = [one for one in around if host["category"][one] == category and (device or one != row)]
        return [one for one in (event(events, f"h{place}") for place in rows) if one is not None]

    operators = of(Category.OP)
    launched = _launched(events, row) if not device else np.empty(0, np.int64)
    collective, partners = _collective(events, ref)
    return Details(
        event=found,
        facts=_facts(events, "device_events" if device else "host_events", row),
        step=_step(events, found.rank, int(host["start"][called]) if called != NA else found.start),
        on_host=device and int(events.trace["device_events"]["device"][row]) == NA,
        launch=event(events, f"h{launch}") if launch != NA else None,
        operator=operators[-1] if operators else None,
        ranges=of(Category.ANNOTATION),
        stack=of(Category.PYTHON),
        launched=[one for one in (event(events, f"d{place}") for place in launched[:LAUNCHED_SHOWN]) if one],
        launched_count=len(launched),
        collective=collective,
        partners=partners,
    )


def enclosing(events: Events, row: int) -> Iterator[int]:
    """Rows of the host events of the same thread that are open when this one starts, outermost first."""
    host = events.trace["host_events"]
    thread, rank = int(host["thread"][row]), int(host["rank"][row])
    at = events.clock.shown(rank, int(host["start"][row]))
    open_now: list[tuple[int, int, int]] = []
    for track in events.tracks_of_thread.get(thread, ()):
        low, high = int(np.searchsorted(track.reach, at, "right")), int(np.searchsorted(track.start, at, "right"))
        for place in (low + np.flatnonzero(track.end[low:high] > at)).tolist():
            open_now.append((int(track.start[place]), -int(track.end[place]), int(track.rows[place])))
    yield from (one for _, _, one in sorted(open_now))


def last_to_come(events: Events, ref: str) -> tuple[Event, Event] | None:
    """Of an event's collective, the event of the rank that came last and that of the first; None where it has none."""
    row = events.collective_row(ref)
    members = [] if row is None else [events.event_of_collective(one) for one in events.clock.same(row).tolist()]
    found = sorted((one for one in (event(events, ref) for ref in members) if one), key=lambda one: one.shown)
    return (found[-1], found[0]) if len(found) > 1 else None


def ended_before(events: Events, own: Event) -> str:
    """The operation after which a device event of the same rank could start: that which ends last before; or empty."""
    ended, latest = "", -(1 << 62)
    for track in events.streams(own.rank):
        for place in range(int(np.searchsorted(track.start, own.shown, "left")) - 1, -1, -1):
            if track.end[place] <= own.shown:
                if int(track.end[place]) > latest:
                    ended, latest = f"d{int(track.rows[place])}", int(track.end[place])
                break
    return ended


def _launched(events: Events, row: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of device_events launched by this host event or by what runs within it on its thread."""
    host, device = events.trace["host_events"], events.trace["device_events"]
    known = np.flatnonzero(device["launch"] != NA)
    launch = device["launch"][known]
    inside = (
        (host["thread"][launch] == host["thread"][row])
        & (host["start"][launch] >= host["start"][row])
        & (host["start"][launch] <= host["end"][row])
    )
    return np.asarray(known[inside], np.int64)


def _facts(events: Events, name: str, row: int) -> list[tuple[str, int | str]]:
    left_out = {"rank", "start", "end", "name", "kind", "category", "thread", "launch"}
    return list(_values(events, name, row, left_out))


def _values(events: Events, name: str, row: int, left_out: set[str]) -> Iterator[tuple[str, int | str]]:
    table = events.trace[name]
    for column in table.schema.columns:
        value = int(table[column.name][row])
        if column.name in left_out or (value in (NA, NO_NAME) and column.optional):
            continue
        yield column.name, events.trace.names[value] if column.dtype == "name" else value


def _step(events: Events, rank: int, at: int) -> int | None:
    table = events.trace["steps"]
    inside = np.flatnonzero((table["rank"] == rank) & (table["start"] <= at) & (at < table["end"]))
    return int(table["step"][inside[0]]) if len(inside) else None


def _collective(events: Events, ref: str) -> tuple[list[tuple[str, int | str]], list[Event]]:
    row = events.collective_row(ref)
    if row is None:
        return [], []
    left_out = {"rank", "start", "end", "event", "host_event"}
    partners = []
    for other in events.clock.same(row).tolist():
        if other != row:
            seen = events.event_of_collective(int(other))
            partners += [found] if (found := event(events, seen)) is not None else []
    return list(_values(events, "collectives", row, left_out)), partners


# What an event is connected to on the timeline: its launch, what it launched, and its collective on every rank.

MOST_ARROWS = 12


def flows(found: Details, events: Events) -> dict[str, Any] | None:
    """For the canvas: track numbers, and times in ns from the run's origin. None if the event is on no track."""
    event = _placed(found.event, events)
    if event is None:
        return None
    launches: list[dict[str, Any]] = []
    if found.launch is not None and not found.on_host:
        launches.append({"from": _point(found.launch, events), "to": _point(found.event, events)})
    launches += [
        {"from": _point(found.event, events), "to": _point(one, events)} for one in found.launched[:MOST_ARROWS]
    ]
    group = [found.event, *found.partners] if found.partners else []
    own = found.event
    return {
        "ref": own.ref,
        "event": event,
        "launches": [one for one in launches if one["from"] and one["to"]],
        "ranks": [placed for placed in (_placed(one, events) for one in group) if placed],
        "said": f"{units.clean(short_kernel(own.name))}, rank {own.rank}, {own.where}, "
        f"{units.duration(own.duration)} at {units.offset(own.shown - events.origin)}",
    }


def _placed(event: Event, events: Events) -> dict[str, Any] | None:
    place = events.place_of(event.ref)
    if place is None:
        return None
    track, (start, end) = place
    return {
        "ref": event.ref,
        "track": track,
        "rank": event.rank,
        "start": start - events.origin,
        "end": end - events.origin,
    }


def _point(event: Event, events: Events) -> dict[str, int] | None:
    place = events.place_of(event.ref)
    return None if place is None else {"track": place[0], "at": place[1][0] - events.origin}


# Events by name.

SHOWN = 40


@dataclass(frozen=True)
class Found:
    """How many events match, and the first of them after a time."""

    count: int
    events: list[Event]


def search(events: Events, text: str, after: int, ranks: Collection[int] | None = None) -> Found:
    """Events whose name holds `text`, whatever its case, on tracks of these ranks.

    `events` are the first `SHOWN` that end after the time `after`, ns on the run's clock.
    """
    wanted = text.strip().casefold()
    if not wanted:
        return Found(0, [])
    matching = events.trace.names.matching(lambda name: wanted in name.casefold())
    count, hits = 0, []
    for track in events.tracks:
        if (ranks is not None and track.rank not in ranks) or track.table == "steps":
            continue
        places = np.flatnonzero(matching[events.trace[track.table]["name"][track.rows]])
        count += len(places)
        later = places[track.end[places] > after][:SHOWN]
        letter = "d" if track.table == "device_events" else "h"
        hits += [(int(track.start[place]), f"{letter}{int(track.rows[place])}") for place in later]
    found = [event(events, ref) for _, ref in sorted(hits)[:SHOWN]]
    return Found(count, [one for one in found if one is not None])


# What a chosen range of the timeline holds: each rank's breakdown by the definitions, and the longest kernels.

KERNELS = 10


@dataclass(frozen=True)
class KernelInRange:
    """A name of events: how many are in the range, and how long they run in it, ns."""

    name: str
    count: int
    time: int
    ref: str
    """The longest of them."""


@dataclass(frozen=True)
class RangeStatistics:
    """Breakdowns by rank, device events in all, and the longest kernels over these ranks."""

    window: tuple[int, int]
    ranks: list[tuple[int, Breakdown]]
    events: int
    kernels: list[KernelInRange]
    host: list[KernelInRange]
    """Operators and calls of all threads by their own time, without that of those within them."""


def range_statistics(events: Events, window: tuple[int, int], ranks: Collection[int] | None) -> RangeStatistics:
    """Events are clipped at the window; concurrent kernels count in full each."""
    by_rank: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {}
    rows_seen, length_seen = [], []
    for track in events.tracks:
        if track.group != "streams" or (ranks is not None and track.rank not in ranks):
            continue
        low, _, high = bounds(track, window)
        places = low + np.flatnonzero(track.end[low:high] > window[0])
        start, end = np.maximum(track.start[places], window[0]), np.minimum(track.end[places], window[1])
        by_rank.setdefault(track.rank, []).append((start, end, track.look[places]))
        rows_seen.append(track.rows[places])
        length_seen.append(end - start)
    rows = np.concatenate(rows_seen) if rows_seen else np.empty(0, np.int64)
    length = np.concatenate(length_seen) if length_seen else np.empty(0, np.int64)
    return RangeStatistics(
        window,
        [(rank, _breakdown(parts, window)) for rank, parts in sorted(by_rank.items())],
        len(rows),
        _longest(events, "device_events", rows, length),
        _host(events, window, ranks),
    )


def _host(events: Events, window: tuple[int, int], ranks: Collection[int] | None) -> list[KernelInRange]:
    """By depth of a thread, the deepest first: what runs within an event is on the row below it."""
    rows_seen, own_seen = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for tracks in events.tracks_of_thread.values():
        below_start, below_length = np.empty(0, np.int64), np.empty(0, np.int64)
        for track in sorted((one for one in tracks if one.group == "threads"), key=lambda one: -one.depth):
            if ranks is not None and track.rank not in ranks:
                break
            low, _, high = bounds(track, window)
            places = low + np.flatnonzero(track.end[low:high] > window[0])
            start, end = np.maximum(track.start[places], window[0]), np.minimum(track.end[places], window[1])
            sums = np.concatenate(([0], np.cumsum(below_length)))
            inner = sums[np.searchsorted(below_start, end)] - sums[np.searchsorted(below_start, start)]
            rows_seen.append(track.rows[places])
            own_seen.append(np.maximum(end - start - inner, 0))
            below_start, below_length = start, end - start
    return _longest(events, "host_events", np.concatenate(rows_seen), np.concatenate(own_seen))


def longest_compute(events: Events, rank: int, window: tuple[int, int]) -> str:
    """Of the computation that a rank spends most of the window in, the longest event (`d12`); empty where none runs."""
    rows, spent = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for track in events.streams(rank):
        low, _, high = bounds(track, window)
        inside = np.minimum(track.end[low:high], window[1]) - np.maximum(track.start[low:high], window[0])
        kept = np.flatnonzero((inside > 0) & (track.look[low:high] == Kind.COMPUTE))
        rows.append(track.rows[low:high][kept])
        spent.append(inside[kept])
    found = _longest(events, "device_events", np.concatenate(rows), np.concatenate(spent))
    return found[0].ref if found else ""


def _breakdown(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], window: tuple[int, int]) -> Breakdown:
    start, end, kind = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    compute, communication, memory = (
        union(start[kind == one], end[kind == one]) for one in (Kind.COMPUTE, Kind.COMMUNICATION, Kind.MEMORY)
    )
    return break_down(compute, communication, memory, [window])[0]


def _longest(events: Events, table: TableName, rows: np.ndarray, length: np.ndarray) -> list[KernelInRange]:
    if not len(rows):
        return []
    names = events.trace[table]["name"][rows]
    codes, inverse, counts = np.unique(names, return_inverse=True, return_counts=True)
    time = np.bincount(inverse, length).astype(np.int64)
    found = []
    for place in np.argsort(-time, kind="stable")[:KERNELS].tolist():
        own = np.flatnonzero(inverse == place)
        longest = int(rows[own[np.argmax(length[own])]])
        name, ref = events.trace.names[int(codes[place])], f"{table[0]}{longest}"
        found.append(KernelInRange(name, int(counts[place]), int(time[place]), ref))
    return found
