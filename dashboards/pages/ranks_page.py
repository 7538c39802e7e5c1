"""Page 3: rank by step, stragglers, and clock alignment."""

from __future__ import annotations

from collections.abc import Mapping

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component

from gpuscope.catalogue.straggler_sentences import CAUSED_WAIT
from gpuscope.dashboards import ids, ui
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.figures.heatmap_figure import heatmap
from gpuscope.dashboards.page import Page, Shown
from gpuscope.report.view import arrangement
from gpuscope.schema.document import Report
from gpuscope.words import units

MEASURES = {"step_ns": "step time", "wait_caused_ns": "wait caused", "wait_suffered_ns": "wait suffered"}
MEANS = {
    "step_ns": "Length of each step on each rank, coloured by how far it is off the median of the ranks in that step.",
    "wait_caused_ns": "How long the others waited in collectives that this rank entered last.",
    "wait_suffered_ns": "How long this rank waited in collectives for the last one.",
}


def layout(shown: Shown) -> Component:
    """The page."""
    return ui.page(_heatmap(shown), _stragglers(shown), _clocks(shown), _ranks(shown))


def cells(report: Report, measure: str) -> Mapping[tuple[int, int], int]:
    """ns by (rank, step) of a measure; of a rank's several devices, the longest step."""
    if report.get("rank_steps"):
        return {(one["rank"], one["step"]): one[measure] for one in report["rank_steps"]}  # type: ignore[literal-required]
    if measure != "step_ns":
        return {}
    found: dict[tuple[int, int], int] = {}
    for step in report["steps"]:
        if step["step"] is not None:
            key = (step["rank"], step["step"])
            found[key] = max(step["dur_ns"], found.get(key, 0))
    return found


def _heatmap(shown: Shown) -> Component:
    measure = shown.view.extra.get("measure", "step_ns")
    measure = measure if measure in MEASURES else "step_ns"
    every = cells(shown.run.report, measure)
    chosen = {key: ns for key, ns in every.items() if shown.view.has_rank(key[0]) and shown.view.has_step(key[1])}
    switch = dmc.SegmentedControl(
        id=ids.extra("measure"), value=measure, size="xs", mb="xs",
        data=[{"value": key, "label": label} for key, label in MEASURES.items()],
    )  # fmt: skip
    body: Component
    if chosen:
        ranks = len({rank for rank, _ in chosen})
        body = ui.figure(
            heatmap(chosen, MEASURES[measure], shown.dark, measure == "step_ns"), measure,
            min(max(60 + 28 * ranks, 220), 900), id=ids.RANKS_HEATMAP,
        )  # fmt: skip
    elif every:
        body = ui.empty("The filters exclude every cell", "Choose other ranks or steps.")
    elif measure == "step_ns":
        body = ui.empty("No steps", "Call prof.step() once per iteration, or put an NVTX range «step N» around it.")
    else:
        body = ui.empty(
            "No waits between ranks",
            "Waits are known where the same collective is seen on several ranks and the steps are known: open the "
            "traces of all ranks of one run together, recorded with steps (prof.step() or an NVTX range).",
        )
    return ui.card("Rank by step", switch, body, note=MEANS[measure] + " Click a cell to see it in the timeline.")


def _stragglers(shown: Shown) -> Component:
    report = shown.run.report
    found = [one for one in report["stragglers"] if shown.view.has_rank(one["rank"])]
    if not found:
        several = len(report["trace"]["ranks_present"]) > 1
        return ui.empty(
            "No rank that others waited for",
            "No rank came last in a matched collective, or none could be matched: see «What is uncertain»."
            if several
            else "One rank alone is not enough: open the traces of all ranks together.",
        )
    rows = [
        {
            "rank": one["rank"], "caused": one["caused_wait_ns"], "caused_text": units.duration(one["caused_wait_ns"]),
            "each": one["per_step_ns"], "each_text": units.duration(one["per_step_ns"]),
            "root": one.get("root_wait_ns"), "root_text": units.duration(one.get("root_wait_ns")),
            "recurrent": "yes" if one["recurrent"] else "no", "phase": units.clean(one["phase"] or units.NONE),
            "operation": units.clean(one.get("operation") or units.NONE),
        }
        for one in found
    ]  # fmt: skip
    columns = [
        ui.column("rank", "rank", type="rightAligned", minWidth=70, maxWidth=100),
        ui.number("caused", "caused wait", "caused_text"),
        ui.number("each", "per step", "each_text"),
        ui.number("root", "root cause of", "root_text"),
        ui.column("recurrent", "recurrent", maxWidth=150),
        ui.column("phase", "late in"),
        ui.column("operation", "operation"),
    ]
    return ui.card(
        "Ranks that others waited for",
        ui.grid(rows, columns, "stragglers", shown.dark),
        note=f"{CAUSED_WAIT} «Root cause of» follows waits back to their first cause.",
        corner=ui.csv_link(shown.run.key, "stragglers"),
    )


def _clocks(shown: Shown) -> Component:
    trace = shown.run.report["trace"]
    error = trace["clock_error_ns"]
    if len(trace["ranks_present"]) < 2:
        note = "One rank: there are no clocks to compare."
    elif error is None:
        note = (
            "The ranks' clocks could not be aligned, so no times are compared across ranks: record collectives "
            "that all ranks take part in."
        )
    else:
        note = (
            f"Times of different ranks compare to within {units.duration(error)}; differences below that mean nothing."
        )
    return ui.card("Clocks", dmc.Text(note))


def _ranks(shown: Shown) -> Component:
    entries = [entry for entry in shown.run.report["ranks"] if shown.view.has_rank(entry["rank"])]
    if not entries:
        return ui.empty("No device work was recorded", "Record the device's activity (torch.profiler, nsys -t cuda).")
    rows = []
    for entry, label in zip(entries, arrangement.rank_labels(entries), strict=True):
        step = arrangement.rank_step_ns(shown.run.report, entry)
        rows.append({
            "rank": label, "device": units.clean(entry["device_name"] or units.NONE),
            "window": entry["window_ns"], "window_text": units.duration(entry["window_ns"]),
            "steps": entry["steps"], "step": step, "step_text": units.duration(step),
            "compute": arrangement.compute_share(entry), "compute_text": units.share(arrangement.compute_share(entry)),
            "overlap": entry["overlap_frac"], "overlap_text": units.share(entry["overlap_frac"]),
        })  # fmt: skip
    columns = [
        ui.column("rank", "rank", minWidth=90, maxWidth=130),
        ui.column("device", "device"),
        ui.number("window", "window", "window_text"),
        ui.column("steps", "steps", type="rightAligned", minWidth=80, maxWidth=100),
        ui.number("step", "step time", "step_text"),
        ui.number("compute", "compute", "compute_text"),
        ui.number("overlap", "overlapped comm.", "overlap_text"),
    ]
    return ui.card("Ranks", ui.grid(rows, columns, "ranks", shown.dark), corner=ui.csv_link(shown.run.key, "ranks"))


def register(app: Dash, runs: Runs) -> None:  # noqa: ARG001
    """A click on a heatmap cell opens its rank and step in the timeline."""
    app.clientside_callback(
        ClientsideFunction("gpuscope", "cell"),
        Output(ids.URL, "pathname", allow_duplicate=True),
        Output(ids.URL, "search", allow_duplicate=True),
        Input(ids.RANKS_HEATMAP, "clickData"),
        prevent_initial_call=True,
    )


PAGE = Page("/ranks", "Ranks", 3, layout, register)
