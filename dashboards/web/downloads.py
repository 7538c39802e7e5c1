"""Downloads: sections of the report as CSV, a window for Perfetto. No file on disk is served."""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path
from threading import BoundedSemaphore
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flask import Flask, Response, abort, request

from gpuscope.analyzers.run import chrome_trace_export
from gpuscope.dashboards.data.kernel_rows import filtered, kernel_rows
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.data.queries import asked
from gpuscope.dashboards.data.rows.run_clock import RunClock
from gpuscope.dashboards.state import SQL, MalformedStateError, View, parse
from gpuscope.errors import GpuscopeError
from gpuscope.trace.columns.row_order import order_rows, select_rows
from gpuscope.trace.columns.table import Table
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""How a cell begins that a spreadsheet would run (OWASP, «CSV injection»)."""
EXPORTS = 2
"""Windows cut at once: each takes memory for a copy of its events."""


def register(server: Flask, runs: Runs) -> None:
    """Add the routes `/download/…`."""
    exporting = BoundedSemaphore(EXPORTS)

    @server.get("/download/<key>/<section>.csv")
    def _csv(key: str, section: str) -> Response:
        if section == "query":
            return csv(_queried(runs, key), section)
        table = _table(runs.named(key), section, asked_view())
        if table is None:
            abort(404)
        return csv(table, section)

    @server.get("/download/<key>/perfetto.json.gz")
    def _perfetto(key: str) -> Response:
        events = runs.named(key).events
        if events is None:
            abort(404)
        view = asked_view()
        if not exporting.acquire(blocking=False):  # no thread waits: the others go on answering
            return Response(f"{EXPORTS} windows are being saved: go back and try again", 503, {"Retry-After": "5"})
        try:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "window.json.gz"
                chrome_trace_export.write(cut(events.trace, events.clock, view.window, view.ranks), path)
                return attachment(path.read_bytes(), "window.json.gz", "application/gzip")
        finally:
            exporting.release()


def _queried(runs: Runs, key: str) -> pd.DataFrame:
    """The rows of the query in the address. Raises `MalformedStateError` where it is refused."""
    import pandas as pd  # here and below: it takes longer to import than a small run to read

    try:
        found = asked(runs, key, asked_view().extra.get(SQL, ""))
    except GpuscopeError as error:
        raise MalformedStateError(str(error)) from None
    return pd.DataFrame(found.rows, columns=list(found.columns), dtype=object)


def asked_view() -> View:
    """The state in the address. Raises `MalformedStateError` where a part of it is invalid."""
    view = parse(request.query_string.decode())
    if view.wrong:
        raise MalformedStateError("; ".join(f"{key}: {why}" for key, why in view.wrong.items()))
    return view


def _table(run: OpenRun, section: str, view: View) -> pd.DataFrame | None:
    """A section of the report, kernels of a part of the run, or what the pipeline's figures draw; else None."""
    import pandas as pd

    if section == "kernels" and run.trace is not None and filtered(view):
        return pd.json_normalize(kernel_rows(run, view)).drop(columns="short", errors="ignore")
    if section in run.tables.tables:
        return run.tables.tables[section]
    pipeline: dict[str, Any] = cast("dict[str, Any]", run.report).get("pipeline") or {}
    drawn = {"pipeline": "computations", "pipeline_ideal": "ideal"}.get(section)
    if drawn is not None and pipeline.get("timeline", {}).get(drawn):
        return pd.DataFrame(pipeline["timeline"][drawn])
    if section == "pipeline_bubbles" and pipeline.get("rows"):
        return pd.json_normalize(pipeline["rows"])
    return None


def csv(table: pd.DataFrame, name: str) -> Response:
    """A table as `name`.csv to save; text that a spreadsheet would take for a formula begins with an apostrophe."""
    text = table.map(_harmless).to_csv(index=False)
    return attachment(text.encode(errors="backslashreplace"), f"{name}.csv", "text/csv; charset=utf-8")


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA) else cell


def attachment(data: bytes, name: str, kind: str) -> Response:
    """`data` as a file to save."""
    return Response(data, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})


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
