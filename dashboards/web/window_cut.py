"""A window of a run as a separate Trace, on the run's clock."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from gpuscope.dashboards.data.rows.run_clock import RunClock
from gpuscope.trace.columns.row_order import order_rows, select_rows
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.trace import Trace

_TIMED = ("device_events", "host_events", "syncs", "collectives", "steps")


def cut(trace: Trace, clock: RunClock, window: tuple[int, int] | None, ranks: Collection[int] | None) -> Trace:
    """The events of these ranks that overlap the window, times on the run's clock, so that ranks line up."""
    if ranks is not None:
        trace = trace.select_ranks(ranks)
    data = {name: trace[name] for name in SCHEMAS}
    for name in _TIMED:
        data[name] = _common(data[name], clock)
        if window is not None:
            table = data[name]
            keep = (table["end"] > window[0]) & (table["start"] < window[1])
            select_rows(data, name, np.flatnonzero(keep))
        order_rows(data, name)
    return Trace(data, trace.names, trace.sources, trace.problems)


def _common(table: Table, clock: RunClock) -> Table:
    columns = dict(table.columns)
    for column in ("start", "end"):
        times = table[column].copy()
        for rank in np.unique(table["rank"]).tolist():
            own = (table["rank"] == rank) & (times != NA)
            times[own] = clock.common(rank, times[own])
        columns[column] = times
    return Table(table.schema, columns)
