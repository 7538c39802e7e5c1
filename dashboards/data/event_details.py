"""Everything recorded about one event: its operator, launch, stack, step, collective, and the other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

import numpy as np

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.rows.tracks import TableName, stream_label, thread_label
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.when_used import dataclass

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
