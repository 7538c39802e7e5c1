"""`gpuscope dashboard FOLDER --watch` of a folder of `gpuscope tune`: what was tried, live and afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component
from plotly import graph_objects as go

from gpuscope.analyzers.watching.alerts import alerts, common_steps, measured_steps, unmeasured
from gpuscope.analyzers.watching.measures import MeasuredStep, RunWatcher, Seen, WindowsVerdict
from gpuscope.dashboards import ui
from gpuscope.dashboards.app import new_app, protect
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.dashboards.figures.heatmap_figure import heatmap
from gpuscope.errors import InputError
from gpuscope.report.terminal import screen
from gpuscope.report.view.first_figures import Figure
from gpuscope.schema.document import Report
from gpuscope.schema.plan_document import RESULT, TriedChange, TuneDocument
from gpuscope.words import units

# The frame of a page that follows something: its head, the theme, and a beat.

EVERY_MS = 2_000
BEAT, SCHEME = "beat", "scheme"


def framed(name: str, body: list[Any]) -> Dash:
    """An application that follows what is called `name`: `BEAT` comes every two seconds, `SCHEME` is light or dark."""
    app = new_app()
    app.layout = _layout(name, body)
    for output in (Output(ui.PROVIDER, "forceColorScheme"), Output(SCHEME, "data")):
        app.clientside_callback(ClientsideFunction("gpuscope", "scheme"), output, Input(ui.THEME, "data"))
    app.clientside_callback(
        ClientsideFunction("gpuscope", "turn"),
        Output(ui.THEME, "data"),
        Input(ui.THEME_BUTTON, "n_clicks"),
        prevent_initial_call=True,
    )
    return app


def _layout(name: str, body: list[Any]) -> Component:
    head = [
        dmc.Title("gpuscope", order=1, size="h3"),
        html.Div(
            [
                dmc.Text(f"following {units.clean(name)}", size="sm"),
                dmc.Button("Light / dark", id=ui.THEME_BUTTON, variant="default", size="xs"),
            ],
            className="filters",
        ),
    ]
    return dmc.MantineProvider(
        id=ui.PROVIDER,
        theme=heatmap_figure.MANTINE,
        children=[
            dcc.Store(id=ui.THEME, storage_type="local"),
            dcc.Store(id=SCHEME),
            dcc.Interval(id=BEAT, interval=EVERY_MS),
            html.Div([html.Header(head, className="frame-head"), html.Main(body)], className="live"),
        ],
    )


# Figures of a run that is being recorded: pure functions of what is seen of it.

SHOWN = 500
"""Steps drawn, the last ones."""
CELLS = 60
MOST_LINES = 16
"""Ranks drawn as lines; of more, the slowest and the fastest of each step."""


def steps(seen: Seen, dark: bool) -> go.Figure:
    """Step time over steps."""
    longest = max((one.step_ns for own in seen.steps.values() for one in own.values()), default=0)
    size, unit = units.time_unit(longest)
    return _lines(seen, dark, lambda one: one.step_ns / size, f"step time ({unit})")


def exposed(seen: Seen, dark: bool) -> go.Figure:
    """Exposed communication as a share of the step."""
    return _lines(
        seen,
        dark,
        lambda one: None if one.exposed_ns is None else 100 * one.exposed_ns / max(one.step_ns, 1),
        "share (%)",
    )


def lateness(seen: Seen, dark: bool) -> go.Figure:
    """Rank × step, the last steps: what each rank needs itself against the step's median."""
    cells = {
        (rank, step): own
        for step in measured_steps(seen)[-CELLS:]
        for rank, of_rank in seen.steps.items()
        if (own := of_rank[step].own_ns) is not None
    }
    return heatmap(cells, "own time", dark, deviation=True)


def _lines(seen: Seen, dark: bool, value: Callable[[MeasuredStep], float | None], title: str) -> go.Figure:
    fig = go.Figure()
    last = max((max(own) for own in seen.steps.values()), default=0)
    series = {
        f"rank {rank}": {step: value(own[step]) for step in sorted(own) if step > last - SHOWN and not own[step].first}
        for rank, own in seen.steps.items()
    }
    if len(series) > MOST_LINES:
        series = _extremes(series)
    for place, (name, points) in enumerate(series.items()):
        fig.add_scatter(
            x=list(points),
            y=list(points.values()),
            name=name,
            mode="lines",
            line={"width": 1.5, "color": heatmap_figure.SERIES[place % len(heatmap_figure.SERIES)]},
            hovertemplate="step %{x}: %{y:.4g}",
        )
    fig.update_layout(template=heatmap_figure.template(dark), showlegend=True, uirevision="keep")
    fig.update_xaxes(title="step", tickformat="d")
    fig.update_yaxes(title=title, rangemode="tozero")
    return fig


