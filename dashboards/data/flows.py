"""What an event is connected to on the timeline: its launch, what it launched, and its collective on every rank."""

from __future__ import annotations

from typing import Any

from gpuscope.dashboards.data.event_details import Details, Event
from gpuscope.dashboards.data.events import Events
from gpuscope.words import units
from gpuscope.words.short_kernels import short_kernel

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
