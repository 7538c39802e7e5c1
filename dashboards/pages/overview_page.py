"""The first lines, four figures, the step by cause and after the change, the change, and what shows it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import dash_mantine_components as dmc
import numpy as np
from dash import html
from dash.development.base_component import Component

from gpuscope.catalogue.suggestion import finding_words
from gpuscope.dashboards import ui
from gpuscope.dashboards.data.counter_tracks import EVENT_STYLES
from gpuscope.dashboards.data.events import Events
from gpuscope.dashboards.data.open_runs import busy_share
from gpuscope.dashboards.figures import heatmap_figure, steps_figure
from gpuscope.dashboards.ui import Page, Shown, attributes, evidence_link, meanwhile_link, step_place, timeline_view
from gpuscope.report.html.evidence_drawing import Busy, Moments
from gpuscope.report.html.html_report import moment_svg
from gpuscope.report.view import headline, main_finding, report_rows
from gpuscope.report.view.first_figures import first_figures, fix_card
from gpuscope.report.view.headline import changed, culprits
from gpuscope.report.view.summary import Summary, rank_lines, summary
from gpuscope.schema.document import Evidence, FindingEntry, RankEntry
from gpuscope.trace.schema import Kind
from gpuscope.words import units

FINDINGS_SHOWN = 8
EVIDENCE_SHOWN = 3
LATER = ("risk", "verify")
"""Rows of the change's card that one opens."""
ROW, FRAME = 36, 118
"""Pixels of a bar, and of what stands around all of them."""


def layout(shown: Shown) -> Component:
    """The page."""
    said = summary(shown.run.report)
    return ui.page(
        _verdict(shown, said),
        _figures(shown, said),
        ui.beside(_breakdown(shown, said), _fix(shown, said)),
        _places(shown),
        _findings(shown),
        ui.beside(_steps(shown), _uncertainties(shown)),
    )


def _verdict(shown: Shown, said: Summary) -> Component:
    """The first screen of the terminal report: the same lines and caveats."""
    report = shown.run.report
    verdict = report["verdict"]
    open_ = verdict["bound_by"] is None and not report.get("hang", {}).get("hung")
    lines = [part for label, text in said.lines.below() for part in (html.Dt(label), html.Dd(units.clean(text)))]
    body: list[Any] = [html.H2(units.clean(said.lines.what), className="verdict"), html.Dl(lines)]
    if said.limits:
        body.append(dmc.Text([html.B("Caveats: "), units.clean(said.limits)], size="sm"))
    body.append(dmc.Text(units.clean(headline.context_line(report)), size="sm", c="dimmed"))
    if shown.view.ranks is not None or shown.view.steps is not None:
        body.append(dmc.Text("The verdict is for the whole run; the filters apply to the figures below.", size="sm"))
    return dmc.Paper(
        body, withBorder=True, p="md", mb="md", className=f"first-lines {'abstained' if open_ else verdict['bound_by']}"
    )


def _figures(shown: Shown, said: Summary) -> Component | None:
    return ui.tiles(first_figures(shown.run.report, said.lines))


def _breakdown(shown: Shown, said: Summary) -> Component:
    report = shown.run.report
    some = [entry for entry in report["ranks"] if shown.view.has_rank(entry["rank"])]
    if not some:
        return ui.empty(
            "No device time to break down",
            "Record the device's activity: ProfilerActivity.CUDA, or nsys profile -t cuda,nvtx,osrt.",
        )
    lines, folded = rank_lines(report, some)
    change, step = changed(said.lines.told), report_rows.step_ns(report)
    fig = steps_figure.bars(
        [line.entry for line in lines],
        shown.dark,
        lambda entry, code: _place(shown, entry, code),
        step_ns=step,
        late=culprits(report),
        change=change,
    )
    note = ui.LEADS
    if shown.view.steps is not None:
        note += " Over the whole window, whatever steps are chosen: use `gpuscope analyze --steps` for those."
    if folded:
        notes = "".join(f"; rank {line.label}: {line.note}" for line in lines if line.note)
        note = f"{len(lines)} of {len(some)} ranks{notes}. The filter chooses others. {ui.LEADS}"
    rows = len(lines) + (change is not None and step is not None)
    return ui.card(
        f"Where the {headline.whole(report)} goes",
        ui.figure(fig, "breakdown", FRAME + ROW * rows, id=ui.lead("breakdown")),
        note=note,
        corner=[
            dmc.Anchor("All ranks", href=shown.view.link("/ranks"), size="sm"),
            ui.csv_link(shown.run.key, "ranks"),
        ],
    )


