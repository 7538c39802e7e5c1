"""torch.compile: when each rank compiled what, and where graphs break."""

from __future__ import annotations

from collections.abc import Iterator

from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.terminal.nccl_text import lines, sentences
from gpuscope.schema.call_tree_section import CompilationSection
from gpuscope.words import units


def layout(shown: Shown) -> Component:
    """The page."""
    if "compilation" not in shown.run.report:
        return ui.empty(
            "No logs of torch.compile",
            "Record them with gpuscope record --compile-logs, or set TORCH_TRACE=DIR, and open the folder with the "
            "traces of the same run.",
        )
    compilation = shown.run.report["compilation"]
    return ui.page(
        *_drawn(compilation, shown),
        ui.card("In short", ui.sentences(sentences(compilation))),
        _table(compilation, shown),
    )


def _drawn(compilation: CompilationSection, shown: Shown) -> Iterator[Component]:
    if any(one["start_ns"] is not None for one in compilation["compiles"]):
        fig = heatmap_figure.compilations(compilation["compiles"], shown.dark)
        ranks = len(compilation["ranks"])
        yield ui.card("When ranks compiled", ui.figure(fig, "compilations", min(140 + 30 * ranks, 900)))


def _table(compilation: CompilationSection, shown: Shown) -> Component:
    rows = [
        {
            "what": one.kind,
            "where": one.place,
            "ranks": units.ranks(one.ranks),
            "times": one.times,
            "shown_times": str(one.times),
            "cost": one.cost,
            "why": one.why,
        }
        for one in lines(compilation)
    ]
    columns = [
        ui.column("what", "what", width=130),
        ui.named("where", "where", "where", flex=0, width=160, minWidth=120),
        ui.column("ranks", "ranks", width=85, minWidth=70),
        ui.number("times", "times", "shown_times", width=85, minWidth=70),
        ui.column("cost", "cost", width=160),
        *([ui.named("why", "why", "why", minWidth=180)] if any(row["why"] for row in rows) else []),
    ]
    return ui.card(
        "Graph breaks, recompilations, first compilations",
        ui.grid(rows, columns, "compilations", shown.dark, columnSize=None),
    )


PAGE = Page("/compile", "Compile", 9, layout, has=lambda run: "compilation" in run.report)
