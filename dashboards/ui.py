"""Building blocks of pages: cards, figures, tables, links, and a placeholder for missing data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import dash_ag_grid as ag
import dash_mantine_components as dmc
from dash import Dash, dcc, html
from dash.development.base_component import Component
from plotly import graph_objects as go

from gpuscope.dashboards.data import event_details
from gpuscope.dashboards.data.event_details import longest_compute
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.state import View
from gpuscope.plugins import listed
from gpuscope.report.view import report_rows
from gpuscope.report.view.first_figures import Figure
from gpuscope.schema.document import Evidence, Report, StepEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import short_kernel

# Ids of components used in callbacks. Ids of one page start with its name.

URL = "url"
QUERY = "query"
"""Store: the current query string, also after the address bar was only replaced."""
DRAWN = "drawn"
"""Store: path, query and theme that the page was drawn for; not what its own parts have changed since."""
CONTENT = "content"
WITHOUT = "without"
"""Store: paths of the pages that have nothing of the run shown."""
PROVIDER = "provider"
THEME = "theme"
THEME_BUTTON = "theme-button"
FILTER_RUN = "filter-run"
FILTER_RANKS = "filter-ranks"
FILTER_STEPS = "filter-steps"


def nav(path: str) -> dict[str, str]:
    """The link to the page at `path`."""
    return {"type": "nav", "path": path}


def extra(key: str) -> dict[str, str]:
    """A control whose value is `key` in the address (`View.extra`); a change redraws the page."""
    return {"type": "extra", "key": key}


TIMELINE = "timeline"
TIMELINE_ROWS = "timeline-rows"
"""The canvas's rows, which take the keys; made by assets/timeline."""
TIMELINE_SETUP = "timeline-setup"
TIMELINE_READY = "timeline-ready"
TIMELINE_EVENT = "timeline-event"
TIMELINE_FLOWS = "timeline-flows"
TIMELINE_RANGE = "timeline-range"
TIMELINE_DRAWER = "timeline-drawer"
TIMELINE_SELECTED = "timeline-selected"
TIMELINE_CHOSEN = "timeline-chosen"
TIMELINE_SEARCH = "timeline-search"
TIMELINE_FOUND = "timeline-found"
ADVICE_OUTCOME = "advice-outcome"
RANKS_HEATMAP = "ranks-heatmap"
KERNELS_GRID = "kernels-grid"
QUERY_SQL = "query-sql"
QUERY_RUN = "query-run"
QUERY_EXAMPLE = "query-example"


# The page type, what a page is given, and how pages are discovered.


@dataclass(frozen=True)
class Shown:
    """Input of a page: the run and view state, all runs, light or dark."""

    run: OpenRun
    view: View
    runs: Runs
    dark: bool


def _nothing(app: Dash, runs: Runs) -> None:
    """No callbacks."""


@dataclass(frozen=True)
class Page:
    """A page: `layout` is called whenever run, filters or theme change; `register` adds its callbacks once.

    A page keeps its state in the address (`View.extra`) or in a `dcc.Store` of its layout, never in a module.
    """

    path: str
    title: str
    order: int
    layout: Callable[[Shown], Component]
    register: Callable[[Dash, Runs], None] = _nothing
    has: Callable[[OpenRun], bool] = lambda _: True
    """Whether a run has what the page shows: else its link stands below the others."""


@cache
def pages() -> tuple[Page, ...]:
    """Every module of `gpuscope.dashboards.pages` that has a `PAGE`, in order."""
    return tuple(sorted(listed("gpuscope.dashboards.pages", "PAGE"), key=lambda page: page.order))


# Links from a report into the timeline.

FINDING = "finding"
"""Parameter of the address: the finding pinned above the timeline, by its place among those shown."""
NAME = 100
"""Width of a name within a line, in cells."""


