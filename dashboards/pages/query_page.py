"""Read-only SQL over the run's tables: a box, examples, the rows, and where they are in the timeline."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from gpuscope.analyzers.queries.engine import Rows, tables
from gpuscope.analyzers.queries.examples import EXAMPLES
from gpuscope.dashboards import ui
from gpuscope.dashboards.data.open_runs import MOST_ROWS, OpenRun, Runs, asked, places
from gpuscope.dashboards.state import MAX_SQL, SQL
from gpuscope.dashboards.ui import Page, Shown, around
from gpuscope.errors import GpuscopeError
from gpuscope.words import units

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")
"""A link of the manual."""
PLACE = "at"
"""Field of a row: the address of its place in the timeline."""


def layout(shown: Shown) -> Component:
    """The page."""
    sql = shown.view.extra.get(SQL, "")
    return ui.page(ui.card("Query", *_box(sql)), *([_answer(shown, sql)] if sql.strip() else []), _help(shown.run))


def _box(sql: str) -> list[Component]:
    return [
        dmc.Select(
            id=ui.QUERY_EXAMPLE,
            label="Examples",
            placeholder="Choose one to begin with",
            size="xs",
            mb="xs",
            maw=560,
            data=[{"value": one.sql, "label": one.question} for one in EXAMPLES],
        ),
        html.Label("SQL: one SELECT over the tables below", htmlFor=ui.QUERY_SQL, className="sql-label"),
        dcc.Textarea(
            id=ui.QUERY_SQL,
            value=sql,
            className="sql",
            rows=max(6, min(sql.count("\n") + 2, 16)),
            maxLength=MAX_SQL,
            spellCheck=False,
        ),
        dmc.Group(
            [
                dmc.Button("Run", id=ui.QUERY_RUN, size="xs"),
                dmc.Text("Ctrl + Enter runs it too. Times are ns on the timeline's clock.", size="sm", c="dimmed"),
            ],
            mt="xs",
        ),
    ]


def _answer(shown: Shown, sql: str) -> Component:
    try:
        found = asked(shown.runs, shown.run.key, sql)
    except GpuscopeError as error:
        hint = dmc.Text(units.clean(error.hint or ""), size="sm")
        return dmc.Alert(
            hint, title=units.clean(error.message), color="red", variant="light", mb="md", id="query-error"
        )
    many = f"the first {units.plural(MOST_ROWS, 'row')}" if found.more else units.plural(len(found.rows), "row")
    if not found.rows:
        return ui.card("Rows", dmc.Text("No row."))
    corner = [ui.csv_link(shown.run.key, "query", shown.view.query())]
    if shown.run.events is not None and any(places(found)):
        href = shown.view.link("/timeline", event="")
        corner.insert(0, dmc.Anchor("Mark all on the timeline", href=href, size="sm"))
    return ui.card("Rows", _grid(found, shown), note=f"{many[0].upper()}{many[1:]}.", corner=corner)


def _grid(found: Rows, shown: Shown) -> Component:
    """The rows; each that says its rank and start leads to the timeline."""
    names = list(found.columns)
    fields = [f"c{place}" for place in range(len(names))]  # names may be the same, or hold dots
    links = _links(found, shown)
    rows: list[dict[str, Any]] = [
        dict(zip(fields, map(_cell, row), strict=True)) | ({PLACE: link} if link else {})
        for row, link in zip(found.rows, links, strict=True)
    ]
    columns = [
        _column(field, name, values)
        for field, name, values in zip(fields, names, zip(*found.rows, strict=True), strict=True)
    ]
    if any(links):
        leading = ui.column(PLACE, "timeline", cellRenderer="TimelineLink", width=100, sortable=False, filter=False)
        columns.insert(0, leading)
    return ui.grid(rows, columns, "query", shown.dark, columnSize=None, id="query-grid")


def _column(field: str, name: str, values: Sequence[Any]) -> dict[str, Any]:
    """A column as wide as its texts, up to a point; numbers to the right, exact."""
    number = all(value is None or isinstance(value, int | float) for value in values)
    longest = max([len(name) + 3, *(len(str(value)) for value in values[:200] if value is not None)])
    width = min(40 + 9 * longest, 460)
    more = {"type": "rightAligned", "filter": "agNumberColumnFilter"} if number else {"tooltipField": field}
    return ui.column(field, units.clean(name), width=width, minWidth=70, **more)


def _cell(value: Any) -> Any:
    # Beyond 2^53 a browser's numbers are not exact: as text, to the last digit.
    if isinstance(value, int) and abs(value) > 1 << 53:
        return str(value)
    return units.clean(value) if isinstance(value, str) else value


def _links(found: Rows, shown: Shown) -> list[str]:
    """The address in the timeline of each row that has a place there."""
    if shown.run.events is None:
        return [""] * len(found.rows)
    kept = {key: value for key, value in shown.view.extra.items() if key != SQL}
    made = []
    for place in places(found):
        if place is None:
            made.append("")
            continue
        rank, begin, until = place
        ranks = shown.view.ranks if shown.view.has_rank(rank) else None
        extra = kept | {"mark": f"{begin}:{until}"}
        made.append(shown.view.link("/timeline", window=around(begin, until), ranks=ranks, event="", extra=extra))
    return made


def _help(run: OpenRun) -> Component:
    """The tables that hold something, with their columns; of the trace's also what each means."""
    lines = []
    for table in tables().values():
        held: Any = (
            run.report.get(table.source, ()) if table.of_report else run.trace[table.source] if run.trace else ()
        )
        if not len(held):
            continue
        names = [html.Code(column.name, title=column.doc) for column in table.columns]
        listed = [part for name in names for part in (name, " ")]
        name = html.Th(html.Code(table.name), scope="row")
        about = html.Td([dmc.Text(ui.prose(_LINK.sub(r"\1", table.doc)), size="sm"), *listed])
        lines.append(html.Tr([name, html.Td(units.count(len(held))), about]))
    head = html.Tr([html.Th(name, scope="col") for name in ("table", "rows", "what it holds, and its columns")])
    table = dmc.Table([html.Thead(head), html.Tbody(lines)], className="query-tables", verticalSpacing=4)
    return ui.card("Tables", table, note="Those of this run that hold something; a column's meaning on hover.")


def register(app: Dash, runs: Runs) -> None:  # noqa: ARG001
    """The button puts the query into the address, which draws the page anew; an example goes into the box."""
    app.clientside_callback(
        ClientsideFunction("gpuscope_query", "ask"),
        Output(ui.URL, "search", allow_duplicate=True),
        Input(ui.QUERY_RUN, "n_clicks"),
        State(ui.QUERY_SQL, "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        ClientsideFunction("gpuscope_query", "example"),
        Output(ui.QUERY_SQL, "value"),
        Input(ui.QUERY_EXAMPLE, "value"),
        prevent_initial_call=True,
    )


PAGE = Page("/query", "Query", 14, layout, register)
