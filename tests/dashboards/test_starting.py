"""What is answered while runs are read: how far that is, only to those with the token; then the dashboard."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from flask import Flask
from helpers.browser import TOKEN, Browser
from helpers.cli import call
from werkzeug.test import Client

from gpuscope.dashboards.app import create_app
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.web.downloads import STATE, Starting
from gpuscope.dashboards.web.server import listen
from gpuscope.errors import InputError
from gpuscope.progress import Reading


def ready() -> Flask:
    app = Flask("ready")
    app.add_url_rule(STATE, view_func=lambda: "the dashboard")
    return app


def test_it_says_how_far_it_is_and_then_hands_on() -> None:
    starting = Starting(["runs/<b>one</b>"], TOKEN, True)
    client: Any = Client(starting)
    assert client.get("/", headers={"Host": "localhost"}).status_code == 401
    assert client.get("/", query_string={"token": TOKEN}).status_code == 302
    page = client.get("/timeline")
    assert "&lt;b&gt;one" not in page.text  # a name is the path's last part
    assert "b&gt;" in page.text
    assert "<script src=" in page.text
    assert client.get("/_dash-layout").status_code == 503
    assert client.get(STATE).get_json()["share"] is None
    starting.progress = Reading(4_000, "reading", 8)
    starting.progress.file("rank2.json")
    starting.progress(1_000)
    now = client.get(STATE).get_json()
    assert (now["share"], now["said"].partition(":")[0]) == (0.25, "Reading rank2.json (file 1 of 8)")
    starting.told = "Rank 2 is late"
    assert client.get(STATE).get_json()["said"] == "Rank 2 is late"
    go, failed = Event(), Event()

    def work() -> Flask:
        go.wait(10)
        return ready()

    starting.begin(work, failed.set)
    assert client.get(STATE).is_json
    go.set()
    while client.get(STATE).is_json:
        failed.wait(0.01)
    assert client.get(STATE).text == "the dashboard"
    starting.end()
    assert not failed.is_set()
    with pytest.raises(KeyboardInterrupt):  # nobody waits for further files
        starting.file("rank3.json")


def test_what_goes_wrong_ends_the_program_with_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "dashboard", tmp_path / "absent", "--port", 0)
    assert done.returncode == InputError.exit_code
    assert (str(tmp_path / "absent") in done.stderr, done.stdout) == (True, "")  # no address of what isn't there


@pytest.mark.xdist_group("browser")
def test_the_page_becomes_the_dashboard(browser: Browser, slow_rank: OpenRun) -> None:
    go = Event()
    starting = Starting(["ddp_slow_rank"], TOKEN, True)
    with listen("127.0.0.1", 0) as server:
        server.set_app(starting)

        def work() -> Any:
            starting.progress = Reading(100, "rank0.json.gz", 1)
            go.wait(30)
            return create_app(Runs([slow_rank]), TOKEN).server

        starting.begin(work, server.shutdown)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        browser.errors()
        browser.driver.get(f"http://127.0.0.1:{server.port}/timeline?token={TOKEN}")
        browser.wait(lambda: "rank0.json.gz" in browser.text("#now"))
        assert browser.violations() == []
        go.set()
        browser.wait(lambda: browser.script("return document.querySelector('[data-page]')"), 30)
        browser.drawn("/timeline")
        assert browser.errors() == []
        server.shutdown()
        thread.join(10)
