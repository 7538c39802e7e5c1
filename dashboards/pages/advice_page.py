"""Suggestions, their predicted gains, and what-if switches that replay at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, html
from dash.development.base_component import Component

from gpuscope.analyzers.what_if_changes import Predicted, Refused
from gpuscope.catalogue.prediction_sentences import (
    gain,
    nothing_gains,
    setting_words,
    step_change,
)
from gpuscope.catalogue.suggestion import finding_words
from gpuscope.dashboards import ui
from gpuscope.dashboards.data.events import RANK, SLIDERS, SWITCHED, SWITCHES, Slider, chosen
from gpuscope.dashboards.data.open_runs import OpenRun, Runs
from gpuscope.dashboards.figures import gains_figure
from gpuscope.dashboards.state import View, parse
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.view.first_figures import gain_of
from gpuscope.schema.document import PlanEntry, SuggestionEntry, UnpredictedEntry
from gpuscope.words import units


def layout(shown: Shown) -> Component:
    """The page."""
    return ui.page(*_suggestions(shown), *_in_vain(shown), *_not_estimated(shown), *_whatif(shown))


def _suggestions(shown: Shown) -> Iterator[Component]:
    report = shown.run.report
    found = report["suggestions"]
    if not found:
        if why := units.clean(report["advice"]["why"]):
            title = "No gain predicted" if report["advice"]["unpredicted"] else "Nothing to change"
            yield ui.empty(title, why.capitalize() + ".")
        return
    drawn = [
        gains_figure.Step(one["action"], *(one["predicted"][key] for key in ("step_ns_after", "low_ns", "high_ns")))
        for one in found
    ]
    fig = gains_figure.steps(found[0]["predicted"]["step_ns_before"], drawn, shown.dark)
    yield ui.card(
        "What to change",
        html.Div(ui.step_time(report)),
        _plan(report["advice"].get("plan"), report["advice"].get("no_plan", "")),
        ui.figure(fig, "advice", 120 + 40 * len(drawn)),
        *[_suggestion(one) for one in found],
        note="Bars: each change alone; gains don't add up, since findings overlap.",
        corner=ui.csv_link(shown.run.key, "suggestions"),
    )


def _plan(plan: PlanEntry | None, why_none: str) -> Component | None:
    """The combination that gains most, change by change, or why there is none."""
    if plan is None:
        return dmc.Text(units.clean(f"Together: not predicted, {why_none}."), size="sm") if why_none else None
    lines = [
        html.Li([html.B(units.clean(one["action"])), f": step {units.duration(one['step_ns_after'])}, with all above"])
        for one in plan["steps"]
    ]
    return html.Section(
        [
            html.H3("Together", className="drawer-title"),
            dmc.Text(step_change(plan["predicted"]), fw=600),
            html.Ol(lines, className="links"),
            dmc.Text(units.clean(plan["predicted"]["basis"]), size="sm", c="dimmed"),
        ],
        className="pinned",
    )


def _suggestion(one: SuggestionEntry) -> Component:
    predicted = one["predicted"]
    pairs = [
        ("set", dmc.Code(units.clean(setting_words(one, brief=False)))),
        ("gain", gain(one)),
        ("rests on", predicted["basis"]),
        ("why", one["why"]),
        ("risk", one["risk"]),
        ("verify", one["verify"]),
    ]
    return _titled(one["action"], one["finding"], pairs)


def _titled(action: str, finding: str, pairs: list[tuple[str, Any]]) -> Component:
    head = dmc.Group(
        [dmc.Text(units.clean(action), fw=600), dmc.Text(f"for {finding_words(finding)}", size="sm", c="dimmed")],
        gap="xs",
    )
    return html.Div([head, ui.facts(pairs)], className="finding", style={"marginBottom": 14})


def _not_estimated(shown: Shown) -> Iterator[Component]:
    unpredicted: list[UnpredictedEntry] = shown.run.report["advice"]["unpredicted"]
    if unpredicted:
        yield ui.card(
            "May help, gain not replayed",
            *[_titled(one["action"], one["finding"], _reasons(one)) for one in unpredicted],
        )


def _reasons(one: UnpredictedEntry) -> list[tuple[str, Any]]:
    told = (("gain", gain_of(one)), ("why not", one["why_not"]), ("verify", one.get("verify", "")))
    return [("set", dmc.Code(units.clean(setting_words(one, brief=False)))), *(pair for pair in told if pair[1])]


def _in_vain(shown: Shown) -> Iterator[Component]:
    found = shown.run.report["advice"].get("nothing_gains", [])
    if found:
        yield ui.card("Costly, and nothing tried gains", ui.sentences([nothing_gains(one) for one in found]))


def _whatif(shown: Shown) -> Iterator[Component]:
    what_if = shown.run.what_if
    if what_if is None:
        yield ui.empty("What-if needs the trace", shown.run.why_no_events)
        return
    impossible = what_if.impossible()
    if len(impossible) == len(SLIDERS) + len(SWITCHES):
        yield ui.card("What if", dmc.Text("Nothing in this run can be replayed.", size="sm"), _why_not(impossible))
        return
    yield ui.card(
        "What if",
        dmc.SimpleGrid([_slider(slider, shown, impossible) for slider in SLIDERS], cols={"base": 1, "lg": 2}),
        _chips(shown, impossible),
        _rank(shown),
        html.Div(
            list(_outcome(shown.run, shown.view, shown.dark)),
            id=ui.ADVICE_OUTCOME,
            **ui.attributes(aria_live="polite"),
        ),
        _why_not(impossible),
        note="Replays the trace with the selected changes; the address keeps every switch.",
    )


def _why_not(impossible: Mapping[str, str]) -> Component | None:
    """Why some controls are disabled."""
    labels = {slider.key: slider.label for slider in SLIDERS} | {key: label for key, (label, _) in SWITCHES.items()}
    lines = [html.Li([html.B(f"{labels[key]}: "), units.clean(why)]) for key, why in impossible.items()]
    if not lines:
        return None
    return html.Details(
        [
            html.Summary(f"{units.plural(len(lines), 'change')} can't be predicted on this trace: why"),
            html.Ul(lines, className="links"),
        ],
        className="missing",
    )


def _slider(slider: Slider, shown: Shown, impossible: Mapping[str, str]) -> Component:
    value = shown.view.extra.get(slider.key, "0")
    at = int(value) if value.isdecimal() and len(value) < 4 and int(value) <= len(slider.stops) else 0
    labels = ["as recorded", *(slider.describe(stop) for stop in slider.stops)]
    return html.Div(
        [
            dmc.Text(slider.label, size="sm"),
            dmc.Slider(
                id=ui.extra(slider.key),
                value=at,
                min=0,
                max=len(slider.stops),
                step=1,
                label=None,
                mb=28,
                ml=36,
                maw=620,
                mr=36,
                disabled=slider.key in impossible,
                marks=[{"value": place, "label": label} for place, label in enumerate(labels)],
                thumbLabel=slider.label,
            ),
        ],
        title=impossible.get(slider.key, ""),
    )


def _chips(shown: Shown, impossible: Mapping[str, str]) -> Component:
    on = [name for name in shown.view.extra.get(SWITCHED, "").split(",") if name in SWITCHES]
    chips = [
        html.Span(dmc.Chip(label, value=name, size="sm", disabled=name in impossible), title=impossible.get(name, ""))
        for name, (label, _) in SWITCHES.items()
    ]
    return dmc.ChipGroup(dmc.Group(chips, gap="xs"), id=ui.extra(SWITCHED), value=on, multiple=True)


def _rank(shown: Shown) -> Component | None:
    ranks = shown.run.report["trace"]["ranks_present"]
    if len(ranks) < 2:
        return None
    asked = shown.view.extra.get(RANK, "")
    return dmc.Select(
        id=ui.extra(RANK),
        label="a rank as fast as its peers",
        placeholder="none",
        clearable=True,
        w=260,
        mt="sm",
        size="xs",
        data=[{"value": str(rank), "label": f"rank {rank}"} for rank in ranks],
        searchable=True,
        value=asked if asked.isdecimal() and len(asked) < 9 and int(asked) in ranks else None,
    )


def _outcome(run: OpenRun, view: View, dark: bool) -> Iterator[Component]:
    if run.what_if is None:
        return
    asked = chosen(view.extra)
    if not asked:
        yield dmc.Text("Move a slider or press a switch.", size="sm", c="dimmed", mt="md")
        return
    outcomes = [(label, run.what_if.predict([change])) for label, change in asked]
    possible = [change for (_, change), (_, one) in zip(asked, outcomes, strict=True) if isinstance(one, Predicted)]
    if len(possible) > 1:
        outcomes.append(("all of these together", run.what_if.predict(possible)))
    good = [(label, one) for label, one in outcomes if isinstance(one, Predicted)]
    if good:
        drawn = [gains_figure.Step(label, one.after, one.low, one.high) for label, one in good]
        yield ui.figure(gains_figure.steps(good[0][1].before, drawn, dark), "what-if", 120 + 40 * len(drawn))
        yield ui.facts([(label, _sentence(one)) for label, one in good])
    for label, outcome in outcomes:
        if isinstance(outcome, Refused):
            yield ui.empty(f"Can't be predicted: {label}", units.clean(outcome.why))


def _sentence(one: Predicted) -> str:
    return (
        f"step {units.duration(one.before)} → {units.duration(one.after)} ({units.duration(one.low)} to "
        f"{units.duration(one.high)}); {one.basis}"
    )


def register(app: Dash, runs: Runs) -> None:
    """A control that moves draws the outcome anew and nothing else, so that it keeps the focus."""

    @app.callback(
        Output(ui.ADVICE_OUTCOME, "children"),
        Input(ui.QUERY, "data"),
        State(ui.DRAWN, "data"),
        prevent_initial_call=True,
    )
    def _changed(state: object, drawn: object) -> Any:
        view = parse(state)
        dark = isinstance(drawn, dict) and drawn.get("theme") == "dark"
        return list(_outcome(runs.named(view.run), view, dark))


PAGE = Page("/advice", "Advice and what-if", 12, layout, register)
