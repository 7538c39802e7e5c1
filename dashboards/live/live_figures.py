"""Figures of a run that is being recorded: pure functions of what is seen of it."""

from __future__ import annotations

from collections.abc import Callable

import plotly.graph_objects as go

from gpuscope.analyzers.watching.alerts import measured_steps
from gpuscope.analyzers.watching.measures import MeasuredStep, Seen
from gpuscope.dashboards import theme
from gpuscope.dashboards.figures.heatmap_figure import heatmap
from gpuscope.words import units

SHOWN = 500
"""Steps drawn, the last ones."""
CELLS = 60
MOST_LINES = 16
"""Ranks drawn as lines; of more, the slowest and the fastest of each step."""


def steps(seen: Seen, dark: bool) -> go.Figure:
    """Step time over steps."""
    longest = max((one.step_ns for own in seen.steps.values() for one in own.values()), default=0)
    size, unit = units.time_unit(longest)
    return _lines(seen, dark, lambda one: one.step_ns / size, f"step time ({unit})")


def exposed(seen: Seen, dark: bool) -> go.Figure:
    """Exposed communication as a share of the step."""
    return _lines(
        seen,
        dark,
        lambda one: None if one.exposed_ns is None else 100 * one.exposed_ns / max(one.step_ns, 1),
        "share (%)",
    )


def lateness(seen: Seen, dark: bool) -> go.Figure:
    """Rank × step, the last steps: what each rank needs itself against the step's median."""
    cells = {
        (rank, step): own
        for step in measured_steps(seen)[-CELLS:]
        for rank, of_rank in seen.steps.items()
        if (own := of_rank[step].own_ns) is not None
    }
    return heatmap(cells, "own time", dark, deviation=True)


def _lines(seen: Seen, dark: bool, value: Callable[[MeasuredStep], float | None], title: str) -> go.Figure:
    fig = go.Figure()
    last = max((max(own) for own in seen.steps.values()), default=0)
    series = {
        f"rank {rank}": {step: value(own[step]) for step in sorted(own) if step > last - SHOWN and not own[step].first}
        for rank, own in seen.steps.items()
    }
    if len(series) > MOST_LINES:
        series = _extremes(series)
    for place, (name, points) in enumerate(series.items()):
        fig.add_scatter(
            x=list(points),
            y=list(points.values()),
            name=name,
            mode="lines",
            line={"width": 1.5, "color": theme.SERIES[place % len(theme.SERIES)]},
            hovertemplate="step %{x}: %{y:.4g}",
        )
    fig.update_layout(template=theme.template(dark), showlegend=True, uirevision="keep")
    fig.update_xaxes(title="step", tickformat="d")
    fig.update_yaxes(title=title, rangemode="tozero")
    return fig


def _extremes(series: dict[str, dict[int, float | None]]) -> dict[str, dict[int, float | None]]:
    """The largest and the least of all ranks, step by step."""
    found: dict[str, dict[int, float | None]] = {"highest rank": {}, "lowest rank": {}}
    for step in sorted({step for points in series.values() for step in points}):
        known = [value for points in series.values() if (value := points.get(step)) is not None]
        if known:
            found["highest rank"][step], found["lowest rank"][step] = max(known), min(known)
    return found
