"""Page 1: the verdict, the time breakdown, the most severe findings, and what is missing."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.dashboards import theme, ui
from gpuscope.dashboards.figures import breakdown_figure, steps_figure
from gpuscope.dashboards.page import Page, Shown
from gpuscope.dashboards.page_links import evidence_link, meanwhile_link, timeline_view
from gpuscope.report.view import arrangement, blame, headline, summary, why_verdict
from gpuscope.schema.document import FindingEntry, RankEntry, StepEntry
from gpuscope.words import units

LEADS = "Click to see it in the timeline."
FINDINGS_SHOWN = 8
EVIDENCE_SHOWN = 3
MOST_BARS = 64
"""Bars that are still readable; of more ranks, those with the least and most compute are shown."""


def layout(shown: Shown) -> Component:
    """The page."""
    return ui.page(
        _verdict(shown),
        _breakdown(shown),
        _steps(shown),
        _findings(shown),
        _uncertainties(shown),
    )  # fmt: skip


def _verdict(shown: Shown) -> Component:
    """The first screen of the terminal report: the same lines and caveats."""
    report = shown.run.report
    verdict, said = report["verdict"], summary.summary(report)
    abstained = verdict["abstained"] or verdict["bound_by"] is None
    colour = "yellow" if abstained else "green" if verdict["bound_by"] == "compute" else "red"
    lines = [html.Div([html.B(label), html.Span(units.clean(text))]) for label, text in said.lines.below()]
    body: list[Any] = [html.Div(lines, className="first-lines"), *([] if abstained else [dmc.Text(said.verdict)])]
    if (largest := _largest(shown)) is not None:
        body.append(largest)
    body.append(html.Div(ui.step_time(report)))
    if said.limits:
        body.append(dmc.Text([html.B("Caveats: "), units.clean(said.limits)], size="sm"))
    body.append(dmc.Text(units.clean(headline.context_line(report)), size="sm", c="dimmed", mt="xs"))
    if shown.view.ranks is not None or shown.view.steps is not None:
        body.append(
            dmc.Text("The verdict is for the whole run; the filters apply to the figures below.", size="sm", mt="xs")
        )
    title = html.H2(units.clean(said.lines.what), className="verdict")
    return dmc.Alert(body, title=title, color=colour, variant="light", mb="md")


def _largest(shown: Shown) -> Component | None:
    """The largest places that the first lines rest on, each leading to the timeline; None where there are none."""
    report = shown.run.report
    places = why_verdict.largest(report)
    if not places:
        return None
    main = blame.main_finding(report)
    number = next(i for i, one in enumerate(arrangement.findings(report)) if one is main)
    lines = [html.Div(evidence_link(place.evidence, shown, number)) for place in places]
    late = main["ranks"] if main is not None and main["code"] == "straggler" else []
    others = [rank for rank in late if rank != places[0].evidence["rank"]]
    if len(others) == 1 and (found := meanwhile_link(places[0].evidence, others[0], shown, number)) is not None:
        lines.append(html.Div(["Meanwhile: ", found]))
    tipping = why_verdict.tipping(report)
    if tipping:
        lines.append(dmc.Text(f"It would be {tipping}", size="sm", c="dimmed"))
    return html.Details([html.Summary("Why this verdict"), *lines], className="why-verdict", open=True)


def _breakdown(shown: Shown) -> Component:
    ranks = [entry for entry in shown.run.report["ranks"] if shown.view.has_rank(entry["rank"])]
    if not ranks:
        return ui.empty(
            "No device time to break down",
            "Record the device's activity: ProfilerActivity.CUDA, or nsys profile -t cuda,nvtx,osrt.",
        )
    note = f"Compute, exposed communication, exposed copies, and idle time by cause; they sum to the window. {LEADS}"
    if shown.view.steps is not None:
        note += " Over the whole window, whatever steps are chosen: use `gpuscope analyze --steps` for those."
    if len(ranks) > MOST_BARS:
        by_compute = sorted(ranks, key=arrangement.compute_share)
        chosen = by_compute[: MOST_BARS // 2] + by_compute[-MOST_BARS // 2 :]
        note += f" Of {len(ranks)} ranks those with the least and the most compute; the rank filter chooses others."
        ranks = [entry for entry in ranks if any(entry is one for one in chosen)]
    fig = breakdown_figure.bars(ranks, shown.dark, lambda entry, code: _place(shown, entry, code))
    height = 176 + 34 * len(ranks)
    return ui.card(
        "Where the time goes",
        ui.figure(fig, "breakdown", max(height, 200), id=ui.lead("breakdown")),
        note=note,
        corner=ui.csv_link(shown.run.key, "ranks"),
    )


def _place(shown: Shown, entry: RankEntry, code: str) -> str:
    """Where to see a piece of a rank's bar: the first evidence of its cause on that rank, else the rank's timeline."""
    events = shown.run.events
    if events is None:
        return ""
    for number, finding in enumerate(arrangement.findings(shown.run.report)):
        for one in finding["evidence"]:
            if finding["code"] == code and one["rank"] == entry["rank"]:
                return timeline_view(one, events, shown.view, number)
    return shown.view.link("/timeline", ranks=frozenset({entry["rank"]}))


def _step_place(shown: Shown, step: StepEntry) -> str:
    number = step["step"]
    if shown.run.events is None or number is None:
        return ""
    return shown.view.link("/timeline", steps=(number, number), window=None)


def _steps(shown: Shown) -> Component:
    report = shown.run.report
    chosen = [
        step for step in report["steps"]
        if step["step"] is not None and shown.view.has_rank(step["rank"]) and shown.view.has_step(step["step"])
    ]  # fmt: skip
    if not chosen:
        return ui.empty(
            "No steps to draw",
            "Call prof.step() once per iteration under torch.profiler, or put an NVTX range «step N» around it."
            if not report["steps"]
            else "The filters exclude all steps of this run.",
        )
    basis = f"Steps from {units.clean(report['steps_basis'])}." if report["steps_basis"] else ""
    return ui.card(
        "Step time",
        ui.figure(
            steps_figure.series(chosen, shown.dark, lambda step: _step_place(shown, step)),
            "steps",
            280,
            id=ui.lead("steps"),
        ),
        note=f"{basis} {LEADS}".strip(),
        corner=ui.csv_link(shown.run.key, "steps"),
    )


def _findings(shown: Shown) -> Component:
    found = [
        (number, finding) for number, finding in enumerate(arrangement.findings(shown.run.report))
        if shown.view.ranks is None or not finding["ranks"] or shown.view.ranks & set(finding["ranks"])
    ]  # fmt: skip
    if not found:
        return ui.empty(
            "No findings", "No cause in this run costs enough time to report, or no analysis could determine it."
        )
    body: list[Component] = [_finding(number, finding, shown) for number, finding in found[:FINDINGS_SHOWN]]
    if len(found) > FINDINGS_SHOWN:
        body.append(dmc.Text(f"and {len(found) - FINDINGS_SHOWN} more (CSV)", size="sm", c="dimmed"))
    return ui.card("Findings", *body, corner=ui.csv_link(shown.run.key, "findings"))


def _finding(number: int, finding: FindingEntry, shown: Shown) -> Component:
    lost = arrangement.finding_cost_ns(shown.run.report, finding)
    costs = [
        f"{units.duration(lost)} per {headline.whole(shown.run.report)}" if lost else "",
        units.share(finding["share_frac"]) if finding["share_frac"] else "",
        units.rank_words(finding["ranks"]) if finding["ranks"] else "",
    ]
    head = dmc.Group([
        ui.severity(finding["severity"], theme.SEVERITY_COLOURS.get(finding["severity"], "gray")),
        dmc.Code(finding["code"]),
        dmc.Text(" · ".join(cost for cost in costs if cost), size="sm", c="dimmed"),
    ], gap="xs")  # fmt: skip
    places = [html.Li(evidence_link(one, shown, number)) for one in finding["evidence"][:EVIDENCE_SHOWN]]
    return html.Div(
        [head, dmc.Text(units.clean(finding["message"])), html.Ul(places, style={"margin": 0, "paddingLeft": 20})],
        style={"marginBottom": 14},
        className="finding",
    )


def _uncertainties(shown: Shown) -> Component:
    found = arrangement.doubts(shown.run.report)
    if not found:
        return ui.card("What is uncertain", dmc.Text("Nothing was lost or is missing."))
    rows = [
        dmc.TableTr([dmc.TableTd(ui.severity(kind, "gray")), dmc.TableTd(units.clean(sentence))])
        for kind, sentence in found
    ]
    return ui.card(
        "What is uncertain",
        dmc.Table(dmc.TableTbody(rows), withRowBorders=False),
        corner=ui.csv_link(shown.run.key, "problems"),
    )


PAGE = Page("/", "Overview", 1, layout)
