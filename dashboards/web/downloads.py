"""Downloads: sections of the report as CSV, a window for Perfetto. No file on disk is served."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from flask import Flask, Response, abort, jsonify, request
from markupsafe import escape

from gpuscope.analyzers.run import set_apart
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, asked, filtered, kernel_rows
from gpuscope.dashboards.data.tracks import RunClock
from gpuscope.dashboards.state import SQL, MalformedStateError, View, parse
from gpuscope.dashboards.web import access
from gpuscope.errors import GpuscopeError
from gpuscope.progress import Reading
from gpuscope.trace.schema import NA, SCHEMAS
from gpuscope.trace.table import Table, order_rows, select_rows
from gpuscope.trace.trace import Trace
from gpuscope.words import units

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    import pandas as pd


# What a dashboard answers while its runs are still read: how far that is, on a page that becomes the dashboard.

STATE = "/starting"
_SCRIPT = """\
const show = (id, text) => { document.getElementById(id).textContent = text; };
async function ask() {
  try {
    const answer = await fetch("/starting");
    if (!(answer.headers.get("content-type") || "").startsWith("application/json")) return location.reload();
    const now = await answer.json();
    show("now", now.said);
    show("passed", now.passed);
    if (now.share !== null) document.getElementById("bar").value = now.share;
  } catch {
    return show("now", "It has ended: its terminal says why.");
  }
  setTimeout(ask, 200);
}
ask();
"""
_STYLE = """\
:root { color-scheme: light dark; }
body { font: 15px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; max-width: 46rem; margin: 12vh auto;
  padding: 0 1rem; }
progress { width: 100%; height: 1rem; } li { overflow-wrap: anywhere; }
"""


class Starting:
    """A WSGI application: at first the page of what is going on, then whatever the work has made."""

    def __init__(self, paths: Sequence[str], token: str, local: bool) -> None:
        self.progress: Reading | None = None
        """How far reading is; set by the work."""
        self.told = ""
        """What is known of the first run once all are read: shown while the pages are made."""
        self._paths = paths
        self._begun = time.monotonic()
        self._page = self._made(token, local)
        self._ready: WSGIApplication | None = None
        self._failed: BaseException | None = None
        self._over = False

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return (self._ready or self._page.wsgi_app)(environ, start_response)

    def begin(self, work: Callable[[], WSGIApplication], failed: Callable[[], None]) -> None:
        """Do the work beside the server; `failed` is called where it ends with an exception (`end`)."""

        def run() -> None:
            try:
                self._ready = work()
            except BaseException as error:  # raised again where the program waits
                if not self._over:
                    self._failed = error
                    failed()

        Thread(target=run, daemon=True).start()

    def file(self, name: str) -> None:
        """The next file begins. Raises `KeyboardInterrupt` where nobody waits for it any more."""
        if self._over:
            raise KeyboardInterrupt
        if self.progress is not None:
            self.progress.file(name)

    def end(self) -> None:
        """Let go of the work at its next file, and raise what it has ended with."""
        self._over = True
        if self._failed is not None:
            raise self._failed

    def _made(self, token: str, local: bool) -> Flask:
        server = Flask(__name__, static_folder=None)

        @server.get(STATE)
        def _state() -> Response:
            return jsonify(self._state())

        @server.get("/starting.js")
        def _script() -> Response:
            return Response(_SCRIPT, content_type="text/javascript; charset=utf-8")

        @server.get("/", defaults={"path": ""})
        @server.get("/<path:path>")
        def _any(path: str) -> Response:
            if path.startswith(("_", "assets/", "download/", "timeline-data/")):
                return Response("the runs are still being read", 503, {"Retry-After": "1"})
            names = "".join(f"<li>{escape(units.clean(Path(one).name or one))}" for one in self._paths)
            return Response(
                '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>gpuscope</title>'
                f"<style>{_STYLE}</style></head><body><main><h1>gpuscope</h1><ul>{names}</ul>"
                '<progress id="bar" max="1" value="0" aria-labelledby="now"></progress>'
                '<p><b id="now" role="status">Starting</b> <span id="passed"></span></p></main>'
                '<script src="/starting.js"></script></body></html>',
                content_type="text/html; charset=utf-8",
            )

        access.guard(server, token, local, list)
        return server

    def _state(self) -> dict[str, Any]:
        """What is going on, in words and as a share of the bytes."""
        passed = f"{round(time.monotonic() - self._begun)} s so far"
        progress = self.progress
        if self.told:
            return {"said": units.clean(self.told), "share": 1, "passed": passed}
        if progress is None:
            return {"said": "Starting", "share": None, "passed": passed}
        done, total = progress.done_bytes, max(progress.total_bytes or 0, progress.done_bytes, 1)
        doing = "Analysing" if done == total else "Reading"
        several = progress.files > 1 and progress.begun_files
        of = f" (file {progress.begun_files} of {progress.files})" if several else ""
        said = f"{doing} {units.clean(progress.label)}{of}: {units.size(done)} of {units.size(total)} read."
        return {"said": said, "share": done / total, "passed": passed}


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
                set_apart.write(cut(events.trace, events.clock, view.window, view.ranks), path)
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
