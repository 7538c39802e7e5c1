"""Every event on one clock. assets/timeline draws it; this page gives it its data and shows what is chosen."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.data import event_details
from gpuscope.dashboards.data.counter_tracks import EVENT_STYLES, tree
from gpuscope.dashboards.data.event_details import flows, range_statistics, search
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import OpenRun, Runs, asked, places
from gpuscope.dashboards.data.window_columns import jumps, overview
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.dashboards.pages import event_panel
from gpuscope.dashboards.state import SQL, View, parse, span_of, text
from gpuscope.dashboards.ui import FINDING, Page, Shown, timeline_view
from gpuscope.dashboards.web import timeline_data
from gpuscope.errors import GpuscopeError
from gpuscope.report.view import report_rows
from gpuscope.words import units, vocabulary
from gpuscope.words.units import short_kernel

PATH = "/timeline"
MAP_COLUMNS = 600
MAX_SEARCH = 200
COUNTER = "c"
"""The letter of a row of a counter, beside `event_details.LETTERS`."""
BUTTONS = (
    ("in", "+", "Zoom in (W)"),
    ("out", "−", "Zoom out (S)"),
    ("left", "←", "Earlier (A)"),
    ("right", "→", "Later (D)"),
    ("fit", "Fit", "Fit the selection (F)"),
    ("steady", "Steady", "Show the steady steps"),
    ("all", "All", "All of the recording (0)"),
)
PICTURES = (
    ("png", "PNG", "Save what is shown as a picture (PNG)"),
    ("svg", "SVG", "Save what is shown as a picture (SVG)"),
    ("html", "Share", "Save this view, with its events, as one file that anybody can open"),
)
JUMPS = (
    ("gap", "gap", "The next longest time without work of a device or training thread (G)"),
    ("late", "late rank", "The next collective that waits for a late rank, the longest wait first (L)"),
    ("step", "slow step", "The next longest step (T)"),
    ("follow", "Follow", "From the event selected to its launch, kernel, what it waited for, who was late (C)"),
)
ROW_JUMP = (("row", "row", "Next row of the query (Q)"),)
KEYS = (
    ("W S", "zoom in, out, where the pointer is"),
    ("A D", "earlier, later"),
    ("F", "fit the selection"),
    ("0", "the whole recording"),
    ("M", "mark the selection"),
    ("R", "the event as a range"),
    ("E", "ruler: from this event's start to another's; Shift + E: ends"),
    ("/", "search; Enter: the first found, and the keys are the timeline's again"),
    ("N", "the next found"),
    ("G, L, T", "the next longest gap, late collective, slow step"),
    ("Q", "the next row of the query"),
    ("K", "the critical path, in the line of each rank"),
    ("C", "from launch to kernel, what it waited for, who was late"),
    ("Shift G, L, T, Q, N", "the one before"),
    ("Esc", "select nothing; leave the search"),
    ("↑ ↓", "rows"),
    ("← →", "events of a row"),
    (", .", "the same, wherever the focus is"),
    ("Enter", "open or close a row"),
    ("P", "pin the row; also «pin» at its name"),
    ("wheel", "scroll the rows"),
    ("Ctrl wheel", "zoom"),
    ("Shift wheel, Shift drag", "earlier, later"),
    ("drag", "choose a range"),
    ("Back", "undo a zoom"),
)


def layout(shown: Shown) -> Component:
    """The page."""
    events = shown.run.events
    if events is None:
        return ui.empty("No timeline", units.clean(shown.run.why_no_events))
    view = shown.view
    found = event_details.details(events, view.event) if view.event else None
    rows, told = _rows(shown, events)
    return html.Div(
        [
            dcc.Store(id=ui.TIMELINE_SETUP, data=setup(shown, events, found) | {"rows": rows}),
            dcc.Store(id=ui.TIMELINE_READY),
            dcc.Store(id=ui.TIMELINE_FLOWS),
            dcc.Store(id=ui.TIMELINE_EVENT),
            dcc.Store(id=ui.TIMELINE_RANGE),
            html.H2("Timeline", className="hidden"),
            pinned(shown, events),
            told,
            _tools(shown.run, view, bool(rows)),
            html.Div(
                [
                    html.Div(id=ui.TIMELINE),
                    html.Aside(
                        [
                            html.Button(
                                html.Span("×", **ui.attributes(aria_hidden="true")),
                                className="close",
                                **ui.attributes(aria_label="Close", data_act="close"),
                            ),
                            *drawer(events, view),
                        ],
                        id=ui.TIMELINE_DRAWER,
                        **ui.attributes(data_show=_opened(view), aria_label="Details"),
                    ),
                ],
                className="timeline-main",
            ),
            _legend(events, view),
        ],
        className="timeline-page",
    )


def setup(shown: Shown, events: Events, found: event_details.Details | None) -> dict[str, Any]:
    """What the canvas is told once; times in ns from the run's origin, as doubles hold exactly."""
    ranks = shown.view.ranks
    window = _first_window(shown, events)
    tracks = [track for track in events.tracks if ranks is None or track.rank in ranks]
    return {
        "title": units.clean(shown.run.label),
        "url": timeline_data.address(shown.run.key),
        "base": str(events.origin),
        "window": [at - events.origin for at in window],
        "bounds": [at - events.origin for at in events.window],
        "tree": tree(events.tracks, ranks, events.counters),
        "tracks": {
            number: {"rank": track.rank, "label": track.label, "table": event_details.LETTERS[track.table]}
            for number, track in enumerate(events.tracks)
            if ranks is None or track.rank in ranks
        }
        | {
            number: {
                "rank": one.rank,
                "label": f"{one.place}: {one.label}",
                "table": COUNTER,
                "top": one.top,
                "unit": one.unit,
            }
            for number, one in enumerate(events.counters, len(events.tracks))
            if ranks is None or one.rank in ranks
        },
        "looks": {look: {"label": label, "colour": colour} for look, (label, colour) in EVENT_STYLES.items()},
        "marks": {
            "finding": vocabulary.VERMILLION,
            "rows": vocabulary.PAGE["mark"][0],
            "rows_dark": vocabulary.PAGE["mark"][1],
            "range": vocabulary.BLUE,
            "range_dark": vocabulary.SKY,
            "other": vocabulary.GREY,
        },
        "steps": _steps(shown, events),
        "overview": overview(events, tracks, MAP_COLUMNS),
        "jumps": jumps(events, shown.run.report, shown.view),
        "flows": flows(found, events) if found is not None else None,
    }


