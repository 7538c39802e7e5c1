"""What each rank's experts receive, pass by pass."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.schema.experts_section import ExpertPassEntry
from gpuscope.words import units

WRITTEN = 24
"""Passes up to which loads are written into the cells."""


def loads(passes: Sequence[ExpertPassEntry], dark: bool) -> go.Figure:
    """Rank × pass: bytes received, times the mean."""
    ranks = sorted({rank for one in passes for rank in one["ranks"]})
    of = [dict(zip(one["ranks"], one["loads"], strict=True)) for one in passes]
    values = [[own.get(rank) for own in of] for rank in ranks]
    most = max([2.0, *(value for row in values for value in row if value is not None)])
    fig = go.Figure(
        go.Heatmap(
            x=[str(one["number"]) for one in passes],
            y=[str(rank) for rank in ranks],
            z=values,
            zmin=0.0,
            zmax=most,
            colorscale=tuple(zip((0.0, 1 / most, 1.0), theme.AROUND[dark], strict=True)),
            xgap=1,
            ygap=1 if len(ranks) <= 64 else 0,
            textfont_color=theme.ON_CELLS[dark],
            texttemplate="%{z:.2f}" if len(passes) <= WRITTEN else None,
            colorbar={"title": "times the mean", "nticks": 4},
            customdata=[[units.memory(one["bytes"]) for one in passes]] * len(ranks),
            hovertemplate="rank %{y}, pass %{x}: %{z:.2f} times the mean of %{customdata}<extra></extra>",
        )
    )
    fig.update_layout(template=theme.template(dark))
    fig.update_xaxes(title="pass through a layer of experts, in the order of a step", type="category", showgrid=False)
    fig.update_yaxes(title="rank", type="category", autorange="reversed", showgrid=False)
    return fig
