"""The route of a view in one file."""

from __future__ import annotations

from threading import Lock

from flask import Flask, Response, abort

from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.page import Shown
from gpuscope.dashboards.web.downloads import asked_view, attachment
from gpuscope.dashboards.web.timeline_data import tracks_of


def register(server: Flask, runs: Runs) -> None:
    """Add the route `/download/…/view.html`."""
    busy = Lock()

    @server.get("/download/<key>/view.html")
    def _view(key: str) -> Response:
        from gpuscope.dashboards.shared_view.shared_page import shared_page

        run = runs.named(key)
        if run.events is None:
            abort(404)
        view = asked_view()
        tracks = tracks_of(view.extra.get("tracks", ""), len(run.events.tracks) + len(run.events.counters))
        if not busy.acquire(blocking=False):  # no thread waits: the others go on answering
            return Response("another view is being saved: go back and try again", 503, {"Retry-After": "5"})
        try:
            shown = Shown(run, view, runs, view.extra.get("theme") == "dark")
            page = shared_page(shown, run.events, tracks).encode()
            return attachment(page, "timeline.html", "text/html; charset=utf-8")
        finally:
            busy.release()
