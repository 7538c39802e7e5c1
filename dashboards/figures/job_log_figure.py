"""Step times of a job's log in their course, and where they shift."""

from __future__ import annotations

import plotly.graph_objects as go

from gpuscope.dashboards.figures import heatmap_figure as theme
from gpuscope.schema.job_log_section import JobLogSection
from gpuscope.words import units


def course(log: JobLogSection, dark: bool) -> go.Figure:
    """A line through the step times; a dashed one at each step from which on they are others."""
    points = log.get("step_times", [])
    size, unit = units.time_unit(max((ns for _, ns in points), default=0))
    fig = go.Figure()
    fig.add_scatter(
        x=[step for step, _ in points],
        y=[ns / size for _, ns in points],
        mode="lines+markers",
        name="step time",
        marker={"size": 4, "color": theme.SERIES[0]},
        line={"width": 1, "color": theme.SERIES[0]},
        text=[units.duration(ns) for _, ns in points],
        hovertemplate="step %{x}: %{text}<extra></extra>",
    )
    for shift in log["shifts"]:
        fig.add_vline(x=shift["step"], line={"dash": "dash", "width": 1})
    fig.update_layout(template=theme.template(dark), showlegend=False)
    fig.update_xaxes(title="step")
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig
