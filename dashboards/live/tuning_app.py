"""`gpuscope dashboard FOLDER --watch` of a folder of `gpuscope tune`: what was tried, live and afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.app import protect
from gpuscope.dashboards.figures import tuning_figure
from gpuscope.dashboards.live.live_frame import BEAT, SCHEME, framed
from gpuscope.errors import InputError
from gpuscope.report.terminal import tune_text
from gpuscope.report.view.first_figures import Figure
from gpuscope.schema.tune_document import RESULT, TriedChange, TuneDocument
from gpuscope.words import units

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
        fig = tuning_figure.tried(found["changes"], dark)
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
    state = f"under way: {found['now']}" if found["now"] else tune_text.ENDED[found["ended"]]
    look = "compute" if tune_text.kept(found) else "abstained"
    lines = [units.clean(line) for line in (" ".join(found["command"]), *tune_text.facts(found)[1:])]
    return dmc.Paper(
        [
            html.H2(tune_text.headline(found), className="verdict"),
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
        Figure("Kept", str(tune_text.kept(found)), f"of {many} tried"),
        Figure("Runs", str(found["runs"]), f"in {spent}, budget {found['budget']}"),
    ]


def _table(rows: list[TriedChange], dark: bool) -> Component:
    cells = [
        {
            "change": row["code"],
            "kept": tune_text.mark(row),
            "why": row["why"],
            "set": ", ".join(f"{one['name']}={one['value']}" for one in row["changes"]),
            "ratio": tune_text.ratio(row),
            **{name: row[name] for name in TIMES},  # type: ignore[literal-required]
            **{f"{name}_text": units.duration(row[name]) for name in TIMES},
        }  # type: ignore[literal-required]
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
