"""Dashboards for tests: served on a free port, or asked without a network."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

from flask.testing import FlaskClient

from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.web.server import listen

TOKEN = "of-the-tests"


def serve(runs: Runs) -> Iterator[str]:
    """The address of a dashboard of these runs, while it is served."""
    with listen("127.0.0.1", 0) as server:
        server.set_app(create_app(runs, TOKEN).server)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.port}"
        server.shutdown()
        thread.join(10)


def viewer(*runs: OpenRun, token: str = TOKEN) -> FlaskClient:
    """A browser that has opened the address with the token."""
    client = create_app(Runs(runs), token).server.test_client()
    assert client.get("/", query_string={"token": token}).status_code == 302
    return client
