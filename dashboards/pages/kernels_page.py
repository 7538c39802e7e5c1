"""Page 6: device kernels by category and by name, and their FLOP rates."""

from __future__ import annotations

from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component

from gpuscope.dashboards import ids, parts
from gpuscope.dashboards.data.kernel_rows import kernel_rows, short
from gpuscope.dashboards.data.open_runs import Runs
from gpuscope.dashboards.figures import kernels_figure as drawing
from gpuscope.dashboards.page import Page, Shown
from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.report.schema.document import Report
from gpuscope.report.view import units

TIMES = ("dur", "mean", "min", "median", "max")
"""Columns of the table in ns: the sum, and of one call."""
PRECISIONS = {"bf16": "16-bit tensor cores", "fp32": "32-bit"}


def layout(shown: Shown) -> Component:
    """The page."""
    kernels = shown.run.report["kernels"]
    if not kernels:
        return parts.empty(
            "No kernels in this run",
            "Record the device's activity: ProfilerActivity.CUDA under torch.profiler, or nsys profile -t cuda.",
        )
    return parts.page(_categories(shown), _table(shown), _rates(shown))


def _filtered(shown: Shown) -> bool:
    return shown.view.ranks is not None or shown.view.steps is not None


def _scope(shown: Shown) -> str:
    """What the table is of, where filters are set."""
    if not _filtered(shown):
        return ""
    if shown.run.trace is None:
        return " The filters need the trace; this is the whole run."
    return " Of the ranks and steps chosen."


def _categories(shown: Shown) -> Component:
    kernels = shown.run.report["kernels"]
    whole = " Over all ranks and steps: the filters apply to the table." if _filtered(shown) else ""
    height = 130 + 30 * len({one["category"] for one in kernels})
    return parts.card(
        "By category",
        parts.figure(drawing.categories(kernels, shown.dark), "categories", height),
        note="Device time of all ranks; concurrent kernels count in full each." + whole,
    )


def _table(shown: Shown) -> Component:
    rows = [
        {
            "name": units.clean(one["name"]), "short": units.clean(short(one["name"])), "category": one["category"],
            "operator": units.clean(one["operator"] or ""), "count": one["count"], "share": one["share_frac"],
            "share_text": units.share(one["share_frac"]), "rate": one["flops_per_s"],
            "rate_text": units.flop_rate(one["flops_per_s"]),
            **{key: one[f"{key}_ns"] for key in TIMES},
            **{f"{key}_text": units.duration(one[f"{key}_ns"]) for key in TIMES},
        }
        for one in kernel_rows(shown.run, shown.view)
    ]  # fmt: skip
    columns = [
        parts.column("short", "kernel", flex=1, minWidth=220, tooltipField="name"),
        parts.column("operator", "launched by", width=150, tooltipField="operator"),
        parts.column("category", "category", width=120),
        parts.number("share", "share", "share_text", width=90),
        parts.number("dur", "time", "dur_text", width=100, sort="desc"),
        parts.column("count", "count", type="rightAligned", filter="agNumberColumnFilter", width=90),
        *(parts.number(key, key, f"{key}_text", width=100) for key in TIMES[1:]),
        parts.number("rate", "rate", "rate_text", width=120),
    ]
    lead = "Hover over a name for all of it; click to find the kernel in the timeline."
    return parts.card(
        "Kernels",
        parts.grid(rows, columns, "kernels", shown.dark, id=ids.KERNELS_GRID, columnSize=None),
        note=(lead if shown.run.events is not None else "Hover over a name for all of it.") + _scope(shown),
        corner=parts.csv_link(shown.run.key, "kernels"),
    )


def _rates(shown: Shown) -> Component:
    kernels = shown.run.report["kernels"]
    if not any(one["flops_per_s"] for one in kernels):
        return parts.empty(
            "No floating-point rates",
            "FLOPs are counted from the operators' shapes: torch.profiler.profile(record_shapes=True), or under nsys "
            "torch.autograd.profiler.emit_nvtx(record_shapes=True). Only matrix products, convolutions and "
            "attention are counted.",
        )
    known = peaks(shown.run.report)
    note = (
        "Matrix products, convolutions and attention, whose operations are counted from shapes; larger marks take more "
        "time in all. "
    )
    note += (
        "Dashed: the device's peak on its data sheet. "
        if known
        else "The device's peak is not drawn: its model is not recorded, or not in the table. "
    )
    note += "The trace does not record the bytes a kernel moves, so there is no memory roof: use Nsight Compute."
    return parts.card("Achieved rate", parts.figure(drawing.rates(kernels, known, shown.dark), "rates", 380), note=note)


def peaks(report: Report) -> dict[str, float]:
    """Peaks of a run's devices that are in the table, FLOP/s by label."""
    found: dict[str, float] = {}
    for model in sorted({entry["device_name"] for entry in report["ranks"] if entry["device_name"]}):
        for precision, label in PRECISIONS.items():
            peak = peak_flops(model, precision)
            if peak is not None:
                found[f"{model}, {label}: {units.flop_rate(peak)}"] = peak
    return found


def register(app: Dash, runs: Runs) -> None:  # noqa: ARG001
    """A click on a kernel's name searches for it in the timeline."""
    app.clientside_callback(
        ClientsideFunction("gpuscope", "kernel"),
        Output(ids.URL, "pathname", allow_duplicate=True),
        Output(ids.URL, "search", allow_duplicate=True),
        Input(ids.KERNELS_GRID, "cellClicked"),
        prevent_initial_call=True,
    )


PAGE = Page("/kernels", "Kernels", 6, layout, register)
