"""The application factory. All its data are in the `Runs` it is given, which are read-only."""

from __future__ import annotations

import logging
import os
from functools import cache
from pathlib import Path

import dash_mantine_components as dmc
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from flask import Flask, abort, request
from flask_compress import Compress

from gpuscope.dashboards import ui
from gpuscope.dashboards.data.open_runs import NoSuchRunError, Runs
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.dashboards.shared_view import shared_page as shared_view
from gpuscope.dashboards.state import MalformedStateError, View, parse, text
from gpuscope.dashboards.ui import Page, Shown, attributes, pages
from gpuscope.dashboards.web import access, downloads, timeline_data
from gpuscope.words import units

# The frame of every page: navigation, filters, theme, and the callbacks that link them to the address.

_log = logging.getLogger(__name__)


def layout(runs: Runs) -> Component:
    """The frame; pages are drawn into it."""
    return dmc.MantineProvider(
        id=ui.PROVIDER,
        theme=heatmap_figure.MANTINE,
        children=[
            # The page redraws itself for a new address, so the browser need not reload it.
            dcc.Location(id=ui.URL, refresh="callback-nav"),
            dcc.Store(id=ui.QUERY),
            dcc.Store(id=ui.DRAWN),
            dcc.Store(id=ui.THEME, storage_type="local"),
            html.A("Skip to the page", href=f"#{ui.CONTENT}", className="skip"),
            html.A("Skip to the timeline", href=f"#{ui.TIMELINE_ROWS}", className="skip skip-rows"),
            html.Div(
                [
                    html.Header(_header(runs), className="frame-head"),
                    html.Nav(
                        [html.Div("Not in this run", className="without-head"), *map(_nav_link, pages())],
                        **attributes(aria_label="Pages"),
                    ),
                    html.Main([_not_opened(runs), html.Div(id=ui.CONTENT, tabIndex="-1")]),
                ],
                className="frame",
            ),
        ],
    )


def _not_opened(runs: Runs) -> Component | None:
    """The paths that could not be opened, and why; open until the viewer closes it."""
    if not runs.not_opened:
        return None
    lines = [html.Li(units.clean(str(one.error)), className="not-opened") for one in runs.not_opened]
    summary = html.Summary(f"{units.plural(len(lines), 'path')} could not be opened")
    return html.Details([summary, html.Ul(lines, className="links")], className="missing", open=True)


def _nav_link(page: Page) -> Component:
    return dmc.NavLink(id=ui.nav(page.path), label=page.title, href=page.path)


def _header(runs: Runs) -> list[Component]:
    return [
        dmc.Title("gpuscope", order=1, size="h3"),
        html.Div(
            [
                dmc.Select(
                    id=ui.FILTER_RUN,
                    data=[{"value": run.key, "label": units.clean(run.label)} for run in runs.values()],
                    value=runs.first.key,
                    allowDeselect=False,
                    w=230,
                    size="xs",
                    label="Run",
                ),
                dmc.TextInput(
                    id=ui.FILTER_RANKS, label="Ranks", placeholder="all, or 0-3,7", debounce=True, w=130, size="xs"
                ),
                dmc.TextInput(
                    id=ui.FILTER_STEPS, label="Steps", placeholder="all, or 3-8", debounce=True, w=130, size="xs"
                ),
                dmc.Button("Light / dark", id=ui.THEME_BUTTON, variant="default", size="xs"),
            ],
            className="filters",
        ),
    ]


