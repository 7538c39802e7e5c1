"""How much one request may ask for, and the check that a callback's request is one the page could have sent."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dash import Dash
from dash.exceptions import DependencyException
from flask import Response, request
from werkzeug.exceptions import HTTPException

from gpuscope.dashboards.data.open_runs import NoSuchRunError
from gpuscope.dashboards.state import MalformedStateError
from gpuscope.dashboards.web.server import MAX_BODY

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
