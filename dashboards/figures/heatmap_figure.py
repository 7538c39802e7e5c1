"""Rank × step: which ranks, which steps."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.words import palette, units

WRITTEN = 10
"""Steps of which each cell is wide enough to show its number."""
LATENESS = (((0.0, "#F1F3F5"), (1.0, palette.VERMILLION)), ((0.0, "#252A2F"), (1.0, "#BF551A")))
"""Of times that should be nothing, on light and dark pages: what is late stands out by its brightness alone."""
LEAST_SCALE = 5.0
"""Per cent at the ends of the scale, at least: noise shall not look like a straggler."""


FIRST = 8
"""Of many ranks, so many that a measure is the largest of have a row each…"""
MOST_ROWS = 32
"""… and the others share at most so many rows."""

Rows = Sequence[tuple[str, Sequence[int]]]


def rows_of(cells: Mapping[tuple[int, int], int], first: Sequence[int]) -> Rows:
    """Ranks as rows: `first` those named, then those with the largest sums over the steps; of many ranks only these
    stand alone, the others share rows with their neighbours by number."""
    sums: dict[int, int] = {}
    for (rank, _), value in cells.items():
        sums[rank] = sums.get(rank, 0) + value
    named = [rank for rank in first if rank in sums]
    alone = [*named, *sorted(sums.keys() - set(named), key=lambda rank: (-sums[rank], rank))]
    if len(alone) > MOST_ROWS:
        alone = alone[: max(len(named[:MOST_ROWS]), min(FIRST, sum(map(bool, sums.values()))))]
    rest = sorted(sums.keys() - set(alone))
    size = 1 << max(-(-len(rest) // MOST_ROWS) - 1, 0).bit_length()
    shared = [rest[at : at + size] for at in range(0, len(rest), size)]
    return [(units.ranks(some), some) for some in ([[rank] for rank in alone] + shared)]


def heatmap(
    cells: Mapping[tuple[int, int], int],
    what: str,
    dark: bool,
    deviation: bool = False,
    rows: Rows | None = None,
    marked: Collection[int] = (),
) -> go.Figure:
    """Times in ns by (rank, step); cells without a value stay empty. x is the step, y the rank, or a row of several
    ranks: then the largest of them. `marked` ranks have their names in bold.

    With `deviation`, and several ranks, colours show by how much a rank is off the step's median over ranks.
    """
    ranks = sorted({rank for rank, _ in cells})
    rows = [(str(rank), [rank]) for rank in ranks] if rows is None else rows
    steps = sorted({step for _, step in cells})
    size, unit = units.time_unit(max(cells.values(), default=0))
    off = _deviations(cells) if deviation and len(ranks) > 1 else {}
    scaled = off or {key: value / size for key, value in cells.items()}
    below, middle, _ = theme.AROUND[dark]
    scale = (
        _diverging(off, dark)
        if off
        else {
            # From zero: a scale from the shortest step would exaggerate small differences.
            "colorscale": ((0.0, middle), (1.0, below)) if deviation else LATENESS[dark],
            "zmin": 0,
            "zmax": max(cells.values(), default=0) / size or 1,
            "colorbar": {"title": {"text": unit}, "thickness": 14},
        }
    )

    def most(some: Sequence[int], step: int) -> tuple[int, int] | None:
        return max(((rank, step) for rank in some if (rank, step) in cells), key=lambda key: scaled[key], default=None)

    shown = [[most(some, step) for step in steps] for _, some in rows]
    fig = go.Figure(
        go.Heatmap(
            # As categories: missing numbers leave no gap in the table.
            x=[str(step) for step in steps],
            y=[label for label, _ in rows],
            z=[[None if key is None else scaled[key] for key in line] for line in shown],
            text=[
                ["" if key is None or not cells[key] else _text(cells[key], off.get(key)) for key in line]
                for line in shown
            ],
            customdata=[["" if key is None else str(key[0]) for key in line] for line in shown],
            hovertemplate="rank %{customdata}, step %{x}<br>" + what + ": %{text}<extra></extra>",
            texttemplate="%{text}" if len(steps) <= WRITTEN else None,
            xgap=1 if len(steps) <= 100 else 0,
            ygap=1 if len(rows) <= 64 else 0,
            textfont_color=theme.ON_CELLS[dark],
            **scale,
        )
    )
    fig.update_layout(template=theme.template(dark))
    fig.update_xaxes(title="step", type="category", showgrid=False)
    names = [f"<b>▸ {label}</b>" if set(some) & set(marked) else label for label, some in rows]
    fig.update_yaxes(
        title="rank",
        type="category",
        autorange="reversed",
        showgrid=False,
        tickvals=[label for label, _ in rows],
        ticktext=names,
        tickfont_size=11,
    )
    return fig


def _deviations(cells: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], float]:
    """Per cent above the median over ranks of the same step."""
    by_step: dict[int, list[int]] = {}
    for (_, step), value in cells.items():
        by_step.setdefault(step, []).append(value)
    middle = {step: median(values) for step, values in by_step.items()}
    return {key: 100 * (value / middle[key[1]] - 1) if middle[key[1]] else 0.0 for key, value in cells.items()}


def _diverging(off: Mapping[tuple[int, int], float], dark: bool) -> dict[str, Any]:
    most = max(LEAST_SCALE, *map(abs, off.values()))
    bar = {"title": {"text": "vs. step's<br>median"}, "ticksuffix": " %", "thickness": 14}
    scale = tuple(zip((0.0, 0.5, 1.0), theme.AROUND[dark], strict=True))
    return {"colorscale": scale, "zmin": -most, "zmax": most, "colorbar": bar}


def _text(value: int, off: float | None) -> str:
    return units.duration(value) + (f" ({off:+.1f} %)" if off is not None else "")
