"""The application factory. All its data are in the `Runs` it is given, which are read-only."""

from __future__ import annotations

from functools import cache

from dash import Dash

from gpuscope.dashboards import downloads, security, shell
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.page import pages


def create_app(runs: Runs, token: str | None = None) -> Dash:
    """A dashboard of `runs`, as a Dash application whose `server` is a WSGI application.

    With a `token`, every request must carry it (in the address once, then as a cookie); without, only requests
    to a loopback name are answered.
    """
    app = Dash(
        "dashboards",
        title="gpuscope",
        update_title="",
        serve_locally=True,  # works without a network
        suppress_callback_exceptions=True,  # a page's components are created and removed
        use_pages=False,
        pages_folder="",
        add_log_handler=False,
    )
    app.layout = shell.layout(runs)
    shell.register(app, runs)
    for page in pages():
        page.register(app, runs)
    downloads.register(app.server, runs)

    @cache
    def hashes() -> list[str]:
        return list(app.csp_hashes())

    security.guard(app.server, token, hashes)
    return app
