"""Device kernels by category and by name, and their FLOP rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import Any

import dash_mantine_components as dmc
from dash import ClientsideFunction, Dash, Input, Output
from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.data.events import sequences
from gpuscope.dashboards.data.open_runs import WITHIN, Runs, filtered, kernel_rows, window_of
from gpuscope.dashboards.figures import gains_figure as drawing
from gpuscope.dashboards.figures.gains_figure import icicle
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.report.html.drawing import COLOURS
from gpuscope.report.view import call_tree
from gpuscope.schema.call_tree_section import PlaceEntry, PlaceKind
from gpuscope.schema.document import Report
from gpuscope.words import units
from gpuscope.words.units import short_kernels

TIMES = ("dur", "mean", "min", "median", "max")
"""Columns of the table in ns: the sum, and of one call."""
EVEN = 1.005
"""Ratio below which the ranks' times count as equal."""
MOST_RANKS = 16
"""Ranks with a column each; of more, the rank filter chooses some."""
BY = "by"
"""Parameter of the address: the kind of places that the flame graph shows."""
KINDS: dict[PlaceKind, str] = {"line": "Source lines", "module": "Modules", "range": "Ranges", "operator": "Operators"}
OF_PLACES = {"device_ns": "device", "exposed_communication_ns": "exposed comm.", "idle_ns": "idle"}
PRECISIONS = {"bf16": "16-bit tensor cores", "fp32": "32-bit"}


def layout(shown: Shown) -> Component:
    """The page."""
    kernels = shown.run.report["kernels"]
    if not kernels:
        return ui.empty(
            "No kernels in this run",
            "Record the device's activity: ProfilerActivity.CUDA under torch.profiler, or nsys profile -t cuda.",
        )
    return ui.page(_categories(shown), _table(shown), *_places(shown), *_sequences(shown), _rates(shown))


def _scope(shown: Shown) -> str:
    """What the table is of, where it is of a part."""
    view = shown.view
    if not filtered(view):
        return ""
    if shown.run.trace is None:
        return " The filters need the trace; this is the whole run."
    chosen = [word for word, on in (("ranks", view.ranks), ("steps", view.steps), ("window", window_of(view))) if on]
    return f" Of the {' and '.join(chosen)} chosen: of what starts there."


def _switch(shown: Shown) -> Component | None:
    """Between the whole recording and the window last shown by the timeline, where there is one."""
    window = shown.view.window
    if window is None or shown.run.events is None:
        return None
    return dmc.SegmentedControl(
        id=ui.extra(WITHIN),
        value="window" if window_of(shown.view) else "",
        size="xs",
        mb="xs",
        data=[
            {"value": "", "label": "Whole recording"},
            {"value": "window", "label": f"The timeline's window ({units.duration(window[1] - window[0])})"},
        ],
    )


def _categories(shown: Shown) -> Component:
    kernels = shown.run.report["kernels"]
    whole = " Over all ranks and steps: the filters apply to the table." if filtered(shown.view) else ""
    height = 130 + 30 * len({one["category"] for one in kernels})
    return ui.card(
        "By category",
        ui.figure(drawing.categories(kernels, shown.dark), "categories", height),
        note="Device time of all ranks; concurrent kernels count in full each." + whole,
    )


def _places(shown: Shown) -> list[Component]:
    """Where in the program the time arises, where that is known."""
    entries = shown.run.report.get("call_tree", [])
    if not entries:
        return []
    kinds = [kind for kind in KINDS if any(one["kind"] == kind for one in entries)]
    by = next((kind for kind in kinds if kind == shown.view.extra.get(BY)), None)
    drawn = call_tree.only(entries, by) if by is not None else entries
    choice = dmc.SegmentedControl(
        id=ui.extra(BY),
        value=by or "",
        size="xs",
        mb="xs",
        data=[{"value": "", "label": "Everything"}, *({"value": kind, "label": KINDS[kind]} for kind in kinds)],
    )
    note = "Width: device time launched there and idle time while the launching thread was there, of all ranks."
    colours: dict[str, str] = {one["kind"]: COLOURS[one["kind"]] for one in drawn}
    body = [choice, ui.swatches(colours), ui.figure(icicle(drawn, shown.dark), "places", 420)]
    if by is not None:
        body.append(_by_place(entries, by, shown.dark))
    return [ui.card("Flame graph", *body, note=f"{note} A click opens a place.")]


def _by_place(entries: Sequence[PlaceEntry], by: PlaceKind, dark: bool) -> Component:
    """What goes back to each line, module, range or operator, without what is in another one within."""
    found = call_tree.rows(entries, by)
    everything = max(sum(one.device_ns for one in found), 1)
    rows = [
        {
            "name": one.name or f"no {by} around it",
            "share": one.device_ns / everything,
            "share_text": units.share(one.device_ns / everything),
            **{key: getattr(one, key) for key in OF_PLACES},
            **{f"{key}_text": units.duration(getattr(one, key)) for key in OF_PLACES},
        }
        for one in found
    ]
    columns = [
        ui.named("name", by, "name"),
        ui.number("share", "share", "share_text", width=100),
        *(
            ui.number(key, title, f"{key}_text", width=130, sort="desc" if key == "device_ns" else None)
            for key, title in OF_PLACES.items()
        ),
    ]
    return ui.grid(rows, columns, f"by-{by}", dark, columnSize=None)