def around(start: int, end: int) -> tuple[int, int]:
    """A window with the span in its middle half, and some width even for an instant."""
    room = max((end - start) // 2, 500)
    return start - room, end + room


def timeline_view(evidence: Evidence, events: Events, view: View, finding: int | None = None) -> str:
    """The address of the timeline at a piece of evidence: its span marked, the event that it names selected, and its
    finding pinned. Evidence without an event is a range there, so that its length is shown too."""
    start = events.clock.shown(evidence["rank"], evidence["start_ns"])
    span = f"{start}:{start + evidence['dur_ns']}"
    event = events.named(evidence["rank"], evidence["event"]) if "event" in evidence else ""
    extra = {key: value for key, value in view.extra.items() if key != "range"} | {"mark": span}
    if not event and evidence["dur_ns"] > 0:
        extra["range"] = span
    if finding is not None:
        extra[FINDING] = str(finding)
    window = around(start, start + evidence["dur_ns"])
    ranks = view.ranks if view.has_rank(evidence["rank"]) else None
    return view.link("/timeline", window=window, event=event, ranks=ranks, extra=extra)


def meanwhile_link(evidence: Evidence, rank: int, shown: Shown, finding: int) -> Component | None:
    """The longest computation of another rank while this one waits, as a link; None where it computes nothing."""
    events = shown.run.events
    if events is None:
        return None
    start = events.clock.shown(evidence["rank"], evidence["start_ns"])
    span = (start, start + evidence["dur_ns"])
    ref = longest_compute(events, rank, span)
    one = event_details.event(events, ref) if ref else None
    if one is None:
        return None
    view = shown.view
    both = view.ranks | {rank, evidence["rank"]} if view.ranks is not None else None
    extra = {**view.extra, "mark": f"{span[0]}:{span[1]}", FINDING: str(finding)}
    href = view.link("/timeline", window=around(*span), event=ref, ranks=both, extra=extra)
    text = f"rank {rank} runs {units.clean(short_kernel(one.name, NAME))} for {units.duration(one.duration)}"
    return dmc.Anchor(text, href=href, size="sm", className="evidence meanwhile")


def step_place(shown: Shown, step: StepEntry) -> str:
    """The address of the timeline at a step; empty where there is none."""
    number = step["step"]
    if shown.run.events is None or number is None:
        return ""
    return shown.view.link("/timeline", steps=(number, number), window=None)


def evidence_link(evidence: Evidence, shown: Shown, finding: int | None = None) -> Component:
    """A piece of evidence as text, with a link if there is a timeline."""
    place = report_rows.place_ns(evidence, report_rows.starts(shown.run.report))
    at = "" if place is None else f" at {units.offset(place)}"
    name = units.clean(short_kernel(evidence["name"], NAME))
    text = f"rank {evidence['rank']}{at} for {units.duration(evidence['dur_ns'])}: {name}"
    note = dmc.Text(units.clean(evidence["note"]), size="xs", c="dimmed") if evidence["note"] else None
    events = shown.run.events
    if events is None:
        return html.Div([dmc.Text(text, size="sm"), note])
    href = timeline_view(evidence, events, shown.view, finding)
    return html.Div([dmc.Anchor(text, href=href, size="sm", className="evidence"), note])


LEADS = "Click to see it in the timeline."


def empty(what: str, how: Any) -> Component:
    """A placeholder: what is missing, and how to record it."""
    return dmc.Alert(how, title=what, color="gray", variant="light", className="empty")


def ignored(key: str, why: str) -> Component:
    """A word on a parameter of the address that the page can't follow."""
    return empty(f"«{key}» in this address is ignored", units.clean(why))


def beside(*panels: Component | None) -> Any:
    """Two panels side by side on wide screens, the first the wider; alone where there is one, or where one is empty."""
    first, second = panels
    if first is None or second is None or getattr(first, "className", "") == "empty":
        return list(filter(None, panels))
    columns = [dmc.GridCol(one, span={"base": 12, "lg": wide}) for one, wide in ((first, 8), (second, 4))]
    return dmc.Grid(columns, gutter="md", mb="md", className="beside")


def page(*children: Any) -> Component:
    """A page of these panels; where several of them have nothing to show, they are one line at its end that opens."""
    flat = [one for child in children for one in (child if isinstance(child, list) else [child]) if one is not None]
    bare = [one for one in flat if getattr(one, "className", "") == "empty"]
    if len(bare) < 2 or len(bare) == len(flat):
        return html.Div(flat)
    names = " · ".join(str(one.title) for one in bare)
    listed = html.Ul([html.Li([html.B(f"{one.title}: "), one.children]) for one in bare], className="links")
    merged = html.Details([html.Summary(names), listed], className="missing")
    return html.Div([*(one for one in flat if one not in bare), merged])


def step_time(report: Report) -> Component | None:
    """«The step» in one line, with its definition on hover; None where there are no steps."""
    found = report["step_time"]
    if found is None:
        return None
    many = units.plural(found["steps"], "steady step")
    text = f"step {units.duration(found['median_ns'])}"
    spread = f"{units.duration(found['min_ns'])} to {units.duration(found['max_ns'])} over {many}"
    meaning = "The median duration of the steady steps, of each the longest over the ranks."
    return html.Abbr([html.B(text), f" ({spread})"], title=meaning, className="step-time")


def tiles(found: Sequence[Figure]) -> Component | None:
    """Figures side by side; None without any."""
    cells = [
        dmc.Paper(
            [
                dmc.Text(one.label, size="sm", c="dimmed"),
                dmc.Text(one.value, className="figure"),
                dmc.Text(units.clean(one.note), size="sm", c="dimmed"),
            ],
            withBorder=True,
            px="md",
            py="sm",
        )
        for one in found
    ]
    return dmc.SimpleGrid(cells, cols={"base": 1, "xs": 2, "md": len(cells)}, mb="md") if cells else None


def lead(name: str) -> dict[str, str]:
    """The id of a figure whose points lead to the address in their `customdata`."""
    return {"type": "lead", "name": name}


def told(name: str) -> dict[str, str]:
    """The id of a figure whose points, clicked, are described in `telling(name)`: the text of their `customdata`."""
    return {"type": "told", "name": name}


def telling(name: str) -> dict[str, str]:
    """The id of the text beside the figure `told(name)`."""
    return {"type": "telling", "name": name}


def attributes(**named: Any) -> dict[str, Any]:
    """`aria_label=…` and `data_page=…` as the HTML attributes of these names."""
    return {name.replace("_", "-"): value for name, value in named.items()}


def card(title: str, *children: Any, note: str = "", corner: Any = None) -> Component:
    """A titled panel; `note` says what the numbers mean, `corner` holds links and buttons."""
    head = [dmc.Title(title, order=2, size="h4")]
    if corner is not None:
        head.append(dmc.Group(corner if isinstance(corner, list) else [corner], gap="xs"))
    body: list[Any] = [dmc.Group(head, justify="space-between", mb=4)]
    if note:
        body.append(dmc.Text(note, size="sm", c="dimmed", mb="xs"))
    return dmc.Paper([*body, *children], withBorder=True, p="md", radius="md", mb="md")


def figure(fig: go.Figure | dict[str, Any], name: str, height: int = 320, **more: Any) -> Component:
    """A plotly figure; its camera button saves `name`.png. `more` goes to `dcc.Graph`, its `config` on top of ours.

    One whose points are clicked (`lead`, `told`, the ranks' cells) takes the keyboard too: assets/figure_keys.js.
    """
    config = {
        "displaylogo": False,
        "displayModeBar": "hover",  # it would cover a legend of several lines
        "showSendToCloud": False,  # plotly's own button would upload the figure
        "responsive": True,
        "toImageButtonOptions": {"format": "png", "filename": name, "scale": 2},
        "modeBarButtons": [["toImage", "resetScale2d"]],  # a drag zooms, a double click undoes it
    } | more.pop("config", {})
    graph = dcc.Graph(figure=fig, config=config, style={"height": height}, **more)
    if not (isinstance(more.get("id"), dict) or more.get("id") == RANKS_HEATMAP):
        return graph
    said = html.Div(className="chosen hidden", **attributes(aria_live="polite"))
    label = f"Figure {name}: arrow keys choose a point, Enter opens it"
    return html.Div([graph, said], tabIndex="0", className="chooses", role="group", **attributes(aria_label=label))


def column(name: str, title: str, **more: Any) -> dict[str, Any]:
    """A text column of `grid`."""
    return {"field": name, "headerName": title, "minWidth": 110, **more}


def named(name: str, title: str, whole: str, **more: Any) -> dict[str, Any]:
    """A column of long names, over as many lines as they need; the row's field `whole` has all of each."""
    room = {"flex": 3, "minWidth": 340, "wrapText": True, "autoHeight": True, "tooltipField": whole}
    return column(name, title, cellClass="names", **(room | more))


def number(name: str, title: str, shown: str, **more: Any) -> dict[str, Any]:
    """A column sorted and filtered by the numbers in `name` and displayed as the text in the row's field `shown`."""
    return {
        "field": name,
        "headerName": title,
        "minWidth": 100,
        "type": "rightAligned",
        "filter": "agNumberColumnFilter",
        "valueFormatter": {"function": f"params.data ? params.data.{shown} : ''"},
        **more,
    }


def grid(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[Mapping[str, Any]], name: str, dark: bool, **more: Any
) -> Component:
    """A sortable, filterable table. Cells are text: nothing in them is read as HTML. `name`.csv is its export.

    Above it are the columns to show, a copy for a spreadsheet, and the whole text of the cell in focus
    (assets/tables.js). `more` goes to `AgGrid`, its `dashGridOptions` and `defaultColDef` on top of ours.
    """
    options = {
        "domLayout": "autoHeight" if len(rows) <= 12 else "normal",
        "enableCellTextSelection": True,
        "ensureDomOrder": True,
        "animateRows": False,
        "rowHeight": 34,
    } | more.pop("dashGridOptions", {})
    style = {"height": None if len(rows) <= 12 else 480} | more.pop("style", {})
    own = more.pop("id", f"table-{name}")
    table = ag.AgGrid(
        id=own,
        rowData=[{key: _cell(value) for key, value in row.items()} for row in rows],
        columnDefs=[dict(column) for column in columns],
        defaultColDef={
            "sortable": True,
            "filter": True,
            "resizable": True,
            "wrapHeaderText": True,
            "autoHeaderHeight": True,
            "suppressHeaderFilterButton": len(rows) <= 12,  # nobody filters a dozen rows, and names need the room
        }
        | more.pop("defaultColDef", {}),
        columnSize=more.pop("columnSize", "responsiveSizeToFit"),
        csvExportParams={"fileName": f"{name}.csv"},
        dashGridOptions=options,
        style=style,
        **more,
    )
    bar = html.Div(
        [
            html.Button("Columns", className="tool", **attributes(data_table="columns", aria_expanded="false")),
            html.Button("Copy", className="tool", title="All rows, for a spreadsheet", **attributes(data_table="copy")),
            html.Span(className="table-cell", **attributes(aria_live="polite")),
        ],
        className="table-bar",
    )
    mode = "dark" if dark else "light"
    return html.Div([bar, table], className="table", **attributes(data_ag_theme_mode=mode, data_grid=own))


def _cell(value: Any) -> Any:
    return units.clean(value) if isinstance(value, str) else value


def csv_link(run_key: str, section: str, query: str = "", name: str = "CSV") -> Component:
    """A link that downloads a section of the report, or what `query` leaves of it, as CSV, exact in ns and bytes."""
    return dmc.Anchor(name, href=f"/download/{run_key}/{section}.csv{query}", size="sm", refresh=True)


def severity(word: str, colour: str) -> Component:
    """A badge with text."""
    return dmc.Badge(word, color=colour, variant="light", miw="max-content")


def prose(text: str) -> list[Any]:
    """A sentence, what stands between backticks as code."""
    parts = units.clean(text).split("`")
    return [dmc.Code(part) if at % 2 else part for at, part in enumerate(parts)]


def swatches(labels: Mapping[str, str]) -> Component:
    """What each colour stands for."""
    return html.Div(
        [
            html.Span([html.I(style={"background": colour}), label], className="swatch")
            for label, colour in labels.items()
        ],
        className="swatches",
    )


def facts(pairs: Sequence[tuple[Any, Any]]) -> Component:
    """Names and values, one pair a row; text is as of `prose`."""
    rows = [
        dmc.TableTr([dmc.TableTh(name), dmc.TableTd(prose(value) if isinstance(value, str) else value)])
        for name, value in pairs
    ]
    return dmc.Table(dmc.TableTbody(rows), withRowBorders=False, verticalSpacing=2, className="facts")


def sentences(lines: Sequence[str]) -> Component:
    """A plain list."""
    return html.Ul([html.Li(units.clean(line)) for line in lines], style={"margin": 0, "paddingLeft": 20})
