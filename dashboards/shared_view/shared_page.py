"""The file: the timeline's own scripts, what the page tells them, and the window's events at several zooms.

It holds no token and asks for nothing: its policy lets no address be reached.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from threading import Lock

from flask import Flask, Response, abort
from markupsafe import escape

from gpuscope.dashboards.data import event_details
from gpuscope.dashboards.data.counter_tracks import Node
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.data.window_columns import TILE, overview, window_columns
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.dashboards.pages.timeline_page import BUTTONS, MAP_COLUMNS, PICTURES, setup
from gpuscope.dashboards.ui import Shown
from gpuscope.dashboards.web.downloads import asked_view, attachment
from gpuscope.dashboards.web.timeline_data import MAX_CHUNKS, MAX_TILES, tracks_of
from gpuscope.report.view.first_lines import first_lines
from gpuscope.words import units

MOST_BYTES = 12 << 20
"""Of the events, packed: finer zooms than fit are left out."""
NARROWEST = 500
"""Pixels of the narrowest screen: how far zooms are coarse."""
_HERE = Path(__file__).resolve().parent
_ASSETS = _HERE.with_name("assets")
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def shared_page(shown: Shown, events: Events, tracks: Sequence[int]) -> str:
    """The view as HTML: these rows, in the window of the address."""
    window = shown.view.window or events.window
    chosen = event_details.details(events, shown.view.event) if shown.view.event else None
    told = setup(shown, events, chosen)
    told["window"] = told["bounds"] = [at - events.origin for at in window]
    low, high = told["window"]
    told["jumps"] = {
        kind: [one for one in listed if low <= one["start"] and one["end"] <= high]
        for kind, listed in told["jumps"].items()
    }
    told["tree"] = _pruned(told["tree"], set(tracks))
    own = [events.tracks[number] for number in tracks if number < len(events.tracks)]
    told["overview"] = overview(events, own, MAP_COLUMNS, window)
    told["view"] = {key: shown.view.extra.get(key, "") for key in ("mark", "range", "pin", "tree", "colour")} | {
        "event": shown.view.event
    }
    told["whole"] = "all of this file"
    told["answers"] = _answers(events, tracks, window)
    scripts = [*sorted((_ASSETS / "timeline").glob("*.js")), _HERE / "shared_view.js"]
    styles = [_ASSETS / "gpuscope.css", _HERE / "shared_view.css"]
    title = units.clean(f"{shown.run.label}: {units.duration(window[1] - window[0])} of the timeline")
    data = json.dumps(told, separators=(",", ":")).replace("<", "\\u003c")
    return f"""<!doctype html>
<html lang="en" data-mantine-color-scheme="{"dark" if shown.dark else "light"}"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width"><title>{escape(title)} · gpuscope</title>
<style>{heatmap_figure.PAGE_CSS}{"".join(path.read_text(encoding="utf-8") for path in styles)}</style></head>
<body class="shared"><h1>{escape(title)}</h1><p>{escape(units.clean(first_lines(shown.run.report).one_line()))}</p>
<div class="timeline-tools"><input id="timeline-search" type="search" placeholder="Search by name  ( / )"
aria-label="Search by name">{_buttons()}</div><main><div id="timeline"></div></main>
<script type="application/json" id="told">{data}</script>
<script>{"".join(path.read_text(encoding="utf-8") for path in scripts)}</script></body></html>
"""


def _buttons() -> str:
    listed = [("act", act, label, title) for act, label, title in BUTTONS if act != "steady"]
    listed += [("act", "colour", "Colour by name", "Colour by name")]
    listed += [("picture", kind, label, title) for kind, label, title in PICTURES if kind != "html"]
    return "".join(
        f'<button class="tool" data-{kind}="{what}" title="{escape(title)}">{escape(label)}</button>'
        for kind, what, label, title in listed
    )


def _pruned(nodes: Sequence[Node], tracks: Collection[int]) -> list[Node]:
    """The tree without rows of other tracks."""
    kept: list[Node] = []
    for node in nodes:
        rows = [row for row in node["rows"] if row in tracks]
        children = _pruned(node["children"], tracks)
        summary, beside = (node[own] if node[own] in tracks else -1 for own in ("summary", "beside"))
        if rows or children or summary >= 0:
            kept.append(Node(**{**node, "rows": rows, "children": children, "summary": summary, "beside": beside}))
    return kept


def _answers(events: Events, tracks: Sequence[int], window: tuple[int, int]) -> list[str]:
    """The window as the server would send it, packed: each level finer than the one before, as far as they fit."""
    found: list[str] = []
    size = 0
    level = max((window[1] - window[0]) // NARROWEST, 1).bit_length()
    while level >= 0:
        first, last = (at - events.origin >> level for at in window)
        first, last = first // TILE, last // TILE + 1
        if found and (last - first > MAX_TILES or (last - first) * len(tracks) > MAX_CHUNKS):
            break
        packed = base64.b64encode(zlib.compress(window_columns(events, tracks, level, first, last), 6)).decode()
        size += len(packed)
        if found and size > MOST_BYTES:
            break
        found.append(packed)
        level -= 1
    return found


# The route of a view in one file.


def register(server: Flask, runs: Runs) -> None:
    """Add the route `/download/…/view.html`."""
    busy = Lock()

    @server.get("/download/<key>/view.html")
    def _view(key: str) -> Response:

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
