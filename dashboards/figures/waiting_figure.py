"""Wait and transfer time per operation and group."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.document import CollectiveEntry
from gpuscope.words import palette, units


def bars(rows: Sequence[CollectiveEntry], dark: bool) -> go.Figure:
    """One bar per operation and group: rank time spent waiting for the last rank, and the rest (transferring)."""
    labels = [plain(units.crop(f"{row['op']} · {row['group']}" if row["group"] else row["op"], 48)) for row in rows]
    waits = [row["wait_ns"] or 0 for row in rows]
    rest = [row["dur_ns"] - wait for row, wait in zip(rows, waits, strict=True)]
    size, unit = units.time_unit(max((row["dur_ns"] for row in rows), default=1))
    fig = go.Figure()
    known = [row["wait_ns"] is not None for row in rows]
    for name, values, colour, pattern in (
        ("transfer", [value if matched else 0 for value, matched in zip(rest, known, strict=True)], palette.BLUE, ""),
        ("wait for the last rank", waits, palette.ORANGE, "/"),
        (
            "not matched: wait and transfer can't be separated",
            [0 if matched else value for value, matched in zip(rest, known, strict=True)],
            palette.GREY,
            ".",
        ),
    ):
        if any(values):
            fig.add_bar(
                orientation="h",
                y=labels,
                x=[value / size for value in values],
                name=name,
                marker_color=colour,
                marker_pattern={"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
                text=[units.duration(value) for value in values],
                textposition="none",
                hovertemplate="%{y}<br>" + name + ": %{text}<extra></extra>",
            )
    fig.update_layout(
        template=theme.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal", showlegend=True
    )
    fig.update_xaxes(title=f"time over all ranks ({unit})")
    fig.update_yaxes(autorange="reversed", type="category")
    return fig
