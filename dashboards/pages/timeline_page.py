"""Page 2: every event on one clock; zoom, pan, click, search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from gpuscope.dashboards import ids, parts
from gpuscope.dashboards.data import event_details
from gpuscope.dashboards.data.detail_levels import marks
from gpuscope.dashboards.data.events import SHOWN_AT_FIRST, Choice, Events
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.data.search import search
from gpuscope.dashboards.data.tracks import GROUPS, Track
from gpuscope.dashboards.figures import timeline_figure as drawing
from gpuscope.dashboards.page import Page, Shown
from gpuscope.dashboards.pages import event_panel
from gpuscope.dashboards.state import View, parse
from gpuscope.report.view import units

PATH = "/timeline"
MOVES = {"in": "Zoom in", "out": "Zoom out", "left": "Earlier", "right": "Later", "all": "All"}


def layout(shown: Shown) -> Component:
    """The page."""
    events = shown.run.events
    if events is None:
        return parts.empty("No timeline", units.clean(shown.run.why_no_events))
    view = shown.view
    groups = _groups(view, events)
    window = _window(view, events)
    choice = events.choose(view.ranks, groups)
    return html.Div([
        dcc.Store(id=ids.TIMELINE_WINDOW, data={"from": str(window[0]), "to": str(window[1])}),
        dcc.Store(id=ids.TIMELINE_QUERY),
        dcc.Store(id=ids.TIMELINE_EVENT, data=view.event),
        dcc.Store(id=ids.TIMELINE_BOUNDS, data=_bounds(events, groups)),
        parts.card(
            "Timeline",
            _controls(events, groups, view, shown.run),
            html.Div(_note(choice, events), id=ids.TIMELINE_NOTE),
            parts.figure(
                draw(events, choice, window, view, shown.dark), "timeline", drawing.height(len(choice.tracks)),
                id=ids.TIMELINE_GRAPH, config={"scrollZoom": True, "doubleClick": False},
            ),
            note="Drag to pan, scroll to zoom, click an event for its details. "
            "Events too narrow to be seen share a mark that says how many it stands for.",
        ),
        html.Div(_selected(events, view), id=ids.TIMELINE_SELECTED, **parts.attributes(aria_live="polite")),
        parts.card(
            "Search",
            dmc.TextInput(
                id=ids.TIMELINE_SEARCH, value=view.extra.get("find", ""), debounce=True,
                placeholder="part of a name, e.g. nccl or aten::mm", **parts.attributes(aria_label="Search by name"),
            ),
            html.Div(_found(events, view, window), id=ids.TIMELINE_FOUND),
        ),
    ])  # fmt: skip


def _bounds(events: Events, groups: list[str]) -> dict[str, str]:
    first, last = events.window
    return {"from": str(first), "to": str(last), "base": str(events.first), "tracks": ",".join(groups)}


def _controls(events: Events, groups: list[str], view: View, run: OpenRun) -> Component:
    buttons = [dmc.Button(label, id=ids.move(key), size="xs", variant="default") for key, label in MOVES.items()]
    present = events.present()
    return dmc.Group([
        dmc.ButtonGroup(buttons),
        dmc.ChipGroup(
            [dmc.Chip(GROUPS[group], value=group, size="xs") for group in present],
            id=ids.TIMELINE_TRACKS, multiple=True, value=[group for group in present if group in groups],
        ),
        dmc.Anchor("Open in Perfetto", id=ids.TIMELINE_EXPORT, href=_export(run, view), size="sm", refresh=True),
    ], gap="sm", mb="xs")  # fmt: skip


def _groups(view: View, events: Events) -> list[str]:
    asked = view.extra.get("tracks", "")
    return asked.split(",") if asked else [group for group in events.present() if group in SHOWN_AT_FIRST]


def _window(view: View, events: Events) -> tuple[int, int]:
    if view.window is not None:
        return view.window
    if view.steps is not None and (found := events.steps_window(view.steps, view.ranks)) is not None:
        return found
    return events.window


def _note(choice: Choice, events: Events) -> Component | None:
    said = []
    if not choice.tracks:
        return parts.empty("No tracks", "The filters exclude every track: choose other ranks or kinds of tracks.")
    if choice.left_out:
        said.append(f"{choice.left_out} more tracks don't fit: filter ranks or kinds of tracks.")
    if len(events.trace.ranks) > 1:
        error = events.clock.error
        said.append(
            "The ranks' clocks could not be aligned: times can't be compared across ranks."
            if error is None
            else f"Times of different ranks compare to within {units.duration(error)}."
        )
    return dmc.Text(" ".join(said), size="sm", c="dimmed") if said else None


def draw(events: Events, choice: Choice, window: tuple[int, int], view: View, dark: bool) -> dict[str, Any]:
    """The figure of these tracks in a window."""
    names, steps = events.trace.names, events.trace["steps"]

    def name(track: Track, place: int) -> str:
        row = int(track.rows[place])
        if track.table == "steps":
            return f"step {int(steps['step'][row])}"
        return names[int(events.trace[track.table]["name"][row])]

    frame = drawing.Frame(window, events.first, dark, events.place_of(view.event), _marked(view))
    return drawing.timeline(marks(choice.tracks, window), name, frame)


def _marked(view: View) -> tuple[int, int] | None:
    """The span marked by a link: `mark=START:END`, ns on the run's clock."""
    try:
        start, end = (int(part) for part in view.extra.get("mark", "").split(":"))
    except ValueError:
        return None
    return start, end


