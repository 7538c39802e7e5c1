"""An inference server: its steps by phase, and its decode steps by batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.figures.steps_figure import whole_steps
from gpuscope.schema.document import StepEntry
from gpuscope.schema.serving_section import ServingBatch
from gpuscope.words import palette, units

COLOURS = {
    "decode": palette.BLUE,
    "prefill": palette.ORANGE,
    "mixed": palette.PURPLE,
    "capture": palette.GREEN,
    None: palette.GREY,
}


def steps(found: Sequence[StepEntry], dark: bool, leads_to: Callable[[StepEntry], str] = lambda _: "") -> go.Figure:
    """The steps of one rank in their order, by phase."""
    size, unit = units.time_unit(max((step["dur_ns"] for step in found), default=0))
    fig = go.Figure()
    for phase, colour in COLOURS.items():
        own = [step for step in found if step.get("phase") == phase]
        if own:
            fig.add_bar(
                x=[step["step"] for step in own],
                y=[step["dur_ns"] / size for step in own],
                name=phase or "unknown",
                marker_color=colour,
                width=0.9,
                text=[_said(step) for step in own],
                textposition="none",
                hovertemplate="step %{x}: %{text}<extra></extra>",
                customdata=[leads_to(step) for step in own],
            )
    fig.update_layout(template=theme.template(dark), showlegend=True, bargap=0.1, barmode="overlay")
    fig.update_xaxes(title="step", tickformat="d", **whole_steps(step["step"] for step in found))
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig


def _said(step: StepEntry) -> str:
    batch: Mapping[str, object] = step.get("batch") or {}
    counted = [
        f"{units.count(number)} {what}"
        for key, what in (
            ("prefill_requests", "prompts"),
            ("prefill_tokens", "tokens of prompts"),
            ("decode_requests", "in decode"),
        )
        if isinstance(number := batch.get(key), int) and number
    ]
    return ", ".join([step.get("phase") or "unknown phase", units.duration(step["dur_ns"]), *counted])


def batches(found: Sequence[ServingBatch], dark: bool) -> go.Figure:
    """Length of a decode step against the requests in it, with graphs and without."""
    size, unit = units.time_unit(max((one["step_ns"] for one in found), default=0))
    fig = go.Figure()
    for name, colour, symbol, graphed in (
        ("mostly graphs", palette.BLUE, "circle", True),
        ("mostly launched singly", palette.VERMILLION, "x", False),
    ):
        own = [one for one in found if (one["graphed_frac"] >= 0.5) is graphed]
        if own:
            said = [f"{units.duration(one['step_ns'])}, median of {units.plural(one['steps'], 'step')}" for one in own]
            fig.add_scatter(
                x=[one["requests"] for one in own],
                y=[one["step_ns"] / size for one in own],
                mode="markers",
                name=name,
                marker={"size": 9, "color": colour, "symbol": symbol},
                text=said,
                hovertemplate="%{x} requests: %{text}<extra></extra>",
            )
    fig.update_layout(template=theme.template(dark), showlegend=True)
    fig.update_xaxes(title="requests in decode", tickformat="d", rangemode="tozero")
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig
