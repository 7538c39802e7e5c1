"""Steps of a job for reinforcement learning: which role ran when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.schema.roles_section import RoleStepEntry
from gpuscope.words import units
from gpuscope.words.role_names import LABELS, ORDER

SHOWN = 40
"""Steps, the last ones, that are drawn."""
Bar = tuple[str, str, int, int]
"""Row, role, start and duration, ns."""


def timeline(steps: Sequence[RoleStepEntry], dark: bool) -> go.Figure:
    """A row per step, or where starts are recorded per role and rank: bars by role."""
    bars = list(_bars(steps[-SHOWN:]))
    size, unit = units.time_unit(max((start + dur for _, _, start, dur in bars), default=0))
    fig = go.Figure()
    for role in sorted({role for _, role, _, _ in bars}, key=lambda role: ORDER.get(role, len(ORDER))):
        own = [bar for bar in bars if bar[1] == role]
        place = ORDER.get(role, len(ORDER))
        fig.add_bar(
            y=[row for row, *_ in own],
            base=[start / size for _, _, start, _ in own],
            x=[dur / size for *_, dur in own],
            orientation="h",
            name=LABELS.get(role, role),
            text=[units.duration(dur) for *_, dur in own],
            textposition="none",
            marker={
                "color": theme.SERIES[place % len(theme.SERIES)],
                "pattern": theme.pattern("/" if place >= len(theme.SERIES) else ""),
            },
            hovertemplate=f"%{{y}}: {LABELS.get(role, role)}, %{{text}}<extra></extra>",
        )
    fig.update_layout(template=theme.template(dark), barmode="overlay", bargap=0.2)
    fig.update_xaxes(title=f"time ({unit})", rangemode="tozero")
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return fig


def _bars(steps: Sequence[RoleStepEntry]) -> Iterator[Bar]:
    placed = [one for step in steps for one in step.get("intervals", [])]
    begin = min((one["start_ns"] for one in placed), default=0)
    for one in placed:
        rank = "" if one["rank"] is None else f", rank {one['rank']}"
        yield f"{one['name']}{rank}", one["role"], one["start_ns"] - begin, one["dur_ns"]
    for step in () if placed else steps:
        at = 0
        for role in sorted(step["by_role_ns"], key=lambda role: ORDER.get(role, len(ORDER))):
            yield f"step {step['step']}", role, at, step["by_role_ns"][role]
            at += step["by_role_ns"][role]
