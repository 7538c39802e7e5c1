"""The routes of the timeline's canvas: windows as columns, the next event of a row, and what an event leads to."""

from __future__ import annotations

import re
import secrets
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from threading import Lock
from typing import Any

import numpy as np
from dash import Dash
from dash.exceptions import DependencyException
from flask import Flask, Response, abort, jsonify, request
from werkzeug.exceptions import HTTPException

from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import NoSuchRunError, Runs
from gpuscope.dashboards.data.window_columns import TILE, critical_path, follow, window_columns
from gpuscope.dashboards.state import MalformedStateError
from gpuscope.dashboards.web.server import MAX_BODY

# How much one request may ask for, and the check that a callback's request is one the page could have sent.

MAX_ADDRESS = 8_192
"""Characters of a query string; the longest links here have a few hundred."""


def limit(app: Dash) -> None:
    """Answer what is too large with 413 or 414, and what no page sends with 400."""
    server = app.server
    server.config["MAX_CONTENT_LENGTH"] = MAX_BODY

    @server.before_request
    def _check() -> Response | None:
        if len(request.query_string) > MAX_ADDRESS:
            return _said(f"the address is longer than {MAX_ADDRESS} characters", 414)
        if request.path.endswith("/_dash-update-component") and request.method == "POST":
            try:
                body = request.get_json(silent=(request.content_length or 0) <= MAX_BODY)
            except RecursionError:
                return _said("the body is nested too deeply", 400)
            wrong = _malformed(body, app.callback_map)
            return _said(wrong, 400) if wrong else None
        return None

    @server.errorhandler(MalformedStateError)
    def _malformed_state(error: MalformedStateError) -> Response:
        return _said(str(error), 400)

    @server.errorhandler(NoSuchRunError)
    def _no_such_run(error: NoSuchRunError) -> Response:
        return _said(str(error), 404)

    @server.errorhandler(DependencyException)
    def _no_such_script(error: DependencyException) -> Response:  # noqa: ARG001
        return _said("there is no such script", 404)

    @server.errorhandler(UnicodeError)
    def _undecodable(error: UnicodeError) -> Response | HTTPException:  # noqa: ARG001
        return _said("the request is not valid text", 400)


def _said(why: str, status: int) -> Response:
    """As text: a word of the request may be in it."""
    return Response(why, status, content_type="text/plain; charset=utf-8")


def _malformed(body: Any, callbacks: Mapping[str, Any]) -> str:
    """Why a body is not one of the registered callbacks' requests; empty where it is."""
    if not isinstance(body, dict) or not isinstance(body.get("output"), str):
        return "the body is not a callback's request"
    callback = callbacks.get(body["output"])
    if callback is None or "callback" not in callback:
        return "there is no such callback"
    for key in ("inputs", "state"):
        asked, known = body.get(key, []), callback[key]
        if not isinstance(asked, list) or len(asked) != len(known):
            return f"not the {key} of this callback"
        for given, own in zip(asked, known, strict=True):
            if not isinstance(given, dict) or any(given.get(part) != own[part] for part in ("id", "property")):
                return f"not the {key} of this callback"
    changed = body.get("changedPropIds", [])
    if not isinstance(changed, list) or not all(isinstance(one, str) for one in changed):
        return "changedPropIds is not a list of names"
    return "" if _outputs(body.get("outputs")) == _named(body["output"]) else "not the outputs of this callback"


def _outputs(given: Any) -> list[tuple[str, str]] | None:
    listed = given if isinstance(given, list) else [given]
    if not all(isinstance(one, dict) for one in listed):
        return None
    return [(str(one.get("id")), str(one.get("property"))) for one in listed]


def _named(output: str) -> list[tuple[str, str]]:
    """Ids and properties in the name of a callback: `..a.x...b.y@hash..`, or `a.x` where it has one output."""
    names = output[2:-2].split("...") if output.startswith("..") else [output]
    return [(name.rpartition(".")[0], name.rpartition(".")[2]) for name in names]


def whole(text: str, least: int, most: int) -> int:
    """A whole number of the address in a range. Raises `MalformedStateError` for anything else."""
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise MalformedStateError(f"{text[:40]!r} is not a whole number from {least} to {most}")
    return int(text)


MAX_LEVEL = 50
MAX_TILES = 64
MAX_TRACKS = 400
"""More than a screen holds, at any zoom."""
MAX_CHUNKS = 8_000
"""Tiles of tracks in one answer: 250 rows on a screen of 8,000 pixels."""
BUILD = secrets.token_hex(4)
"""Part of the addresses: what they answer never changes while this program runs, so a browser may keep it."""


