"""Rank × step: which ranks, which steps."""

from __future__ import annotations

from collections.abc import Mapping

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.report.view import units

WRITTEN = 120
"""Cells that are wide enough to show their number."""


def heatmap(cells: Mapping[tuple[int, int], int], what: str, dark: bool) -> go.Figure:
    """Times in ns by (rank, step); cells without a value stay empty. x is the step, y the rank."""
    ranks = sorted({rank for rank, _ in cells})
    steps = sorted({step for _, step in cells})
    size, unit = units.time_unit(max(cells.values(), default=0))

    def row(rank: int) -> list[int | None]:
        return [cells.get((rank, step)) for step in steps]

    fig = go.Figure(
        go.Heatmap(
            # As categories: missing numbers leave no gap in the table.
            x=[str(step) for step in steps],
            y=[str(rank) for rank in ranks],
            z=[[None if value is None else value / size for value in row(rank)] for rank in ranks],
            text=[[units.duration(value) for value in row(rank)] for rank in ranks],
            hovertemplate="rank %{y}, step %{x}<br>" + what + ": %{text}<extra></extra>",
            colorscale=theme.SEQUENTIAL,
            colorbar={"title": {"text": unit}, "thickness": 14},
            # From zero: a scale from the shortest step would exaggerate small differences.
            zmin=0,
            zmax=max(cells.values(), default=0) / size or 1,
            texttemplate="%{text}" if len(cells) <= WRITTEN else None,
            xgap=1 if len(steps) <= 100 else 0,
            ygap=1 if len(ranks) <= 64 else 0,
        )
    )
    fig.update_layout(template=theme.template(dark))
    fig.update_xaxes(title="step", type="category", showgrid=False)
    fig.update_yaxes(title="rank", type="category", autorange="reversed", showgrid=False)
    return fig
