"""Two runs side by side, and a job's history in the run store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from gpuscope.analyzers.comparison.by_operator import is_alike, shared_work
from gpuscope.analyzers.comparison.compare import Side, compare
from gpuscope.catalogue.suggestion import cause_words
from gpuscope.dashboards import ui
from gpuscope.dashboards.data import open_runs
from gpuscope.dashboards.data.open_runs import OpenRun, typical_step
from gpuscope.dashboards.figures import steps_figure as figures
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.errors import GpuscopeError
from gpuscope.report.terminal import diff_text
from gpuscope.schema.diff_document import Diff, Proof
from gpuscope.schema.document import Report
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.units import short_kernels

WITH = "with"
"""Parameters of the address: the run compared with, and the job of the history."""
JOB = "job"
PAST = "past"
"""Number of a run of the store to compare with."""
SWAP = "swap"
JOBS = 20
"""Jobs of the store that are offered, those with most runs first."""
COLOURS = {"improvement": "green", "regression": "red", "neutral": "yellow", "different_jobs": "yellow"}


def layout(shown: Shown) -> Component:
    """The page."""
    return ui.page(*_compared(shown), *_history(shown))


@dataclass(frozen=True)
class _Other:
    """What the run shown is compared with: an opened run, or a stored report."""

    key: str
    label: str
    report: Report
    run: OpenRun | None = None


def _others(shown: Shown) -> list[_Other]:
    """The other opened runs, those of the same job first, by the work they share."""
    own = shown.run.report
    found = [_Other(run.key, run.label, run.report, run) for run in shown.runs.values() if run.key != shown.run.key]
    return sorted(found, key=lambda other: (not is_alike(own, other.report), -(shared_work(own, other.report) or 0.0)))


def _stored(shown: Shown) -> _Other | None:
    """The run of the store named in the address."""
    number, store = shown.view.extra.get(PAST, ""), shown.runs.store
    if store is None or not number.isdecimal() or len(number) > 12:
        return None
    report = open_runs.report_of(store, int(number))
    return None if report is None else _Other("", f"run {number} of the store", report)


def _compared(shown: Shown) -> Iterator[Component]:
    others = _others(shown)
    yield from _ignored(shown, others)
    other = _stored(shown) or shown_one(others, shown.view.extra.get(WITH, ""), shown.run.report)
    if other is None and others:
        yield _choice(shown, others, None, False)
        why = "The other open runs are of other jobs than this one. Choose one above to see both side by side."
        yield ui.empty("No run of the same job", why)
        return
    if other is None:
        yield ui.empty("Nothing to compare with", "Open two runs: gpuscope dashboard BEFORE AFTER.")
        return
    own = _Other(shown.run.key, shown.run.label, shown.run.report, shown.run)
    order = list(shown.runs)
    first = other.run is None or (other.key in order and order.index(other.key) < order.index(own.key))
    swapped = shown.view.extra.get(SWAP) == "1"
    before, after = (other, own) if first != swapped else (own, other)
    yield _choice(shown, others, other, swapped)
    diff = compare(Side(before.report, before.label), Side(after.report, after.label))
    yield dmc.Alert(
        [dmc.Text(units.clean(diff["verdict"]["why"])), _sides(diff)],
        title=html.H2(diff_text.verdict_line(diff), className="verdict"),
        color=COLOURS[diff["verdict"]["result"]],
        variant="light",
        mb="md",
    )
    if diff["caveats"]:
        yield ui.card("What makes them unlike", ui.sentences(diff["caveats"]))
    if diff["breakdown"]:
        yield ui.card("Where the time went", ui.figure(figures.parts(diff, shown.dark), "compare", 220))
    yield from _platform(diff, shown.dark)
    yield from _aligned(before, after, shown.dark)
    yield _causes(diff, shown.dark)
    yield _kernels(diff, shown.dark)
    if diff["suggestions"]:
        yield ui.card("Predicted and gained", ui.sentences([_proof(one) for one in diff["suggestions"]]))


def _platform(diff: Diff, dark: bool) -> Iterator[Component]:
    """What explains the difference, by operator, where the platform changed."""
    found = diff_text.platform_of(diff)
    if found is None:
        return
    lines = [diff_text.heading_line(found), diff_text.basis_line(found)]
    yield ui.card("Another platform", ui.sentences([units.clean(line) for line in lines]))
    if found["comparable"]:
        pairs = [diff_text.pair_cells(pair) for pair in found["pairs"]]
        titles, rows = diff_text.explained_table(diff, found)
        yield ui.card("What explains the difference", _text_grid(rows, titles, "explained", dark), note=diff_text.NOTE)
        names_first = [(row[-1], *row[:-1]) for row in (diff_text.PAIRS, *pairs)]
        yield ui.card("By operator", _text_grid(names_first[1:], names_first[0], "pairs", dark))


def _text_grid(rows: Sequence[tuple[str, ...]], titles: Sequence[str], name: str, dark: bool) -> Component:
    """Cells as the terminal shows them, in the order of the changes."""
    fields = [{f"c{place}": units.clean(cell) for place, cell in enumerate(row)} for row in rows]
    first = {"flex": 2, "minWidth": 240, "tooltipField": "c0"}
    columns = [ui.column(f"c{place}", title, **({} if place else first)) for place, title in enumerate(titles)]
    return ui.grid(fields, columns, name, dark, defaultColDef={"sortable": False})


def _ignored(shown: Shown, others: Sequence[_Other]) -> Iterator[Component]:
    """A word on a run to compare with that there is not."""
    named, past = shown.view.extra.get(WITH, ""), shown.view.extra.get(PAST, "")
    if named and named not in [one.key for one in others]:
        yield ui.ignored(WITH, f"no other run {units.crop(named, 40)} is open")
    if past and _stored(shown) is None:
        yield ui.ignored(PAST, f"the run store holds no run {units.crop(past, 40)}")


def shown_one(others: Sequence[_Other], key: str, own: Report) -> _Other | None:
    """The one of that key, else the first that is of the same job; None where there is none."""
    asked = next((one for one in others if one.key == key), None)
    return asked or next((one for one in others if is_alike(own, one.report)), None)


def _aligned(before: _Other, after: _Other, dark: bool) -> Iterator[Component]:
    """A typical step of each, from its start, on one scale."""
    strips = [(word, typical_step(side.run)) for word, side in (("before", before), ("after", after)) if side.run]
    drawn = [(word, strip) for word, strip in strips if strip is not None]
    if len(drawn) == 2:
        yield ui.card(
            "A step of each, aligned",
            ui.figure(figures.aligned(drawn, dark), "aligned", 90 + 34 * sum(len(one.busy) for _, one in drawn)),
            note="The steady step closest to the median, on the first rank: how busy it is by kind of device work.",
        )


def _choice(shown: Shown, others: Sequence[_Other], chosen: _Other | None, swapped: bool) -> Component:
    extra = {key: value for key, value in shown.view.extra.items() if key not in (WITH, PAST)}
    links = [
        dmc.Anchor(
            units.clean(other.label),
            size="sm",
            href=shown.view.link("/compare", extra={**extra, WITH: other.key}),
            fw=700 if other is chosen else None,
        )
        for other in others
    ]
    if chosen is not None and chosen.run is None:
        links.append(dmc.Text(chosen.label, size="sm", fw=700))
    swap = {**shown.view.extra, SWAP: "" if swapped else "1"}
    if chosen is not None:
        links.append(dmc.Anchor("Swap before and after", size="sm", href=shown.view.link("/compare", extra=swap)))
    return dmc.Group([dmc.Text("compared with", size="sm", c="dimmed"), *links], mb="md", gap="md")


def _sides(diff: Diff) -> Component:
    lines = [f"{word}: {diff_text.side_line(diff[word])}" for word in ("before", "after")]
    return html.Div([dmc.Text(units.clean(line), size="sm", c="dimmed") for line in lines])


def _causes(diff: Diff, dark: bool) -> Component:
    moved = [row for row in diff["causes"] if row["change_ns"]]
    if not moved:
        return ui.empty("No cause moved", "Time that is not compute has the same causes with the same durations.")
    rows = [{"cause": cause_words(row["cause"]), **_times(row["before_ns"], row["after_ns"])} for row in moved]
    return ui.card(
        "Causes that moved",
        ui.grid(rows, [ui.column("cause", "cause", minWidth=240), *_COLUMNS], "causes", dark),
    )


def _kernels(diff: Diff, dark: bool) -> Component:
    if not diff["kernels"]:
        return ui.empty("No kernels to compare", "Neither run recorded device events.")
    rows = [
        {
            "name": units.clean(row["name"]),
            "short": units.clean(short),
            "category": row["category"],
            **_times(row["before_ns"], row["after_ns"]),
        }
        for row, short in zip(diff["kernels"], short_kernels([row["name"] for row in diff["kernels"]]), strict=True)
    ]
    columns = [
        ui.named("short", "kernel", "name"),
        ui.column("category", "category"),
        *_COLUMNS,
    ]
    return ui.card(
        "Kernels that moved",
        ui.grid(rows, columns, "kernels-compared", dark, defaultColDef={"suppressHeaderFilterButton": True}),
    )


_COLUMNS = (
    ui.number("before", "before", "before_text"),
    ui.number("after", "after", "after_text"),
    ui.number("change", "change", "change_text"),
)


def _times(before: int, after: int) -> dict[str, Any]:
    change = after - before
    sign = "+" if change > 0 else "−" if change < 0 else ""
    return {
        "before": before,
        "before_text": units.duration(before),
        "after": after,
        "after_text": units.duration(after),
        "change": change,
        "change_text": f"{sign}{units.duration(abs(change))}",
    }


def _proof(one: Proof) -> str:
    low, high = units.duration(one["low_ns"]), units.duration(one["high_ns"])
    held = one["held"] or "not measured"
    return (
        f"{one['action']}: predicted {units.duration(one['predicted_ns'])} ({low} to {high}), measured "
        f"{units.duration(one['measured_ns'])}: {held}"
    )


def _history(shown: Shown) -> Iterator[Component]:
    store = shown.runs.store
    how = "gpuscope analyze keeps every run in a store; choose another with --store."
    if store is None or not store.exists():
        yield ui.empty("No history", how)
        return
    try:
        names = open_runs.jobs(store)
        job = shown.view.extra.get(JOB) or _own(shown, store)
        if job not in names:
            words = [f"The store {store} holds no run of it. {how}", _jobs(shown, names, job)]
            yield ui.empty("No history of this run", words)
            return
        points = open_runs.trend_of(store, job)
    except GpuscopeError as error:
        yield ui.empty("The run store can't be read", units.clean(str(error)))
        return
    extra = {key: value for key, value in shown.view.extra.items() if key != WITH}
    places = [shown.view.link("/compare", extra={**extra, PAST: str(point.number)}) for point in points]
    body: list[Any] = [ui.figure(figures.trend(points, shown.dark, places), "history", 360, id=ui.lead("history"))]
    body.append(_jobs(shown, names, job))
    note = f"{units.clean(job)}: step time of its stored runs with the 95 % interval; marks show changes. "
    note += "Click a run to compare with it."
    yield ui.card("History", *body, note=note)


def _jobs(shown: Shown, names: Sequence[str], job: str) -> Component | None:
    """Links to the histories of other jobs, on demand."""
    links = [
        html.Li(
            dmc.Anchor(
                units.crop(units.clean(name), 100),
                size="sm",
                href=shown.view.link("/compare", extra={**shown.view.extra, JOB: name}),
            )
        )
        for name in names[:JOBS]
        if name != job
    ]
    if not links:
        return None
    return html.Details(
        [html.Summary("Other jobs of the store"), html.Ul(links, className="links")], className="missing"
    )


def _own(shown: Shown, store: Path) -> str:
    """The job of the run shown, by its files; empty where the store has none."""
    return open_runs.job_of(store, shown.run.files)


PAGE = Page("/compare", "Compare and history", 13, layout)
