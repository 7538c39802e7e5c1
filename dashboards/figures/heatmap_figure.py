"""Rank × step: which ranks, which steps."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.words import units

WRITTEN = 10
"""Steps of which each cell is wide enough to show its number."""


DIVERGING = ((0.0, "#2166AC"), (0.5, "#F7F7F7"), (1.0, "#B35806"))
"""Blue is faster, brown slower than the step's median: told apart by the colour-blind (ColorBrewer's ends)."""
LEAST_SCALE = 5.0
"""Per cent at the ends of the scale, at least: noise shall not look like a straggler."""


def heatmap(cells: Mapping[tuple[int, int], int], what: str, dark: bool, deviation: bool = False) -> go.Figure:
    """Times in ns by (rank, step); cells without a value stay empty. x is the step, y the rank.

    With `deviation`, and several ranks, colours show by how much a rank is off the step's median over ranks.
    """
    ranks = sorted({rank for rank, _ in cells})
    steps = sorted({step for _, step in cells})
    size, unit = units.time_unit(max(cells.values(), default=0))
    off = _deviations(cells) if deviation and len(ranks) > 1 else {}
    scaled = off or {key: value / size for key, value in cells.items()}
    scale = _diverging(off) if off else {
        # From zero: a scale from the shortest step would exaggerate small differences.
        "colorscale": theme.SEQUENTIAL, "zmin": 0, "zmax": max(cells.values(), default=0) / size or 1,
        "colorbar": {"title": {"text": unit}, "thickness": 14},
    }  # fmt: skip
    fig = go.Figure(
        go.Heatmap(
            # As categories: missing numbers leave no gap in the table.
            x=[str(step) for step in steps],
            y=[str(rank) for rank in ranks],
            z=[[scaled.get((rank, step)) for step in steps] for rank in ranks],
            text=[[_text(cells.get((rank, step)), off.get((rank, step))) for step in steps] for rank in ranks],
            hovertemplate="rank %{y}, step %{x}<br>" + what + ": %{text}<extra></extra>",
            texttemplate="%{text}" if len(steps) <= WRITTEN else None,
            xgap=1 if len(steps) <= 100 else 0,
            ygap=1 if len(ranks) <= 64 else 0,
            **scale,
        )
    )
    fig.update_layout(template=theme.template(dark))
    fig.update_xaxes(title="step", type="category", showgrid=False)
    fig.update_yaxes(title="rank", type="category", autorange="reversed", showgrid=False)
    return fig


def _deviations(cells: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], float]:
    """Per cent above the median over ranks of the same step."""
    by_step: dict[int, list[int]] = {}
    for (_, step), value in cells.items():
        by_step.setdefault(step, []).append(value)
    middle = {step: median(values) for step, values in by_step.items()}
    return {key: 100 * (value / middle[key[1]] - 1) if middle[key[1]] else 0.0 for key, value in cells.items()}


def _diverging(off: Mapping[tuple[int, int], float]) -> dict[str, Any]:
    most = max(LEAST_SCALE, *map(abs, off.values()))
    bar = {"title": {"text": "vs. step's<br>median"}, "ticksuffix": " %", "thickness": 14}
    return {"colorscale": DIVERGING, "zmin": -most, "zmax": most, "zmid": 0, "colorbar": bar}


def _text(value: int | None, off: float | None) -> str:
    if value is None:
        return ""
    return units.duration(value) + (f" ({off:+.1f} %)" if off is not None else "")