def _selected(events: Events, view: View) -> Component | None:
    if not view.event:
        return None
    found = event_details.details(events, view.event)
    if found is None:
        return parts.empty("No such event in this run", "Click an event of the timeline.")
    return event_panel.panel(found, events, view)


def _found(events: Events, view: View, window: tuple[int, int]) -> Component | None:
    text = view.extra.get("find", "")
    if not text:
        return None
    found = search(events, text, window[0], view.ranks)
    if not found.count:
        return parts.empty(
            f"No event is called «{units.clean(text)}»", "Part of a name is enough; case does not matter."
        )
    lines = [html.Li(event_panel.link(one, events, view)) for one in found.events]
    summary = f"{units.plural(found.count, 'event')}; from the start of the window on: " + ("" if lines else "none")
    return html.Div([dmc.Text(summary, size="sm", mt="xs"), html.Ul(lines, style={"paddingLeft": 20})])


def _export(run: OpenRun, view: View) -> str:
    return view.link(f"/download/{run.key}/perfetto.json.gz", event="", steps=None, extra={})


def register(app: Dash, runs: Runs) -> None:
    """Zoom, pan, tracks, selection and search; the address keeps their state."""

    def browser(function: str) -> ClientsideFunction:
        return ClientsideFunction("gpuscope", function)

    app.clientside_callback(
        browser("window"),
        Output(ids.TIMELINE_WINDOW, "data"),
        Input(ids.TIMELINE_GRAPH, "relayoutData"),
        *(Input(ids.move(key), "n_clicks") for key in MOVES),
        State(ids.TIMELINE_WINDOW, "data"),
        State(ids.TIMELINE_BOUNDS, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("pick"),
        Output(ids.TIMELINE_EVENT, "data"),
        Input(ids.TIMELINE_GRAPH, "clickData"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("address"),
        Output(ids.QUERY, "data", allow_duplicate=True),
        Output(ids.TIMELINE_QUERY, "data"),
        Input(ids.TIMELINE_WINDOW, "data"),
        Input(ids.TIMELINE_EVENT, "data"),
        Input(ids.TIMELINE_SEARCH, "value"),
        Input(ids.TIMELINE_TRACKS, "value"),
        State(ids.TIMELINE_BOUNDS, "data"),
        prevent_initial_call=True,
    )

    @app.callback(
        Output(ids.TIMELINE_GRAPH, "figure"),
        Output(ids.TIMELINE_GRAPH, "style"),
        Output(ids.TIMELINE_NOTE, "children"),
        Output(ids.TIMELINE_EXPORT, "href"),
        Output(ids.TIMELINE_SELECTED, "children"),
        Output(ids.TIMELINE_FOUND, "children"),
        Input(ids.TIMELINE_QUERY, "data"),
        State(ids.THEME, "data"),
        prevent_initial_call=True,
    )
    def _redraw(search_text: str | None, theme: str | None) -> tuple[Any, ...]:
        view = parse(search_text)
        run = runs.named(view.run)
        events = run.events
        assert events is not None  # otherwise these components do not exist
        window = _window(view, events)
        choice = events.choose(view.ranks, _groups(view, events))
        fig = draw(events, choice, window, view, theme == "dark")
        shown = replace(view, window=window)
        return (
            fig, {"height": drawing.height(len(choice.tracks))}, _note(choice, events), _export(run, shown),
            _selected(events, shown), _found(events, shown, window),
        )  # fmt: skip


PAGE = Page(PATH, "Timeline", 2, layout, register)