def _place(shown: Shown, entry: RankEntry, code: str) -> str:
    """Where to see a piece of a rank's bar: the first evidence of its cause on that rank, else the rank's timeline."""
    events = shown.run.events
    if events is None:
        return ""
    for number, finding in enumerate(report_rows.findings(shown.run.report)):
        for one in finding["evidence"]:
            if finding["code"] == code and one["rank"] == entry["rank"]:
                return timeline_view(one, events, shown.view, number)
    return shown.view.link("/timeline", ranks=frozenset({entry["rank"]}))


def _fix(shown: Shown, said: Summary) -> Component | None:
    """The change of the first lines with its setting to copy."""
    card = fix_card(said.lines)
    if card is None:
        return None
    body: list[Any] = [dmc.Text(units.clean(card.action), fw=600, mb="xs")]
    if card.setting:
        body.append(dmc.Code(units.clean(card.setting), block=True, className="setting"))
    if card.typed:
        body.append(
            dmc.CopyButton("Copy", copiedChildren="Copied", value=card.typed, size="xs", variant="default", my="xs")
        )
    first, later = (
        [(label, ui.prose(text)) for label, text in card.rows if (label in LATER) is over] for over in (False, True)
    )
    body.append(ui.facts(first))
    if later:
        body.append(html.Details([html.Summary("Risk, and how to verify"), ui.facts(later)], className="missing"))
    others = len(shown.run.report["suggestions"]) + len(shown.run.report["advice"]["unpredicted"]) - 1
    more = f"{units.plural(others, 'other change')}, and what if" if others > 0 else "What if"
    return ui.card(card.title, *body, corner=dmc.Anchor(more, href=shown.view.link("/advice"), size="sm"))


def _places(shown: Shown) -> Component | None:
    """The largest places that the first lines rest on, each leading to the timeline; None where there are none."""
    report = shown.run.report
    places = [place.evidence for place in headline.largest(report)]
    main = main_finding.main_finding(report)
    if not places or main is None:
        return None
    number = next(i for i, one in enumerate(report_rows.findings(report)) if one is main)
    late = [rank for rank in culprits(report) if rank != places[0]["rank"]]
    body: list[Any] = [pictures(places, late or main["ranks"], shown, number)]
    if main["code"] == "straggler" and len(late) == 1:
        found = meanwhile_link(places[0], late[0], shown, number)
        body.append(dmc.Text(["Longest meanwhile: ", found], size="sm", mt="xs") if found is not None else None)
    tipping = headline.tipping(report)
    note = f"The largest places. It would be {tipping}." if tipping else "The largest places."
    return html.Div(ui.card("Why this verdict", *body, note=note), className="finding")


def _steps(shown: Shown) -> Component:
    report = shown.run.report
    chosen = [
        step
        for step in report["steps"]
        if step["step"] is not None and shown.view.has_rank(step["rank"]) and shown.view.has_step(step["step"])
    ]
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
            steps_figure.series(chosen, shown.dark, lambda step: step_place(shown, step)),
            "steps",
            220,
            id=ui.lead("steps"),
        ),
        note=f"{basis} {ui.LEADS}".strip(),
        corner=ui.csv_link(shown.run.key, "steps"),
    )


