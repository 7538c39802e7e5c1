"""Experts: what each rank receives pass by pass, what that costs, and what another routing gives."""

from __future__ import annotations

from typing import Literal, get_args

from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import of_results
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.terminal.profile_text import sentences
from gpuscope.schema.provenance import ExpertsSection
from gpuscope.words import units


def layout(shown: Shown) -> Component:
    """The page."""
    if "experts" not in shown.run.report:
        return ui.empty(
            "No all-to-alls with sizes",
            "A mixture of experts shows here where the trace holds what each rank receives: torch.profiler with NCCL, "
            "or gpuscope record.",
        )
    experts = shown.run.report["experts"]
    fig = of_results.loads(experts["passes"], shown.dark)
    height = min(160 + 24 * len(experts["ranks"]), 900)
    return ui.page(
        ui.card("Load of each rank, pass by pass", ui.figure(fig, "expert-loads", height)),
        ui.card("In short", ui.sentences(sentences(experts, shown.run.report.get("bandwidth", [])))),
        _table(experts, shown),
    )


def _table(experts: ExpertsSection, shown: Shown) -> Component:
    rows = [
        {
            "number": one["number"],
            "shown_number": str(one["number"]),
            "bytes": one["bytes"],
            "shown_bytes": units.memory(one["bytes"]),
            "busiest": f"rank {one['busiest']}, {one['imbalance']:.2f}×",
            **{name: one[name] for name in TIMES},
            **{f"shown_{name}": units.duration(one[name]) for name in TIMES},
        }
        for one in experts["passes"]
    ]
    columns = [
        ui.number("number", "pass", "shown_number", minWidth=78, maxWidth=100),
        ui.number("bytes", "bytes", "shown_bytes", minWidth=86),
        ui.column("busiest", "busiest", minWidth=134),
        *(ui.number(name, name.removesuffix("_ns"), f"shown_{name}", minWidth=108) for name in TIMES),
    ]
    return ui.card("Passes", ui.grid(rows, columns, "expert-passes", shown.dark))


_Time = Literal["experts_ns", "imbalance_ns", "straggler_ns", "dispatch_ns", "combine_ns"]
TIMES: tuple[_Time, ...] = get_args(_Time)

PAGE = Page("/experts", "Experts", 6, layout, has=lambda run: "experts" in run.report)
