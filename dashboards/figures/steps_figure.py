"""Step time over the steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import plotly.graph_objects as go

from gpuscope.catalogue.cause_table import cause_words
from gpuscope.dashboards import theme
from gpuscope.schema.document import StepEntry
from gpuscope.words import units
from gpuscope.words.vocabulary import BOUND

MOST_LINES = 16
"""Of more ranks, only the longest and the shortest of each step are drawn."""


def series(steps: Sequence[StepEntry], dark: bool, leads_to: Callable[[StepEntry], str] = lambda _: "") -> go.Figure:
    """A line per rank: length of each numbered step; of many ranks the longest and the shortest of each step.
    `leads_to` gives where a step leads to."""
    fig = go.Figure()
    lanes = sorted({(step["rank"], step["device"]) for step in steps}, key=lambda lane: (lane[0], lane[1] or 0))
    if len(lanes) > MOST_LINES:
        return _extremes(steps, dark, leads_to)
    many = len({rank for rank, _ in lanes}) < len(lanes)
    longest = max((step["dur_ns"] for step in steps), default=0)
    size, unit = units.time_unit(longest)
    for place, (rank, device) in enumerate(lanes):
        own = [one for one in steps if (one["rank"], one["device"]) == (rank, device) and one["step"] is not None]
        texts = [f"{units.duration(one['dur_ns'])}, {one['role']}, {_bound(one)}" for one in own]
        fig.add_scatter(
            x=[one["step"] for one in own],
            y=[one["dur_ns"] / size for one in own],
            text=texts,
            name=f"rank {rank}" + (f" gpu {device}" if many else ""),
            mode="lines+markers",
            marker={"size": 6, "symbol": place % 8},
            line={"width": 1.5, "color": theme.SERIES[place % len(theme.SERIES)]},
            hovertemplate="step %{x}: %{text}",
            customdata=[leads_to(one) for one in own],
        )
    return _finished(fig, steps, dark, unit)


def _extremes(steps: Sequence[StepEntry], dark: bool, leads_to: Callable[[StepEntry], str]) -> go.Figure:
    """The longest and the shortest of each step over the ranks, the room between them filled."""
    fig = go.Figure()
    by_number: dict[int, list[StepEntry]] = {}
    for step in steps:
        if step["step"] is not None:
            by_number.setdefault(step["step"], []).append(step)
    size, unit = units.time_unit(max((step["dur_ns"] for step in steps), default=0))
    for name, pick, fill in (("shortest over ranks", min, None), ("longest over ranks", max, "tonexty")):
        own = [pick(by_number[number], key=lambda one: one["dur_ns"]) for number in sorted(by_number)]
        fig.add_scatter(
            x=[one["step"] for one in own],
            y=[one["dur_ns"] / size for one in own],
            name=name,
            fill=fill,
            mode="lines+markers",
            line={"width": 1.5, "color": theme.SERIES[0]},
            marker_size=5,
            text=[f"rank {one['rank']}: {units.duration(one['dur_ns'])}, {one['role']}, {_bound(one)}" for one in own],
            hovertemplate="step %{x}, %{text}",
            customdata=[leads_to(one) for one in own],
        )
    return _finished(fig, steps, dark, unit)


def _finished(fig: go.Figure, steps: Sequence[StepEntry], dark: bool, unit: str) -> go.Figure:
    fig.update_layout(template=theme.template(dark), showlegend=len(fig.data) > 1, hovermode="closest")
    fig.update_xaxes(title="step", tickformat="d", **whole_steps(step["step"] for step in steps))
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig


def whole_steps(numbers: Iterable[int | None]) -> dict[str, Any]:
    """An axis of few steps without half ones, which plotly would label, nor any before the first or after the last."""
    own = {number for number in numbers if number is not None}
    if not own or (last := max(own)) - (first := min(own)) > 20:
        return {}
    return {"dtick": 1, "tick0": first, "range": [first - 0.5, last + 0.5]}


def _bound(step: StepEntry) -> str:
    return BOUND[step["bound_by"]] + (f" ({cause_words(step['cause'])})" if step["cause"] else "")
