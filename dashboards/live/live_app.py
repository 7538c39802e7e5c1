"""`gpuscope dashboard RUN --watch`: the application that follows a run folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, html
from dash.development.base_component import Component

from gpuscope.analyzers.watching.alerts import alerts, common_steps, unmeasured
from gpuscope.analyzers.watching.finished_windows import WindowsVerdict
from gpuscope.analyzers.watching.measures import RunWatcher, Seen
from gpuscope.dashboards import ui
from gpuscope.dashboards.app import protect
from gpuscope.dashboards.live import live_figures as figures
from gpuscope.dashboards.live.live_frame import BEAT, SCHEME, framed
from gpuscope.schema.document import Report
from gpuscope.words import units

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
        return state, figures.steps(seen, dark), figures.exposed(seen, dark), figures.lateness(seen, dark), ended

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
