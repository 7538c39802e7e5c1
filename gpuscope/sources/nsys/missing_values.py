"""Values that every row of an event table has, whatever the version: an export that lacks one is damaged."""

from __future__ import annotations

import numpy as np

from gpuscope.problems import reading
from gpuscope.sources.nsys.rows.event_tables import KERNEL, MEMCPY, MEMSET, NVTX, OSRT, RUNTIME, SYNC, Events, absences
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.columns.distinct import among
from gpuscope.trace.columns.name_pool import NO_NAME

_ON_DEVICE = ("start", "end", "globalPid", "deviceId", "correlationId")
_NEEDED = {
    KERNEL: (*_ON_DEVICE, "streamId"),
    MEMCPY: (*_ON_DEVICE, "streamId"),
    MEMSET: (*_ON_DEVICE, "streamId"),
    SYNC: _ON_DEVICE[:3],
    RUNTIME: ("start", "end", "globalTid", "correlationId"),
    NVTX: ("start", "globalTid"),
    OSRT: ("start", "end", "globalTid"),
}
UNNAMED = "?"
"""What stands for a name that is not there."""


def report_missing_values(builder: TraceBuilder, events: Events) -> None:
    """Problems for rows without a value, or without a name, that they need."""
    for table, columns in _NEEDED.items():
        rows = events[table]
        for column in columns:
            missing = absences(rows[column])
            builder.problem(reading.VALUE_MISSING, missing, table=table, column=column)
    builder.problem(reading.VALUE_MISSING, events.without_type, table=NVTX, column="eventType")
    nameless = (NO_NAME, builder.names.find(UNNAMED))
    for table in (KERNEL, RUNTIME, OSRT):
        missing = int(np.count_nonzero(among(events[table]["name"], nameless)))
        builder.problem(reading.NAME_MISSING, missing, table=table)
