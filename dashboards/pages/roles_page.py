"""Roles: which one ran when in the steps of a job for reinforcement learning, and what bounds them."""

from __future__ import annotations

from dash.development.base_component import Component

from gpuscope.dashboards import ui
from gpuscope.dashboards.figures import gains_figure
from gpuscope.dashboards.ui import Page, Shown
from gpuscope.report.terminal.hang_text import sentences


def layout(shown: Shown) -> Component:
    """The page."""
    if "roles" not in shown.run.report:
        return ui.empty(
            "No timers of roles",
            "A job for reinforcement learning shows here where a log of its trainer is opened (verl, OpenRLHF, "
            "NeMo-RL, slime, TRL), or events of RL-Insight.",
        )
    roles = shown.run.report["roles"]
    steps = roles["steps"]
    rows = max(len({one["name"] for step in steps for one in step.get("intervals", [])}), min(len(steps), 40))
    fig = gains_figure.timeline(steps, shown.dark)
    return ui.page(
        ui.card("Which role ran when", ui.figure(fig, "roles", min(180 + 22 * rows, 900))),
        ui.card("In short", ui.sentences(sentences(roles))),
    )


PAGE = Page("/roles", "Roles", 8, layout, has=lambda run: "roles" in run.report)