def _extremes(series: dict[str, dict[int, float | None]]) -> dict[str, dict[int, float | None]]:
    """The largest and the least of all ranks, step by step."""
    found: dict[str, dict[int, float | None]] = {"highest rank": {}, "lowest rank": {}}
    for step in sorted({step for points in series.values() for step in points}):
        known = [value for points in series.values() if (value := points.get(step)) is not None]
        if known:
            found["highest rank"][step], found["lowest rank"][step] = max(known), min(known)
    return found


# `gpuscope dashboard RUN --watch`: the application that follows a run folder.

STATE, STEPS, EXPOSED, LATE = "live-state", "live-steps", "live-exposed", "live-late"


def create_live_app(folder: Path, token: str, local: bool = True) -> Dash:
    """A dashboard that follows the run in `folder`. Raises `InputError` if that is no run folder."""
    watcher, verdict = RunWatcher(folder), WindowsVerdict(folder)
    app = framed(folder.name, _body())

    @app.callback(
        Output(STATE, "children"),
        Output(STEPS, "figure"),
        Output(EXPOSED, "figure"),
        Output(LATE, "figure"),
        Output(BEAT, "disabled"),
        Input(BEAT, "n_intervals"),
        Input(SCHEME, "data"),
    )
    def _beat(_: object, scheme: object) -> tuple[Any, ...]:
        seen, dark = watcher.look(), scheme == "dark"
        ended = seen.status not in ("running", "")
        state = _state(seen, *verdict.look(seen.windows))
        return state, steps(seen, dark), exposed(seen, dark), lateness(seen, dark), ended

    protect(app, token, local)
    return app


def _body() -> list[Any]:
    return [
        html.Div(id=STATE, **ui.attributes(aria_live="polite")),
        ui.card("Step time", ui.figure({}, "steps", 280, id=STEPS), note="By rank, as each measured it."),
        ui.card(
            "Exposed communication",
            ui.figure({}, "exposed", 240, id=EXPOSED),
            note="Share of the step, by rank, in the steps in which it is measured (docs/dashboard.md).",
        ),
        ui.card(
            "Who is waited for",
            ui.figure({}, "waited-for", 320, id=LATE),
            note="What each rank needs itself (its step without exposed communication), against the median "
            "of the step: the slow one is brown, and the others wait for it.",
        ),
    ]


def _state(seen: Seen, verdict: str, recorded: Report | None) -> Component:
    """Alerts first; then how far the run is, and what its finished windows show."""
    found = alerts(seen, time.time_ns(), recorded)
    raised = [
        dmc.Alert(html.B(one.message), color="red", variant="light", mb="xs", className=f"alert {one.code}")
        for one in found
    ]
    steps = common_steps(seen)
    pairs: list[tuple[str, Any]] = [
        ("run", seen.status or "no manifest yet"),
        (
            "ranks",
            str(len(seen.steps)) if seen.steps else "no measures yet: gpuscope train writes them, a line per step",
        ),
        ("last step of all ranks", str(steps[-1]) if steps else units.NONE),
        ("finished windows", verdict or "none yet"),
    ]
    if seen.lost:
        pairs.append(("lines that could not be read", units.count(seen.lost)))
    pairs += [("problem", units.clean(refused.why)) for refused in seen.refused]
    if missing := unmeasured(seen):
        pairs.append(("not measured", missing))
    calm = [] if found else [dmc.Text("No alert.", fw=600, mb="xs")]
    return html.Div([*raised, *calm, ui.card("Now", ui.facts(pairs))])


TUNED, STAMP = "tuned", "tuned-stamp"
TIMES = ("before_ns", "predicted_ns", "measured_ns")


def is_tuning(folder: Path) -> bool:
    """Whether `gpuscope tune` writes there."""
    return (folder / RESULT).is_file()