def _rows(shown: Shown, events: Events) -> tuple[list[tuple[int, int, int]], Component | None]:
    """The rows of the query in the address, as rank, start and end from the run's origin; and a word on them."""
    view = shown.view
    if not view.extra.get(SQL):
        return [], None
    leads = [
        dmc.Anchor("The query", href=view.link("/query"), size="sm"),
        dmc.Anchor("Hide them", href=view.link(PATH, extra={**view.extra, SQL: ""}), size="sm"),
    ]
    try:
        placed = places(asked(shown.runs, shown.run.key, view.extra[SQL]))
    except GpuscopeError as error:
        return [], dmc.Group([dmc.Text(units.clean(error.message), size="sm"), *leads], className="pinned")
    rows = [
        (rank, start - events.origin, end - events.origin)
        for rank, start, end in filter(None, placed)
        if view.has_rank(rank)
    ]
    many = units.plural(len(rows), "row")
    return rows, dmc.Group([dmc.Text(f"{many} of the query marked", size="sm"), *leads], className="pinned")


def _first_window(shown: Shown, events: Events) -> tuple[int, int]:
    """The steps asked for, else the steady ones, else everything; with a margin."""
    view = shown.view
    span = events.steps_window(view.steps, view.ranks) if view.steps is not None else None
    span = span or events.steady_window(shown.run.report, view.ranks)
    if span is None or not events.first < span[1] or not span[0] < events.last:
        return events.window
    room = max((span[1] - span[0]) // 50, 1)
    return span[0] - room, span[1] + room


def _steps(shown: Shown, events: Events) -> list[dict[str, Any]]:
    """The steps of the first rank shown, for the axis."""
    steps = [one for one in shown.run.report["steps"] if shown.view.has_rank(one["rank"])]
    first = min(((one["rank"], one["device"] or 0) for one in steps), default=None)
    return [
        {
            "step": one["step"],
            "role": one["role"],
            "start": start - events.origin,
            "end": start + one["dur_ns"] - events.origin,
        }
        for one in steps
        if (one["rank"], one["device"] or 0) == first
        for start in [events.clock.shown(one["rank"], one["start_ns"])]
    ]


def _tools(run: OpenRun, view: View, rows: bool) -> Component:
    buttons, jumping = (
        [
            html.Button(
                label, title=title, className="tool", **ui.attributes(data_act=act, aria_label=f"{label}: {title}")
            )
            for act, label, title in group
        ]
        for group in (BUTTONS, JUMPS + ROW_JUMP if rows else JUMPS)
    )
    by_name = view.extra.get("colour") == "name"
    return html.Div(
        [
            dmc.TextInput(
                id=ui.TIMELINE_SEARCH,
                value=view.extra.get("find", ""),
                debounce=300,
                size="xs",
                w=150,
                placeholder="Search by name  ( / )",
                **ui.attributes(aria_label="Search by name"),
            ),
            html.Div(buttons, className="tools"),
            html.Div([html.Span("Next"), *jumping], className="tools"),
            html.Button(
                "Colours",
                className="tool",
                title="A colour for each name",
                **ui.attributes(data_act="colour", aria_pressed="true" if by_name else "false"),
            ),
            html.Button(
                "Critical path",
                className="tool",
                title="What each next thing waited for, up to the end (K)",
                **ui.attributes(data_act="path", aria_pressed="true" if view.extra.get("path") else "false"),
            ),
            html.Button(
                "For Perfetto",
                className="tool",
                title="Save the window, on the common clock, for ui.perfetto.dev",
                **ui.attributes(data_act="export", data_href=f"/download/{run.key}/perfetto.json.gz"),
            ),
            html.Div(
                [
                    html.Button(
                        label,
                        title=title,
                        className="tool",
                        **ui.attributes(
                            data_picture=kind,
                            data_href=f"/download/{run.key}/view.html",
                            aria_label=f"{label}: {title}",
                        ),
                    )
                    for kind, label, title in PICTURES
                ],
                className="tools",
            ),
            html.Details(
                [
                    html.Summary("Keys (?)"),
                    html.Dl([part for key, what in KEYS for part in (html.Dt(key), html.Dd(what))]),
                ],
                className="timeline-keys",
                id="timeline-keys",
            ),
        ],
        className="timeline-tools",
    )


def _legend(events: Events, view: View) -> Component:
    labels: dict[str, str] = {}
    for look, (label, colour) in EVENT_STYLES.items():
        if look in events.looks:
            labels.setdefault(colour, label)  # communication, on a device or called by the host, is one colour
    return html.Div(
        [
            ui.swatches({label: colour for colour, label in labels.items()}),
            html.Span(
                "The fuller a pixel's colour, the busier; the line below it shows that anything runs there at all."
            ),
            html.Span(_clock_note(events, view)),
        ],
        className="timeline-legend",
    )


def _clock_note(events: Events, view: View) -> str:
    if len(view.ranks or events.trace.ranks) < 2:
        return ""
    error = events.clock.error
    if error is None:
        return "The ranks' clocks could not be aligned: times can't be compared across ranks."
    return f"Times of different ranks compare to within {units.duration(error)}."


def _opened(view: View) -> str:
    return "event" if view.event else "range" if view.extra.get("range") else "find" if view.extra.get("find") else ""


def drawer(events: Events, view: View) -> list[Component]:
    """What is said of the event, the range and the search in the address."""
    found = event_details.details(events, view.event) if view.event else None
    return [
        html.Div(_selected(events, view, found), id=ui.TIMELINE_SELECTED, className="for-event"),
        html.Div(_chosen(events, view), id=ui.TIMELINE_CHOSEN, className="for-range"),
        html.Div(_found(events, view), id=ui.TIMELINE_FOUND, className="for-find"),
    ]


def _selected(events: Events, view: View, found: event_details.Details | None) -> Component | None:
    if not view.event:
        return None
    if found is None:
        return ui.empty("No such event in this run", "Click an event of the timeline.")
    return event_panel.panel(found, events, view)


def _chosen(events: Events, view: View) -> Component | None:
    """The statistics of the range in the address."""
    span = span_of(view.extra.get("range", ""))
    return None if span is None else event_panel.range_panel(range_statistics(events, span, view.ranks), events, view)


def _found(events: Events, view: View) -> Component | None:
    wanted = view.extra.get("find", "").strip()[:MAX_SEARCH]
    if not wanted:
        return None
    begin = view.window[0] if view.window is not None else events.first
    found = search(events, wanted, begin, view.ranks)
    if not found.count:
        return ui.empty(
            f"No event is called «{units.clean(wanted)}»", "Part of a name is enough; case does not matter."
        )
    lines = [html.Li(event_panel.link(one, events, view)) for one in found.events]
    summary = f"{units.plural(found.count, 'event')}; from the start of the window on: " + ("" if lines else "none")
    return html.Div([dmc.Text(summary, size="sm", mt="xs"), html.Ul(lines, className="links")])


def register(app: Dash, runs: Runs) -> None:
    """The canvas is mounted when the page is drawn; what is chosen on it is described in the drawer."""

    def browser(function: str) -> ClientsideFunction:
        return ClientsideFunction("gpuscope", function)

    app.clientside_callback(browser("mount"), Output(ui.TIMELINE_READY, "data"), Input(ui.TIMELINE_SETUP, "data"))
    app.clientside_callback(
        browser("flows"),
        Output(ui.TIMELINE_READY, "data", allow_duplicate=True),
        Input(ui.TIMELINE_FLOWS, "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        browser("find"),
        Output(ui.QUERY, "data", allow_duplicate=True),
        Input(ui.TIMELINE_SEARCH, "value"),
        prevent_initial_call=True,
    )

    def of_state(state: object, **changes: str) -> tuple[Events, View]:
        view = parse(state)
        events = runs.named(view.run).events
        assert events is not None  # otherwise these components do not exist
        return events, parse(view.link("", extra={**view.extra, **changes}))

    @app.callback(
        Output(ui.TIMELINE_SELECTED, "children"),
        Output(ui.TIMELINE_FLOWS, "data"),
        Input(ui.TIMELINE_EVENT, "data"),
        State(ui.QUERY, "data"),
        prevent_initial_call=True,
    )
    def _select(ref: object, state: object) -> tuple[Any, ...]:
        events, view = of_state(state)
        ref = text(ref)
        found = event_details.details(events, ref) if ref else None
        return _selected(events, View(**{**vars(view), "event": ref}), found), found and flows(found, events)

    @app.callback(
        Output(ui.TIMELINE_CHOSEN, "children"),
        Input(ui.TIMELINE_RANGE, "data"),
        State(ui.QUERY, "data"),
        prevent_initial_call=True,
    )
    def _choose(span: object, state: object) -> Any:
        return _chosen(*of_state(state, range=text(span)))

    @app.callback(
        Output(ui.TIMELINE_FOUND, "children"),
        Input(ui.TIMELINE_SEARCH, "value"),
        State(ui.QUERY, "data"),
        prevent_initial_call=True,
    )
    def _search(wanted: object, state: object) -> Any:
        return _found(*of_state(state, find=text(wanted)[:MAX_SEARCH]))


PAGE = Page(PATH, "Timeline", 2, layout, register, lambda run: run.events is not None)


EVIDENCE = 6


def pinned(shown: Shown, events: Events) -> Component | None:
    """The finding named in the address, with its evidence as links and the way back; None where none is."""
    asked = shown.view.extra.get(FINDING, "")
    found = report_rows.findings(shown.run.report)
    if asked not in map(str, range(len(found))):
        return ui.ignored(FINDING, "this run has no such finding") if asked else None
    finding = found[int(asked)]
    links = [
        dmc.Anchor(
            f"rank {one['rank']}: {units.clean(short_kernel(one['name'], 40))}, {units.duration(one['dur_ns'])}",
            href=timeline_view(one, events, shown.view, int(asked)),
            size="xs",
            className="evidence",
        )
        for one in finding["evidence"][:EVIDENCE]
    ]
    back = {key: value for key, value in shown.view.extra.items() if key not in (FINDING, "mark", "range", "find")}
    return html.Section(
        [
            dmc.Group(
                [
                    ui.severity(finding["severity"], heatmap_figure.SEVERITY_COLOURS.get(finding["severity"], "gray")),
                    dmc.Text(units.clean(finding["message"]), size="sm", fw=600),
                    dmc.Anchor(
                        "Back to the overview", size="xs", href=shown.view.link("/", window=None, event="", extra=back)
                    ),
                ],
                gap="xs",
                wrap="nowrap",
                align="baseline",
            ),
            dmc.Group([dmc.Text("Evidence", size="xs", c="dimmed"), *links], gap="sm") if links else None,
        ],
        className="pinned",
        **ui.attributes(aria_label="The finding that led here"),
    )
