"""Files a viewer may take: sections of the report as CSV. Nothing on disk is served, whatever its path."""

from __future__ import annotations

from flask import Flask, Response, abort

from dashboards.data.runs import Runs


def register(server: Flask, runs: Runs) -> None:
    """Add the routes `/download/…`."""

    @server.get("/download/<key>/<section>.csv")
    def _csv(key: str, section: str) -> Response:
        if key not in runs or section not in runs[key].tables.tables:
            abort(404)
        text = runs[key].tables.tables[section].to_csv(index=False)
        return attachment(text.encode(errors="backslashreplace"), f"{section}.csv", "text/csv; charset=utf-8")


def attachment(data: bytes, name: str, kind: str) -> Response:
    """`data` as a file to save."""
    return Response(data, content_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
