"""Dashboards for tests: served on a free port, or asked without a network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from dash import Dash
from flask.testing import FlaskClient

from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.web.server import listen
from helpers.browser import TOKEN

UPDATE = "/_dash-update-component"


def serve(runs: Runs) -> Iterator[str]:
    """The address of a dashboard of these runs, while it is served."""
    with served(create_app(runs, TOKEN)) as address:
        yield address


@contextmanager
def served(app: Dash) -> Iterator[str]:
    """The address of an application, while it is served."""
    with listen("127.0.0.1", 0) as server:
        server.set_app(app.server)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.port}"
        server.shutdown()
        thread.join(10)


def viewer(*runs: OpenRun, token: str = TOKEN) -> FlaskClient:
    """A browser that has opened the address with the token."""
    return viewer_of(Runs(runs), token)


def viewer_of(runs: Runs, token: str = TOKEN) -> FlaskClient:
    """As `viewer`, of runs that were opened together."""
    client = create_app(runs, token).server.test_client()
    assert client.get("/", query_string={"token": token}).status_code == 302
    return client


def request_of(client: Any, search: object, path: object = "/timeline", **more: object) -> Any:
    """What the page sends to be drawn, with a state of our choosing."""
    callbacks = client.get("/_dash-dependencies").get_json()
    one = next(one for one in callbacks if "content.children" in one["output"])
    outputs = [
        dict(zip(("id", "property"), name.rsplit(".", 1), strict=True)) for name in one["output"][2:-2].split("...")
    ]
    state = {"path": path, "search": search, "theme": "light"}
    body = {
        "output": one["output"],
        "outputs": outputs,
        "changedPropIds": ["drawn.data"],
        "inputs": [{**entry, "value": state} for entry in one["inputs"]],
        "state": [],
    }
    return client.post(UPDATE, json={**body, **more})
