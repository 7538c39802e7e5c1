"""Page 8: suggestions, their predicted gains, and what-if switches that replay at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.analyzers.frame.changes import Predicted, Refused
from gpuscope.dashboards import ids, parts
from gpuscope.dashboards.data.what_if import RANK, SLIDERS, SWITCHED, SWITCHES, Slider, chosen
from gpuscope.dashboards.figures import gains_figure
from gpuscope.dashboards.page import Page, Shown
from gpuscope.report.schema.document import PlanEntry, SuggestionEntry, UnpredictedEntry
from gpuscope.report.view import units
from gpuscope.report.view.prediction_sentences import plan, setting_words, step_change


def layout(shown: Shown) -> Component:
    """The page."""
    return html.Div([*_suggestions(shown), *_not_estimated(shown), *_whatif(shown)])


def _suggestions(shown: Shown) -> Iterator[Component]:
    report = shown.run.report
    found = report["suggestions"]
    if not found:
        yield parts.empty("Nothing to change", units.clean(report["advice"]["why"]).capitalize() + ".")
        return
    drawn = [
        gains_figure.Step(one["action"], *(one["predicted"][key] for key in ("step_ns_after", "low_ns", "high_ns")))
        for one in found
    ]
    fig = gains_figure.steps(found[0]["predicted"]["step_ns_before"], drawn, shown.dark)
    yield parts.card(
        "What to change",
        parts.figure(fig, "advice", 120 + 40 * len(drawn)),
        *[_suggestion(one) for one in found],
        *_together(report["advice"].get("plan")),
        note="Each change alone: gains don't add up, since findings overlap.",
        corner=parts.csv_link(shown.run.key, "suggestions"),
    )


def _together(entry: PlanEntry | None) -> Iterator[Component]:
    if entry is not None:
        yield dmc.Text(f"Together: {plan(entry)}", fw=600)


def _suggestion(one: SuggestionEntry) -> Component:
    predicted = one["predicted"]
    pairs = [
        ("set", dmc.Code(units.clean(setting_words(one, brief=False)))),
        ("gain", step_change(predicted) + ("" if one.get("certain", True) else ", gain uncertain")),
        ("rests on", predicted["basis"]),
        ("why", one["why"]), ("risk", one["risk"]), ("verify", one["verify"]),
    ]  # fmt: skip
    return _titled(one["action"], one["finding"], pairs)


def _titled(action: str, finding: str, pairs: list[tuple[str, Any]]) -> Component:
    head = dmc.Group([dmc.Text(units.clean(action), fw=600), dmc.Code(finding)], gap="xs")
    return html.Div([head, parts.facts(pairs)], className="finding", style={"marginBottom": 14})


def _not_estimated(shown: Shown) -> Iterator[Component]:
    unpredicted: list[UnpredictedEntry] = shown.run.report["advice"]["unpredicted"]
    if unpredicted:
        yield parts.card(
            "May help, gain not estimated",
            *[_titled(one["action"], one["finding"], _reasons(one)) for one in unpredicted],
        )


def _reasons(one: UnpredictedEntry) -> list[tuple[str, Any]]:
    shown = [("set", dmc.Code(units.clean(setting_words(one, brief=False)))), ("why not", one["why_not"])]
    return [*shown, *([("verify", one["verify"])] if one.get("verify") else [])]


def _whatif(shown: Shown) -> Iterator[Component]:
    predict = shown.run.predict
    if predict is None:
        yield parts.empty("What-if needs the trace", shown.run.why_no_events)
        return
    yield parts.card(
        "What if",
        *[_slider(slider, shown) for slider in SLIDERS],
        _chips(shown),
        _rank(shown),
        *_outcome(shown),
        note="Replays the trace with the selected changes; the address keeps every switch.",
    )


def _slider(slider: Slider, shown: Shown) -> Component:
    value = shown.view.extra.get(slider.key, "0")
    at = int(value) if value.isdecimal() and int(value) <= len(slider.stops) else 0
    labels = ["as recorded", *(slider.describe(stop) for stop in slider.stops)]
    return html.Div(
        [
            dmc.Text(slider.label, size="sm"),
            dmc.Slider(
                id=ids.extra(slider.key), value=at, min=0, max=len(slider.stops), step=1, label=None, mb=28, ml=36,
                w=620,
                marks=[{"value": place, "label": label} for place, label in enumerate(labels)],
                thumbLabel=slider.label,
            ),
        ]
    )  # fmt: skip


def _chips(shown: Shown) -> Component:
    on = [name for name in shown.view.extra.get(SWITCHED, "").split(",") if name in SWITCHES]
    chips = [dmc.Chip(label, value=name, size="sm") for name, (label, _) in SWITCHES.items()]
    return dmc.ChipGroup(dmc.Group(chips, gap="xs"), id=ids.extra(SWITCHED), value=on, multiple=True)


def _rank(shown: Shown) -> Component | None:
    ranks = shown.run.report["trace"]["ranks_present"]
    if len(ranks) < 2:
        return None
    asked = shown.view.extra.get(RANK, "")
    return dmc.Select(
        id=ids.extra(RANK), label="a rank as fast as its peers", placeholder="none", clearable=True, w=260, mt="sm",
        size="xs", data=[{"value": str(rank), "label": f"rank {rank}"} for rank in ranks], searchable=True,
        value=asked if asked.isdecimal() and int(asked) in ranks else None,
    )  # fmt: skip


def _outcome(shown: Shown) -> Iterator[Component]:
    assert shown.run.predict is not None
    asked = chosen(shown.view.extra)
    if not asked:
        yield dmc.Text("Move a slider or press a switch.", size="sm", c="dimmed", mt="md")
        return
    outcomes = [(label, shown.run.predict([change])) for label, change in asked]
    possible = [change for (_, change), (_, one) in zip(asked, outcomes, strict=True) if isinstance(one, Predicted)]
    if len(possible) > 1:
        outcomes.append(("all of these together", shown.run.predict(possible)))
    good = [(label, one) for label, one in outcomes if isinstance(one, Predicted)]
    if good:
        drawn = [gains_figure.Step(label, one.after, one.low, one.high) for label, one in good]
        yield parts.figure(gains_figure.steps(good[0][1].before, drawn, shown.dark), "what-if", 120 + 40 * len(drawn))
        yield parts.facts([(label, _sentence(one)) for label, one in good])
    for label, outcome in outcomes:
        if isinstance(outcome, Refused):
            yield parts.empty(f"Can't be predicted: {label}", units.clean(outcome.why))


def _sentence(one: Predicted) -> str:
    return (
        f"step {units.duration(one.before)} → {units.duration(one.after)} ({units.duration(one.low)} to "
        f"{units.duration(one.high)}); {one.basis}"
    )


PAGE = Page("/advice", "Advice and what-if", 8, layout)