def _sequences(shown: Shown) -> list[Component]:
    """What a stream repeats, as layers do; of the first rank shown."""
    events, ranks = shown.run.events, [one["rank"] for one in shown.run.report["ranks"]]
    rank = min((one for one in ranks if shown.view.has_rank(one)), default=None)
    found = sequences(events, rank) if events is not None and rank is not None else []
    if not found:
        return []
    rows = [
        {
            "names": units.clean(_line(short_kernels(one.names))),
            "whole": " → ".join(one.names),
            "kernels": len(one.names),
            "count": one.count,
            "time": one.time,
            "time_text": units.duration(one.time),
            "share": one.share,
            "share_text": units.share(one.share),
        }
        for one in found
    ]
    columns = [
        ui.named("names", "sequence", "whole"),
        *(
            ui.column(key, key, type="rightAligned", filter="agNumberColumnFilter", width=110)
            for key in ("kernels", "count")
        ),
        ui.number("time", "time", "time_text", width=120),
        ui.number("share", "share", "share_text", width=110),
    ]
    note = f"On the busiest stream of rank {rank}, without overlaps: kernels one behind the other that come again."
    return [
        ui.card("Sequences that repeat", ui.grid(rows, columns, "sequences", shown.dark, columnSize=None), note=note)
    ]


def _line(names: Sequence[str]) -> str:
    """A sequence in a cell: of a long one its ends."""
    left = len(names) - 6
    return " → ".join(names if left < 2 else [*names[:4], f"{left} more", *names[-2:]])


def _table(shown: Shown) -> Component:
    found = kernel_rows(shown.run, shown.view)
    ranks = sorted({rank for one in found for rank in one["by_rank"]})
    ranks = ranks if 1 < len(ranks) <= MOST_RANKS else []
    columns = [
        ui.named("short", "kernel", "name", flex=0, width=380, pinned="left"),
        ui.number("share", "share", "share_text", width=85),
        ui.number("dur", "time", "dur_text", width=95, sort="desc"),
        ui.number("count", "count", "count_text", width=85),
        *(ui.number(key, key, f"{key}_text", width=90, hide=key in ("mean", "min")) for key in TIMES[1:]),
        *([ui.number("uneven", "most on", "uneven_text", width=160)] if ranks else []),
        *(ui.number(f"rank{rank}", f"rank {rank}", f"rank{rank}_text", width=90) for rank in ranks),
        ui.column("operator", "launched by", width=150, tooltipField="operator"),
        ui.column("category", "category", width=155),
        ui.number("rate", "rate", "rate_text", width=120),
    ]
    whole = "Hover over a name for all of it"
    note = whole + ("; click or press Enter to find the kernel in the timeline." if shown.run.events else ".")
    if ranks:
        note += " «Most on»: the rank with most time in it, against the median; in a collective, who waits."
    query = shown.view.query() if filtered(shown.view) and shown.run.trace is not None else ""
    return ui.card(
        "Kernels",
        _switch(shown),
        ui.grid(
            [_row(number, one, ranks) for number, one in enumerate(found)],
            columns,
            "kernels",
            shown.dark,
            id=ui.KERNELS_GRID,
            columnSize=None,
            getRowId="params.data.id",
            defaultColDef={"suppressHeaderFilterButton": True},
        ),
        note=note + _scope(shown),
        corner=ui.csv_link(shown.run.key, "kernels", query),
    )


def _row(number: int, one: Mapping[str, Any], ranks: Sequence[int]) -> dict[str, Any]:
    """A row of the table; `ranks` have a column each."""
    row = {
        "id": f"{number} {one['name']}",
        "name": units.clean(one["name"]),
        "short": units.clean(one["short"]),
        "category": one["category"],
        "operator": units.clean(one["operator"] or ""),
        "count": one["count"],
        "count_text": f"{one['count']:,}",
        "share": one["share_frac"],
        "share_text": units.share(one["share_frac"]),
        "rate": one["flops_per_s"],
        "rate_text": units.flop_rate(one["flops_per_s"]),
        **{key: one[f"{key}_ns"] for key in TIMES},
        **{f"{key}_text": units.duration(one[f"{key}_ns"]) for key in TIMES},
    }
    if ranks and one["by_rank"]:
        times = [one["by_rank"].get(rank, 0) for rank in ranks]
        row |= {f"rank{rank}": time for rank, time in zip(ranks, times, strict=True)}
        row |= {f"rank{rank}_text": units.duration(time) for rank, time in zip(ranks, times, strict=True)}
        ratio = max(times) / median_low(times) if median_low(times) else math.inf
        most = f"rank {ranks[times.index(max(times))]}"
        words = "even" if ratio < EVEN else f"{most}: ×{ratio:.3g}" if ratio < math.inf else f"only {most}"
        row |= {"uneven": min(ratio, 1e9), "uneven_text": words}
    return row


def _rates(shown: Shown) -> Component:
    kernels = shown.run.report["kernels"]
    if not any(one["flops_per_s"] for one in kernels):
        return ui.empty(
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
    return ui.card("Achieved rate", ui.figure(drawing.rates(kernels, known, shown.dark), "rates", 380), note=note)


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
        Output(ui.URL, "pathname", allow_duplicate=True),
        Output(ui.URL, "search", allow_duplicate=True),
        Input(ui.KERNELS_GRID, "cellClicked"),
        prevent_initial_call=True,
    )


PAGE = Page("/kernels", "Kernels", 10, layout, register, lambda run: bool(run.report["kernels"]))
