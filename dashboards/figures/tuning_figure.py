"""What a tuning session tried: the step predicted for each change, and the step measured."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.tune_document import TriedChange
from gpuscope.words import palette, units


def tried(rows: Sequence[TriedChange], dark: bool) -> go.Figure:
    """A row per change in the order of trials, as shares of the step before: the prediction with its range, and what
    was measured, filled where it was kept."""
    fig = go.Figure()
    names = [f"{number}  {plain(units.crop(row['code'], 40))}" for number, row in enumerate(rows, 1)]
    fig.add_bar(
        orientation="h",
        y=names,
        x=[100] * len(rows),
        name="before",
        width=0.5,
        opacity=0.35,
        marker_color=palette.GREY,
        text=[units.duration(row["before_ns"]) for row in rows],
        textposition="none",
        hovertemplate="before: %{text}<extra></extra>",
    )
    told = [
        (name, 100 / row["before_ns"], at, row["low_ns"] or at, row["high_ns"] or at)
        for name, row in zip(names, rows, strict=True)
        if (at := row["predicted_ns"]) is not None
    ]
    fig.add_scatter(
        y=[name for name, *_ in told],
        x=[at * share for _, share, at, _, _ in told],
        mode="markers",
        name="predicted",
        marker={"symbol": "line-ns-open", "size": 16, "color": palette.ORANGE, "line": {"width": 3}},
        error_x={
            "type": "data",
            "symmetric": False,
            "thickness": 1.5,
            "color": palette.ORANGE,
            "array": [(high - at) * share for _, share, at, _, high in told],
            "arrayminus": [(at - low) * share for _, share, at, low, _ in told],
        },
        text=[f"{units.duration(at)} ({units.span(low, high, '–')})" for _, _, at, low, high in told],
        hovertemplate="predicted: %{text}<extra></extra>",
    )
    for name, kept, symbol in (("measured, kept", True, "circle"), ("measured, not kept", False, "circle-open")):
        own = [
            (label, 100 / row["before_ns"], at)
            for label, row in zip(names, rows, strict=True)
            if row["kept"] is kept and (at := row["measured_ns"]) is not None
        ]
        fig.add_scatter(
            y=[label for label, *_ in own],
            x=[at * share for _, share, at in own],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": 11, "color": palette.BLUE, "line": {"width": 2}},
            text=[units.duration(at) for *_, at in own],
            hovertemplate=f"{name}: %{{text}}<extra></extra>",
        )
    fig.update_layout(template=theme.template(dark), showlegend=True, hovermode="closest")
    fig.update_xaxes(title="step time, of the one before", ticksuffix=" %", rangemode="tozero")
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1])
    return fig
