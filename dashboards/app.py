"""The application factory. All its data are in the `Runs` it is given, which are read-only."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from dash import Dash
from flask import Flask, abort, request
from flask_compress import Compress

from gpuscope.dashboards import shell, theme
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.page import pages
from gpuscope.dashboards.shared_view import download as shared_view
from gpuscope.dashboards.web import access, downloads, limits, timeline_data

ASSETS = Path(__file__).resolve().with_name("assets")
"""By its own path: looked up by the name of a module, Dash would take the working folder's where it finds none."""


def create_app(runs: Runs, token: str, local: bool = True) -> Dash:
    """A dashboard of `runs`, as a Dash application whose `server` is a WSGI application.

    Every request must carry the `token` (in the address once, then as a cookie). With `local`, only requests to a
    loopback name are answered.
    """
    app = new_app()
    app.layout = shell.layout(runs)
    shell.register(app, runs)
    for page in pages():
        page.register(app, runs)
    downloads.register(app.server, runs)
    shared_view.register(app.server, runs)
    timeline_data.register(app.server, runs)
    protect(app, token, local)
    return app


def new_app() -> Dash:
    """An empty application that works without a network."""
    app = Dash(
        __name__,
        # Without Flask's own folder of files, named «static»; Dash takes an application too, as its documentation says.
        server=Flask(__name__, static_folder=None),  # type: ignore[arg-type]
        assets_folder=str(ASSETS),
        title="gpuscope",
        update_title="",
        serve_locally=True,  # works without a network
        suppress_callback_exceptions=True,  # a page's components are created and removed
        use_pages=False,
        pages_folder="",
        add_log_handler=False,
    )
    head = f"<style>{theme.PAGE_CSS}</style></head>"
    app.index_string = app.index_string.replace("<html>", '<html lang="en">').replace("</head>", head)
    return app


def protect(app: Dash, token: str, local: bool) -> None:
    """Check every request, and pack every answer; once all callbacks are registered."""

    @cache
    def hashes() -> list[str]:
        return list(app.csp_hashes())

    access.guard(app.server, token, local, hashes)
    only(app.server, ASSETS)
    limits.limit(app)
    # In the encoding the browser takes, quickly rather than tightly.
    app.server.config["COMPRESS_ZSTD_LEVEL"] = app.server.config["COMPRESS_LEVEL"] = 3
    app.server.config["COMPRESS_BR_LEVEL"] = 1  # at 4, a window of the timeline takes longer to pack than to find
    app.server.config["COMPRESS_ALGORITHM_STREAMING"] = ["zstd", "br", "gzip"]  # files, too
    Compress(app.server).compress_mimetypes_set.add("application/octet-stream")  # the timeline's columns


ROUTE = "/assets/"


def only(server: Flask, folder: Path) -> None:
    """Of what lies in `folder`, serve files that are there themselves: 404 for a link that leads out of it."""

    @server.before_request
    def _check() -> None:
        if request.path.startswith(ROUTE) and not _own(folder, request.path.removeprefix(ROUTE)):
            abort(404)


def _own(folder: Path, name: str) -> bool:
    if "\0" in name:
        return False
    file = os.path.realpath(folder / name)
    return Path(file).is_relative_to(folder) and os.path.isfile(file)