def address(key: str) -> str:
    """Where the canvas asks for the events of a run."""
    return f"/timeline-data/{key}/{BUILD}"


def register(server: Flask, runs: Runs) -> None:
    """Add the routes `/timeline-data/…`."""
    kept = KeptAnswers()

    @server.get("/timeline-data/<key>/<build>/cells")
    def _cells(key: str, build: str) -> Response:
        events = _events(runs, key, build)
        level, first, last = (
            _asked(name, low, high)
            for name, low, high in (
                ("level", 0, MAX_LEVEL),
                ("first", -(1 << 52), 1 << 52),
                ("last", -(1 << 52), 1 << 52),
            )
        )
        limit = 1 << 62
        if not first < last <= first + MAX_TILES or max(abs(first), abs(last)) * TILE << level >= limit:
            raise MalformedStateError("these are not tiles of a timeline")
        tracks = tracks_of(request.args.get("tracks", ""), len(events.tracks) + len(events.counters))
        if len(tracks) * (last - first) > MAX_CHUNKS:
            raise MalformedStateError("more than any screen shows")
        asked = (key, tuple(tracks), level, first, last)
        data = kept.get(asked, lambda: window_columns(events, tracks, level, first, last))
        answer = Response(data, content_type="application/octet-stream")
        answer.headers["Cache-Control"] = "private, max-age=86400, immutable"
        return answer

    @server.get("/timeline-data/<key>/<build>/next")
    def _next(key: str, build: str) -> Response:
        events = _events(runs, key, build)
        track = events.tracks[_asked("track", 0, len(events.tracks) - 1)]
        by = _asked("by", -1, 1)
        if "row" in request.args:
            row = _asked("row", 0, 1 << 40)
            at = np.flatnonzero(track.rows == row)
            place = int(at[0]) + by if len(at) else -1
        else:
            begun = _asked("at", -(1 << 61), 1 << 61) + events.origin
            place = int(np.searchsorted(track.start, begun, "left")) - (by < 0)
        return jsonify(_event(events, track, place) if 0 <= place < len(track) else None)

    @server.get("/timeline-data/<key>/<build>/follow")
    def _follow(key: str, build: str) -> Response:
        events = _events(runs, key, build)
        found = follow(events, request.args.get("ref", ""))
        place = found and events.place_of(found[0])
        if not found or not place:
            return jsonify(None)
        start, end = (at - events.origin for at in place[1])
        return jsonify({"ref": found[0], "start": start, "end": end, "why": found[1]})

    @server.get("/timeline-data/<key>/<build>/path")
    def _path(key: str, build: str) -> Response:
        events, what_if = _events(runs, key, build), runs.named(key).what_if
        return jsonify(critical_path(events, what_if.critical_path() if what_if is not None else ()))


def _event(events: Events, track: Any, place: int) -> dict[str, int]:
    return {
        "row": int(track.rows[place]),
        "start": int(track.start[place]) - events.origin,
        "end": int(track.end[place]) - events.origin,
    }


def _events(runs: Runs, key: str, build: str) -> Events:
    events = runs.named(key).events if build == BUILD else None
    if events is None:
        abort(404)
    return events


def _asked(name: str, least: int, most: int) -> int:
    return whole(request.args.get(name, ""), least, most)


def tracks_of(text: str, count: int) -> list[int]:
    """Track numbers written as `0-5,9`."""
    found: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"[0-9]{1,7}(-[0-9]{1,7})?", part):
            raise MalformedStateError("these are not numbers of tracks")
        low, _, high = part.partition("-")
        span = range(int(low), int(high or low) + 1)
        if not span or span[-1] >= count or len(found) + len(span) > MAX_TRACKS:
            raise MalformedStateError(f"there are {count} tracks, and at most {MAX_TRACKS} are sent at once")
        found += span
    return found


KEPT = 64 << 20
"""Bytes kept in all; what was asked for longest ago goes first."""


class KeptAnswers:
    """Bytes by key; several threads may ask."""

    def __init__(self, limit: int = KEPT) -> None:
        self._limit = limit
        self._kept: OrderedDict[Hashable, bytes] = OrderedDict()
        self._size = 0
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """What was kept under `key`, else what `make` returns, kept from now on."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
                return found
        made = make()  # outside the lock: others are answered meanwhile
        with self._lock:
            if key not in self._kept and len(made) <= self._limit:
                self._kept[key] = made
                self._size += len(made)
            while self._size > self._limit:
                self._size -= len(self._kept.popitem(last=False)[1])
        return made