def register(app: Dash, runs: Runs) -> None:
    """Link the frame to the address: drawing pages, filters, links, theme."""

    @app.callback(
        Output(ui.CONTENT, "children"),
        Output(ui.FILTER_RUN, "value"),
        Output(ui.FILTER_RANKS, "value"),
        Output(ui.FILTER_STEPS, "value"),
        Output(ui.FILTER_RANKS, "error"),
        Output(ui.FILTER_STEPS, "error"),
        Input(ui.DRAWN, "data"),
        prevent_initial_call=True,
    )
    def _draw(asked: object) -> tuple[Component, str | None, str, str, str, str]:
        path, search, scheme = _asked(asked)
        view = parse(search)
        try:
            run = runs.named(view.run)
        except NoSuchRunError as error:
            return _no_run(path or "/", view, runs, error), None, "", "", "", ""
        shown = Shown(run, view, runs, scheme == "dark")
        ranks = units.ranks(view.ranks) if view.ranks is not None else ""
        steps = "-".join(map(str, view.steps)) if view.steps is not None else ""
        wrong = view.wrong
        return draw(path or "/", shown), run.key, ranks, steps, wrong.get("ranks", ""), wrong.get("steps", "")

    def browser(function: str) -> ClientsideFunction:
        return ClientsideFunction("gpuscope", function)

    app.clientside_callback(
        browser("page"),
        Output(ui.DRAWN, "data"),
        Input(ui.URL, "pathname"),
        Input(ui.URL, "search"),
        Input(ui.THEME, "data"),
    )
    app.clientside_callback(
        browser("filter"),
        Output(ui.URL, "search"),
        Input(ui.FILTER_RUN, "value"),
        Input(ui.FILTER_RANKS, "value"),
        Input(ui.FILTER_STEPS, "value"),
        State(ui.FILTER_RUN, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("extra"),
        Output(ui.URL, "search", allow_duplicate=True),
        Input({"type": "extra", "key": ALL}, "value"),
        State({"type": "extra", "key": ALL}, "id"),
        prevent_initial_call=True,
    )
    app.clientside_callback(browser("query"), Output(ui.QUERY, "data"), Input(ui.URL, "search"))
    app.clientside_callback(
        browser("links"),
        Output({"type": "nav", "path": ALL}, "href"),
        Output({"type": "nav", "path": ALL}, "active"),
        Input(ui.QUERY, "data"),
        Input(ui.URL, "pathname"),
        State({"type": "nav", "path": ALL}, "id"),
    )
    app.clientside_callback(
        browser("without"),
        Output({"type": "nav", "path": ALL}, "className"),
        Input(ui.WITHOUT, "data"),
        State({"type": "nav", "path": ALL}, "id"),
    )
    app.clientside_callback(
        browser("lead"),
        Output(ui.URL, "pathname"),
        Output(ui.URL, "search", allow_duplicate=True),
        Input({"type": "lead", "name": ALL}, "clickData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("tell"),
        Output({"type": "telling", "name": MATCH}, "children"),
        Input({"type": "told", "name": MATCH}, "clickData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("turn"),
        Output(ui.THEME, "data"),
        Input(ui.THEME_BUTTON, "n_clicks"),
        State(ui.THEME, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(browser("scheme"), Output(ui.PROVIDER, "forceColorScheme"), Input(ui.THEME, "data"))


def _asked(state: object) -> tuple[str, str, str]:
    if not isinstance(state, dict):
        raise MalformedStateError("the page asked for is no page")
    return text(state.get("path")), text(state.get("search")), text(state.get("theme"))


def draw(path: str, shown: Shown) -> Component:
    """The page at `path`, or a placeholder if there is none."""
    page = next((one for one in pages() if one.path == path), None)
    if page is None:
        return ui.empty(f"There is no page {path}", "Choose one on the left.")
    notes = [
        ui.ignored(key, why)
        for key, why in shown.view.wrong.items()
        if key not in ("ranks", "steps")  # their fields show it themselves
    ]
    notes += _unknown(shown.view, shown)
    without = dcc.Store(id=ui.WITHOUT, data=[one.path for one in pages() if not one.has(shown.run)])
    return html.Div([without, *notes, _drawn(page, shown)], key=path + shown.view.query(), **attributes(data_page=path))


def _no_run(path: str, view: View, runs: Runs, error: NoSuchRunError) -> Component:
    """What any page shows of a run that is not open: nothing of another one."""
    links = [
        html.Li(dmc.Anchor(f"Run {run.key}: {units.clean(run.label)}", href=View(run.key).link(path), size="sm"))
        for run in runs.values()
    ]
    note = ui.empty(error.what, html.Ul(links, className="links"))
    return html.Div(note, key=path + view.query(), **attributes(data_page=path))


def _drawn(page: Page, shown: Shown) -> Component:
    try:
        return page.layout(shown)
    except Exception as error:  # an error in one page must not hide others or look like an empty page
        _log.exception("the page %s can't be drawn", page.path)
        return ui.empty(f"The page «{page.title}» can't be drawn", f"{type(error).__name__}: {error}")


def _unknown(view: View, shown: Shown) -> list[Component]:
    """Ranks in the address that don't exist."""
    notes: list[Component] = []
    present = set(shown.run.report["trace"]["ranks_present"])
    if view.ranks is not None and present and not view.ranks & present:
        notes.append(
            ui.empty(
                f"This run has no rank {units.ranks(view.ranks)}",
                f"It has ranks {units.ranks(present)}: change the filter.",
            )
        )
    return notes


ASSETS = Path(__file__).resolve().with_name("assets")
"""By its own path: looked up by the name of a module, Dash would take the working folder's where it finds none."""


def create_app(runs: Runs, token: str, local: bool = True) -> Dash:
    """A dashboard of `runs`, as a Dash application whose `server` is a WSGI application.

    Every request must carry the `token` (in the address once, then as a cookie). With `local`, only requests to a
    loopback name are answered.
    """
    app = new_app()
    app.layout = layout(runs)
    register(app, runs)
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
    head = f"<style>{heatmap_figure.PAGE_CSS}</style></head>"
    app.index_string = app.index_string.replace("<html>", '<html lang="en">').replace("</head>", head)
    return app


def protect(app: Dash, token: str, local: bool) -> None:
    """Check every request, and pack every answer; once all callbacks are registered."""

    @cache
    def hashes() -> list[str]:
        return list(app.csp_hashes())

    access.guard(app.server, token, local, hashes)
    only(app.server, ASSETS)
    timeline_data.limit(app)
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
