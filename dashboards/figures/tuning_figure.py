"""What a tuning session tried: the step predicted for each change, and the step measured."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.tune_document import TriedChange
from gpuscope.words import palette, units


def tried(rows: Sequence[TriedChange], dark: bool) -> go.Figure:
    """A row per change in the order of trials: a line from the step before, the prediction with its range, and the
    step measured, filled where it was kept."""
    fig = go.Figure()
    size, unit = units.time_unit(max(row["before_ns"] for row in rows))
    names = [f"{number}  {plain(units.crop(row['code'], 40))}" for number, row in enumerate(rows, 1)]
    fig.add_bar(
        orientation="h", y=names, x=[row["before_ns"] / size for row in rows], name="before", width=0.5, opacity=0.35,
        marker_color=palette.GREY, text=[units.duration(row["before_ns"]) for row in rows], textposition="none",
        hovertemplate="before: %{text}<extra></extra>",
    )  # fmt: skip
    told = [(name, row, at) for name, row in zip(names, rows, strict=True) if (at := row["predicted_ns"]) is not None]
    ends = [(row["low_ns"] or at, row["high_ns"] or at) for _, row, at in told]
    fig.add_scatter(
        y=[name for name, _, _ in told], x=[at / size for _, _, at in told], mode="markers", name="predicted",
        marker={"symbol": "line-ns-open", "size": 16, "color": palette.ORANGE, "line": {"width": 3}},
        error_x={
            "type": "data", "symmetric": False, "thickness": 1.5, "color": palette.ORANGE,
            "array": [(high - at) / size for (_, high), (_, _, at) in zip(ends, told, strict=True)],
            "arrayminus": [(at - low) / size for (low, _), (_, _, at) in zip(ends, told, strict=True)],
        },
        text=[f"{units.duration(at)} ({units.span(*span, '–')})" for span, (_, _, at) in zip(ends, told, strict=True)],
        hovertemplate="predicted: %{text}<extra></extra>",
    )  # fmt: skip
    for name, kept, symbol in (("measured, kept", True, "circle"), ("measured, not kept", False, "circle-open")):
        own = [(label, row, at) for label, row in zip(names, rows, strict=True)
               if row["kept"] is kept and (at := row["measured_ns"]) is not None]  # fmt: skip
        fig.add_scatter(
            y=[label for label, _, _ in own], x=[at / size for _, _, at in own], mode="markers", name=name,
            marker={"symbol": symbol, "size": 11, "color": palette.BLUE, "line": {"width": 2}},
            text=[units.duration(at) for _, _, at in own], hovertemplate=f"{name}: %{{text}}<extra></extra>",
        )  # fmt: skip
    fig.update_layout(template=theme.template(dark), showlegend=True, hovermode="closest")
    fig.update_xaxes(title=f"step time ({unit})", rangemode="tozero")
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1])
    return fig
