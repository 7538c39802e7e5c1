"""Predicted step times vs. the recorded step."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.when_used import dataclass
from gpuscope.words import palette, units


@dataclass(frozen=True)
class Step:
    """A predicted step; ns."""

    label: str
    after: int
    low: int
    high: int

    @property
    def text(self) -> str:
        """Its time and range."""
        return f"{units.duration(self.after)} ({units.duration(self.low)} to {units.duration(self.high)})"


def steps(before: int, predicted: Sequence[Step], dark: bool) -> go.Figure:
    """The recorded step, and each prediction with its range."""
    size, unit = units.time_unit(max(before, *(one.high for one in predicted), 1))
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=["as recorded"],
        x=[before / size],
        marker_color=palette.GREY,
        showlegend=False,
        hovertemplate=units.duration(before) + "<extra></extra>",
    )
    fig.add_bar(
        orientation="h",
        y=[plain(units.crop(one.label, 60)) for one in predicted],
        x=[one.after / size for one in predicted],
        marker_color=palette.BLUE,
        showlegend=False,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(one.high - one.after) / size for one in predicted],
            "arrayminus": [(one.after - one.low) / size for one in predicted],
            "thickness": 1.5,
            "color": palette.PAGE["ink"][dark],
        },
        text=[one.text for one in predicted],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )
    fig.update_layout(template=theme.template(dark), bargap=0.3)
    fig.update_xaxes(title=f"step time ({unit})", rangemode="tozero")
    fig.update_yaxes(autorange="reversed", type="category")
    return fig
