"""Who makes the others wait in which step, and a row for each rank, those at fault first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.figures.heatmap_figure import heatmap, rows_of
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.view import report_rows
from gpuscope.report.view.headline import culprits
from gpuscope.schema.document import RankEntry, Report, StragglerEntry
from gpuscope.words import units

MEASURES = {"wait_caused_ns": "waits caused", "wait_suffered_ns": "waits suffered", "step_ns": "step time"}
MEANS = {
    "step_ns": "Length of each step on each rank, coloured by how far it is off the median of the ranks in that step.",
    "wait_caused_ns": "How long the others waited, added up, in collectives that this rank entered last.",
    "wait_suffered_ns": "How long this rank waited in collectives for the last one.",
}


def layout(shown: Shown) -> Component:
    """The page."""
    return ui.page(_heatmap(shown), _ranks(shown))


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
    report = shown.run.report
    waited = any(one["wait_caused_ns"] for one in report.get("rank_steps", []))
    measure = shown.view.extra.get("measure", "")
    measure = measure if measure in MEASURES else "wait_caused_ns" if waited else "step_ns"
    every = cells(report, measure)
    chosen = {key: ns for key, ns in every.items() if shown.view.has_rank(key[0]) and shown.view.has_step(key[1])}
    switch = dmc.SegmentedControl(
        id=ui.extra("measure"),
        value=measure,
        size="xs",
        mb="xs",
        data=[{"value": key, "label": label} for key, label in MEASURES.items()],
    )
    note, body = MEANS[measure], _no_cells(bool(every), measure)
    if chosen:
        late = culprits(report)
        rows = rows_of(chosen, late)
        together = next((len(some) for _, some in rows if len(some) > 1), 0)
        if together:
            note += f" Up to {together} ranks share a row, and its cells show the largest: click one to see its ranks."
        note += " Click a cell to see it in the timeline."
        body = ui.figure(
            heatmap(chosen, MEASURES[measure], shown.dark, measure == "step_ns", rows, late),
            measure,
            max(110 + 20 * len(rows), 220),
            id=ui.RANKS_HEATMAP,
        )
    every_rank = dmc.Anchor("All ranks", href=shown.view.link("/ranks", ranks=None), size="sm")
    corner = None if shown.view.ranks is None else every_rank
    return ui.card("Who is late, and when", switch, body, note=f"{note} {_clocks(report)}", corner=corner)


def _no_cells(filtered: bool, measure: str) -> Component:
    if filtered:
        return ui.empty("The filters exclude every cell", "Choose other ranks or steps.")
    if measure == "step_ns":
        return ui.empty("No steps", "Call prof.step() once per iteration, or put an NVTX range «step N» around it.")
    return ui.empty(
        "No waits between ranks",
        "Waits are known where the same collective is seen on several ranks and the steps are known: open the "
        "traces of all ranks of one run together, recorded with steps (prof.step() or an NVTX range).",
    )


def _clocks(report: Report) -> str:
    trace = report["trace"]
    if len(trace["ranks_present"]) < 2:
        return "One rank alone: others have to be opened together with it to be compared."
    if trace["clock_error_ns"] is None:
        return "The ranks' clocks could not be aligned: record collectives that all ranks take part in."
    return f"Times of different ranks compare to within {units.duration(trace['clock_error_ns'])}."


def _ranks(shown: Shown) -> Component:
    """A row for each rank, those at fault pinned above the others."""
    report = shown.run.report
    entries = [entry for entry in report["ranks"] if shown.view.has_rank(entry["rank"])]
    if not entries:
        return ui.empty("No device work was recorded", "Record the device's activity (torch.profiler, nsys -t cuda).")
    late = culprits(report)
    caused = {one["rank"]: one for one in report["stragglers"]}
    rows = [
        _row(report, entry, label, caused.get(entry["rank"]))
        for entry, label in zip(entries, report_rows.rank_labels(entries), strict=True)
    ]
    rows.sort(key=lambda row: -(row["each"] or row["root"] or 0))
    first = [row for rank in late for row in rows if row["number"] == rank]
    ns = {key: ui.number(key, title, f"{key}_text", **more) for key, title, more in TIMES}
    shares = [
        ui.number(key, title, f"{key}_text", minWidth=96) for key, title in SHARES if any(row[key] for row in rows)
    ]
    device = (
        [ui.column("device", "device", tooltipField="device")]
        if len({one["device_name"] for one in entries}) > 1
        else []
    )
    # One line, since pinned rows can be no higher than the others.
    phase = ui.named("late", "late in", "late", minWidth=230, wrapText=False, autoHeight=False)
    where = [phase] if any(row["late"] != units.NONE for row in rows) else []
    columns = [
        ui.column("rank", "rank", minWidth=90, maxWidth=130, pinned="left"),
        ns["each"],
        ns["root"],
        *where,
        *shares,
        ns["step"],
        ui.number("overlap", "overlap", "overlap_text", minWidth=96),
        *device,
    ]
    return ui.card(
        "Ranks",
        ui.grid(
            [row for row in rows if row not in first],
            columns,
            "ranks",
            shown.dark,
            dashGridOptions={"pinnedTopRowData": first},
            defaultColDef={"suppressHeaderFilterButton": True},
        ),
        note="«Waits caused» is what one rank that waits for this one loses in a step; «root cause of» is all waiting, "
        "over ranks and steps, that began with this one. Ranks that are late again and again stand above the others.",
        corner=[ui.csv_link(shown.run.key, "ranks"), ui.csv_link(shown.run.key, "stragglers", name="CSV of waits")],
    )


TIMES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("each", "waits caused per step", {"minWidth": 116}),
    ("root", "root cause of", {}),
    ("step", "own step", {}),
)
SHARES = (
    ("compute", "compute"),
    ("communication", "exposed comm."),
    ("waiting", "of it waiting"),
    ("memory", "exposed copies"),
    ("idle", "idle"),
)


def _row(report: Report, entry: RankEntry, label: str, late: StragglerEntry | None) -> dict[str, Any]:
    """Texts and numbers of a rank; shares are of the judged window."""
    ns = {
        "each": late["per_step_ns"] if late else None,
        "root": late["root_wait_ns"] if late else None,
        "step": report_rows.rank_step_ns(report, entry),
    }
    parts, window = entry["breakdown_ns"], entry["window_ns"]
    spent = {
        "compute": parts["compute"],
        "communication": parts["exposed_communication"],
        "waiting": entry["stall_ns"]["communication"].get("straggler", 0),
        "memory": parts["exposed_memory"],
        "idle": parts["idle"],
    }
    shares = {key: value / window if window else None for key, value in spent.items()}
    shares["overlap"] = entry["overlap_frac"]
    where = [late["phase"], late.get("operation")] if late else []
    return {
        "number": entry["rank"],
        "rank": label,
        "device": units.clean(entry["device_name"] or units.NONE),
        "late": units.clean(": ".join(word for word in where if word)) or units.NONE,
        **ns,
        **{f"{key}_text": units.duration(value) for key, value in ns.items()},
        **shares,
        **{f"{key}_text": units.share(value) for key, value in shares.items()},
    }


def register(app: Dash, runs: Runs) -> None:  # noqa: ARG001
    """A click on a heatmap cell opens its rank and step in the timeline."""
    app.clientside_callback(
        ClientsideFunction("gpuscope", "cell"),
        Output(ui.URL, "pathname", allow_duplicate=True),
        Output(ui.URL, "search", allow_duplicate=True),
        Input(ui.RANKS_HEATMAP, "clickData"),
        prevent_initial_call=True,
    )


PAGE = Page("/ranks", "Ranks", 3, layout, register, lambda run: bool(run.report["ranks"] or run.report["steps"]))
