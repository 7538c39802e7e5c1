"""Downloads: sections of the report as CSV, a window for Perfetto. No file on disk is served."""

from __future__ import annotations

import tempfile
from pathlib import Path

from flask import Flask, Response, abort, request

from gpuscope.analyzers.run import chrome_trace_export
from gpuscope.dashboards.data.cut import cut
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.state import parse


def register(server: Flask, runs: Runs) -> None:
    """Add the routes `/download/…`."""

    @server.get("/download/<key>/<section>.csv")
    def _csv(key: str, section: str) -> Response:
        if key not in runs or section not in runs[key].tables.tables:
            abort(404)
        text = runs[key].tables.tables[section].to_csv(index=False)
        return attachment(text.encode(errors="backslashreplace"), f"{section}.csv", "text/csv; charset=utf-8")

    @server.get("/download/<key>/perfetto.json.gz")
    def _perfetto(key: str) -> Response:
        events = runs[key].events if key in runs else None
        if events is None:
            abort(404)
        view = parse(request.query_string.decode())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "window.json.gz"
            chrome_trace_export.write(cut(events.trace, events.clock, view.window, view.ranks), path)
            return attachment(path.read_bytes(), "window.json.gz", "application/gzip")


def attachment(data: bytes, name: str, kind: str) -> Response:
    """`data` as a file to save."""
    return Response(data, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
