"""Evidence of a finding from the recorded event that shows it, whose identity it carries."""

from __future__ import annotations

import numpy as np

from gpuscope.schema.document import Evidence
from gpuscope.schema.event_id import EventId
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace


def identity(trace: Trace, table: str, row: int) -> EventId:
    """Which event of `device_events` or `host_events` that is."""
    own = trace[table].take(np.array([row]))
    device = table == "device_events"

    def known(value: int) -> int | None:
        return None if value == NA else value

    return {
        "table": "device_events" if device else "host_events",
        "device": known(int(own["device"][0])) if device else None,
        "stream": known(int(own["stream"][0])) if device else None,
        "thread": None if device else known(int(trace["threads"]["tid"][int(own["thread"][0])])),
        "start_ns": int(own["start"][0]),
        "dur_ns": int(own["end"][0] - own["start"][0]),
        "name": trace.names[int(own["name"][0])],
    }


def shown_by(trace: Trace, table: str, row: int, note: str = "", span: tuple[int, int] | None = None) -> Evidence:
    """What a row of `device_events`, `host_events` or `collectives` shows: a span of it, else all of it."""
    own = trace[table]
    start, end = span or (int(own["start"][row]), int(own["end"][row]))
    found: Evidence = {
        "rank": int(own["rank"][row]),
        "start_ns": start,
        "dur_ns": end - start,
        "name": trace.names[int(own["op" if table == "collectives" else "name"][row])],
        "note": note,
    }
    if table != "collectives":
        found["event"] = identity(trace, table, row)
        return found
    for column, of in (("event", "device_events"), ("host_event", "host_events")):
        if own[column][row] != NA:
            found["event"] = identity(trace, of, int(own[column][row]))
            break
    return found


def most_of(start: Times, end: Times, span: tuple[int, int]) -> int:
    """The place of the event that most of a span lies in, the first of equals."""
    return int((end.clip(max=span[1]) - start.clip(min=span[0])).argmax())
