"""The frame of every page: navigation, filters, theme, and the callbacks that link them to the address."""

from __future__ import annotations

import logging

import dash_mantine_components as dmc
from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from gpuscope.dashboards import ids, theme, ui
from gpuscope.dashboards.data.open_runs import NoSuchRunError, Runs
from gpuscope.dashboards.page import Page, Shown, pages
from gpuscope.dashboards.state import MalformedStateError, View, parse, text
from gpuscope.dashboards.ui import attributes
from gpuscope.words import units

_log = logging.getLogger(__name__)


def layout(runs: Runs) -> Component:
    """The frame; pages are drawn into it."""
    return dmc.MantineProvider(
        id=ids.PROVIDER,
        theme=theme.MANTINE,
        children=[
            # The page redraws itself for a new address, so the browser need not reload it.
            dcc.Location(id=ids.URL, refresh="callback-nav"),
            dcc.Store(id=ids.QUERY),
            dcc.Store(id=ids.DRAWN),
            dcc.Store(id=ids.THEME, storage_type="local"),
            html.A("Skip to the page", href=f"#{ids.CONTENT}", className="skip"),
            html.A("Skip to the timeline", href=f"#{ids.TIMELINE_ROWS}", className="skip skip-rows"),
            html.Div(
                [
                    html.Header(_header(runs), className="frame-head"),
                    html.Nav(
                        [html.Div("Not in this run", className="without-head"), *map(_nav_link, pages())],
                        **attributes(aria_label="Pages"),
                    ),
                    html.Main([_not_opened(runs), html.Div(id=ids.CONTENT, tabIndex="-1")]),
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
    return dmc.NavLink(id=ids.nav(page.path), label=page.title, href=page.path)


def _header(runs: Runs) -> list[Component]:
    return [
        dmc.Title("gpuscope", order=1, size="h3"),
        html.Div(
            [
                dmc.Select(
                    id=ids.FILTER_RUN,
                    data=[{"value": run.key, "label": units.clean(run.label)} for run in runs.values()],
                    value=runs.first.key,
                    allowDeselect=False,
                    w=230,
                    size="xs",
                    label="Run",
                ),
                dmc.TextInput(
                    id=ids.FILTER_RANKS, label="Ranks", placeholder="all, or 0-3,7", debounce=True, w=130, size="xs"
                ),
                dmc.TextInput(
                    id=ids.FILTER_STEPS, label="Steps", placeholder="all, or 3-8", debounce=True, w=130, size="xs"
                ),
                dmc.Button("Light / dark", id=ids.THEME_BUTTON, variant="default", size="xs"),
            ],
            className="filters",
        ),
    ]


def register(app: Dash, runs: Runs) -> None:
    """Link the frame to the address: drawing pages, filters, links, theme."""

    @app.callback(
        Output(ids.CONTENT, "children"),
        Output(ids.FILTER_RUN, "value"),
        Output(ids.FILTER_RANKS, "value"),
        Output(ids.FILTER_STEPS, "value"),
        Output(ids.FILTER_RANKS, "error"),
        Output(ids.FILTER_STEPS, "error"),
        Input(ids.DRAWN, "data"),
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
        Output(ids.DRAWN, "data"),
        Input(ids.URL, "pathname"),
        Input(ids.URL, "search"),
        Input(ids.THEME, "data"),
    )
    app.clientside_callback(
        browser("filter"),
        Output(ids.URL, "search"),
        Input(ids.FILTER_RUN, "value"),
        Input(ids.FILTER_RANKS, "value"),
        Input(ids.FILTER_STEPS, "value"),
        State(ids.FILTER_RUN, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("extra"),
        Output(ids.URL, "search", allow_duplicate=True),
        Input({"type": "extra", "key": ALL}, "value"),
        State({"type": "extra", "key": ALL}, "id"),
        prevent_initial_call=True,
    )
    app.clientside_callback(browser("query"), Output(ids.QUERY, "data"), Input(ids.URL, "search"))
    app.clientside_callback(
        browser("links"),
        Output({"type": "nav", "path": ALL}, "href"),
        Output({"type": "nav", "path": ALL}, "active"),
        Input(ids.QUERY, "data"),
        Input(ids.URL, "pathname"),
        State({"type": "nav", "path": ALL}, "id"),
    )
    app.clientside_callback(
        browser("without"),
        Output({"type": "nav", "path": ALL}, "className"),
        Input(ids.WITHOUT, "data"),
        State({"type": "nav", "path": ALL}, "id"),
    )
    app.clientside_callback(
        browser("lead"),
        Output(ids.URL, "pathname"),
        Output(ids.URL, "search", allow_duplicate=True),
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
        Output(ids.THEME, "data"),
        Input(ids.THEME_BUTTON, "n_clicks"),
        State(ids.THEME, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(browser("scheme"), Output(ids.PROVIDER, "forceColorScheme"), Input(ids.THEME, "data"))


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
    without = dcc.Store(id=ids.WITHOUT, data=[one.path for one in pages() if not one.has(shown.run)])
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
