"""Events by name."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuscope.dashboards.data.event_details import Event, event
from gpuscope.dashboards.data.events import Events
from gpuscope.when_used import dataclass

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