def _findings(shown: Shown) -> Component:
    found = [
        (number, finding)
        for number, finding in enumerate(report_rows.findings(shown.run.report))
        if shown.view.ranks is None or not finding["ranks"] or shown.view.ranks & set(finding["ranks"])
    ]
    if not found:
        return ui.empty(
            "No findings", "No cause in this run costs enough time to report, or no analysis could determine it."
        )
    body: list[Component] = [
        dmc.Accordion(
            [_finding(number, finding, shown) for number, finding in found[:FINDINGS_SHOWN]], multiple=True, order=3
        )
    ]
    if len(found) > FINDINGS_SHOWN:
        body.append(dmc.Text(f"and {len(found) - FINDINGS_SHOWN} more (CSV)", size="sm", c="dimmed"))
    return ui.card("Findings", *body, corner=ui.csv_link(shown.run.key, "findings"))


def _finding(number: int, finding: FindingEntry, shown: Shown) -> Component:
    lost = report_rows.finding_cost_ns(shown.run.report, finding)
    costs = [
        f"{units.duration(lost)} per {headline.whole(shown.run.report)}" if lost else "",
        units.share(finding["share_frac"]) if finding["share_frac"] else "",
        units.rank_words(finding["ranks"]) if finding["ranks"] else "",
    ]
    head = dmc.Group(
        [
            ui.severity(finding["severity"], heatmap_figure.SEVERITY_COLOURS.get(finding["severity"], "gray")),
            html.Span(finding_words(finding["code"]), title=finding["code"], className="finding-title"),
            dmc.Text(" · ".join(cost for cost in costs if cost), size="sm", c="dimmed", span=True),
        ],
        gap="xs",
    )
    body: list[Any] = [dmc.Text(units.clean(finding["message"]), mb="xs")]
    if finding["evidence"]:
        body.append(pictures(finding["evidence"][:EVIDENCE_SHOWN], finding["ranks"], shown, number))
    return dmc.AccordionItem([dmc.AccordionControl(head), dmc.AccordionPanel(body)], value=str(number))


def _uncertainties(shown: Shown) -> Component:
    found = report_rows.doubts(shown.run.report)
    if not found:
        return ui.card("What is uncertain", dmc.Text("Nothing was lost or is missing."))
    pairs = [(ui.severity(kind, "gray"), units.clean(sentence)) for kind, sentence in found]
    return ui.card("What is uncertain", ui.facts(pairs), corner=ui.csv_link(shown.run.key, "problems"))


PAGE = Page("/", "Overview", 1, layout)


KINDS = ((0, Kind.COMPUTE), (1, Kind.COMMUNICATION), (1, Kind.MEMORY))
"""Rows of a picture, and what is drawn in them."""


def pictures(found: Sequence[Evidence], ranks: Sequence[int], shown: Shown, finding: int) -> Component:
    """Each piece of evidence with a picture of its rank beside the first of `ranks`, where their clocks compare."""
    events, starts = shown.run.events, report_rows.starts(shown.run.report)
    moments = Moments(shown.run.report, found, _busy(events)) if events is not None else None
    cards = []
    for one in found:
        body: list[Component] = [evidence_link(one, shown, finding)]
        moment = moments.around(one, ranks, starts.get(one["rank"])) if moments is not None else None
        if moment is not None and events is not None:
            source = "data:image/svg+xml," + quote(moment_svg(moment, shown.dark))
            picture = html.Img(src=source, alt="", className="moment")
            # The text below is the link for keyboards and screen readers.
            href = timeline_view(one, events, shown.view, finding)
            body.insert(0, dmc.Anchor(picture, href=href, tabIndex=-1, **attributes(aria_hidden="true")))
        cards.append(dmc.Paper(body, withBorder=True, p="xs"))
    return dmc.SimpleGrid(cards, cols={"base": 1, "sm": 2, "lg": 3}, spacing="sm")


def _busy(events: Events) -> Busy:
    def busy(rank: int, begin: int, end: int, columns: int) -> Iterator[tuple[int, str, Sequence[float]]]:
        first, last = (events.clock.shown(rank, at) for at in (begin, end))
        edges = np.linspace(first, last, columns + 1).astype(np.int64)
        tracks = events.streams(rank)
        for row, kind in KINDS:
            if (share := busy_share(tracks, kind, edges)) is not None:
                yield row, EVENT_STYLES[kind][1], share.tolist()

    return busy