def create_tuning_app(folder: Path, token: str, local: bool = True) -> Dash:
    """A dashboard that follows the tuning in `folder`. Raises `InputError` where its result can't be read."""
    read(folder)
    app = framed(folder.name, [dcc.Store(id=STAMP), html.Div(id=TUNED, **ui.attributes(aria_live="polite"))])

    @app.callback(
        Output(TUNED, "children"),
        Output(STAMP, "data"),
        Output(BEAT, "disabled"),
        Input(BEAT, "n_intervals"),
        Input(SCHEME, "data"),
        State(STAMP, "data"),
    )
    def _beat(_: object, scheme: object, stamp: object) -> tuple[Any, ...]:
        try:
            now = [(folder / RESULT).stat().st_mtime_ns // 1_000_000, scheme]
            found = read(folder) if now != stamp else None
        except (OSError, InputError):  # gone, or being moved: what was seen stays
            found = None
        return (no_update,) * 3 if found is None else (page(found, scheme == "dark"), now, not found["now"])

    protect(app, token, local)
    return app


def read(folder: Path) -> TuneDocument:
    """What is known so far. Raises `InputError` for another document."""
    path = folder / RESULT
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"{path} can't be read: {error}", hint="gpuscope tune writes it") from None
    if not isinstance(found, dict) or "tune_version" not in found:
        raise InputError(f"{path} is no result of gpuscope tune", hint="name the folder that its -o named")
    return cast(TuneDocument, {"now": "", **found})


def page(found: TuneDocument, dark: bool) -> Component:
    """Figures, the changes drawn and as a table, what to take along, what is left to do by hand."""
    body: list[Any] = [_head(found), ui.tiles(list(_figures(found)))]
    if found["changes"]:
        height = 110 + 34 * len(found["changes"])
        fig = heatmap_figure.tried(found["changes"], dark)
        note = "Each change against the best so far, which is 100 %, in the order of the trials."
        body.append(ui.card("Predicted and measured", ui.figure(fig, "tuning", height), note=note))
        body.append(ui.card("Changes", _table(found["changes"], dark)))
    if found["take"]:
        lines = "\n".join(map(units.clean, found["take"]))
        copy = dmc.CopyButton("Copy", copiedChildren="Copied", value=lines, size="xs", variant="default")
        body.append(ui.card("Take along", dmc.Code(lines, block=True, className="setting"), corner=copy))
    if found["by_hand"]:
        rows = [{"change": one["action"], "setting": one["setting"], "why": one["why"]} for one in found["by_hand"]]
        columns = [
            ui.named(name, title, name, minWidth=180)
            for name, title in (("change", "change"), ("setting", "set"), ("why", "why not tried"))
        ]
        body.append(ui.card("By hand", ui.grid(rows, columns, "by-hand", dark)))
    return html.Div(body)


def _head(found: TuneDocument) -> Component:
    state = f"under way: {found['now']}" if found["now"] else screen.ENDED[found["ended"]]
    look = "compute" if screen.kept(found) else "abstained"
    lines = [units.clean(line) for line in (" ".join(found["command"]), *screen.facts(found)[1:])]
    return dmc.Paper(
        [
            html.H2(screen.headline(found), className="verdict"),
            dmc.Text(units.clean(state), fw=600, mt="xs"),
            *(dmc.Text(line, size="sm", c="dimmed") for line in lines),
        ],
        withBorder=True,
        p="md",
        mb="md",
        className=f"first-lines {look}",
    )


def _figures(found: TuneDocument) -> list[Figure]:
    before, after = found["baseline_step_ns"], found["best_step_ns"]
    change = units.signed(after / before - 1)
    many = units.plural(len(found["changes"]), "change")
    spent = units.long_duration(found["seconds"] * 1e9)
    return [
        Figure("Step as it stands", units.duration(before), "without a profiler"),
        Figure("Best so far" if found["now"] else "Best", units.duration(after), change),
        Figure("Kept", str(screen.kept(found)), f"of {many} tried"),
        Figure("Runs", str(found["runs"]), f"in {spent}, budget {found['budget']}"),
    ]


def _table(rows: list[TriedChange], dark: bool) -> Component:
    cells = [
        {
            "change": row["code"],
            "kept": screen.mark(row),
            "why": row["why"],
            "set": ", ".join(f"{one['name']}={one['value']}" for one in row["changes"]),
            "ratio": screen.ratio(row),
            **{name: row[name] for name in TIMES},  # type: ignore[literal-required]
            **{f"{name}_text": units.duration(row[name]) for name in TIMES},  # type: ignore[literal-required]
        }
        for row in rows
    ]
    columns = [
        ui.named("change", "change", "change", flex=2, minWidth=130),
        ui.named("set", "set to", "set", minWidth=150),
        *(ui.number(name, name.removesuffix("_ns"), f"{name}_text", minWidth=94, width=94) for name in TIMES),
        ui.column("ratio", "ratio, 95 %", type="rightAligned", width=122),
        ui.column("kept", "result", width=110),
        ui.named("why", "why", "why", minWidth=150),
    ]
    return ui.grid(cells, columns, "changes", dark, columnSize=None)
