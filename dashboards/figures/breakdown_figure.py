"""Stacked bars of each rank's time by cause, and beneath them the step after a change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.report.view import arrangement
from gpuscope.report.view.step_bars import Changed, kinds, pieces, seen
from gpuscope.schema.document import RankEntry
from gpuscope.words import palette, units

ROOM = 0.25
"""Of the step must be saved for certain, for the gain to be written there."""
Place = Callable[[RankEntry, str], str]
"""Where a piece of a rank's bar leads to, by the code of its cause."""


def bars(
    ranks: Sequence[RankEntry],
    dark: bool,
    place: Place = lambda _, __: "",
    *,
    step_ns: int | None = None,
    late: Collection[int] = (),
    change: Changed | None = None,
) -> go.Figure:
    """One horizontal bar per rank and device: of «the step» where it is given, else of the window. Late ranks are
    marked; the `change` of the step stands beneath."""
    labels = [
        f"<b>▸ rank {label}, late</b>" if entry["rank"] in late else f"rank {label}"
        for entry, label in zip(ranks, arrangement.rank_labels(list(ranks)), strict=True)
    ]
    parts = [pieces(entry) for entry in ranks]
    windows = [entry["window_ns"] for entry in ranks]
    size, unit = units.time_unit(step_ns) if step_ns else (0, "")
    whole = step_ns / size if step_ns else 100.0
    fig, told = go.Figure(), seen(ranks)
    for kind in kinds(ranks):
        spent = [(own.get(kind.code, 0), window or 1) for own, window in zip(parts, windows, strict=True)]
        fig.add_bar(
            orientation="h",
            y=labels,
            x=[whole * ns / window for ns, window in spent],
            name=kind.label,
            text=[_words(ns / window, step_ns) for ns, window in spent],
            textposition="none",
            showlegend=kind.code in told,
            marker_color=kind.look.colour,
            marker_line_width=0,
            marker_pattern=theme.pattern(kind.look.fill),
            hovertemplate="%{y}<br>" + kind.label + ": %{text}<extra></extra>",
            customdata=[place(entry, "" if kind.code == "compute" else kind.code) for entry in ranks],
        )
    fig.update_layout(template=theme.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal")
    if step_ns and change is not None:
        _after(fig, change, size, dark)
    reach = max(change.before, change.high) / size if step_ns and change is not None else whole
    fig.update_xaxes(title=None if step_ns else "share of the window", ticksuffix=f" {unit or '%'}", range=[0, reach])
    fig.update_yaxes(autorange="reversed", type="category", ticksuffix=" ")
    return fig


def _words(share: float, step_ns: int | None) -> str:
    return units.share(share) + (f", {units.duration(share * step_ns)} of the step" if step_ns else "")


def _after(fig: go.Figure, change: Changed, size: int, dark: bool) -> None:
    """The step after a change with its range, and what is saved in outline."""
    label, said = ["at best" if change.bound else "after"], units.duration(change.after)
    saved = max(change.before - change.after, 0)
    error = {
        "type": "data",
        "symmetric": False,
        "array": [(change.high - change.after) / size],
        "arrayminus": [(change.after - change.low) / size],
        "thickness": 1.5,
        "color": palette.PAGE["ink"][dark],
    }
    words = said if change.bound else f"{said} ({units.span(change.low, change.high, '–')})"
    fig.add_bar(
        orientation="h",
        y=label,
        x=[change.after / size],
        showlegend=False,
        marker_color=palette.PAGE["good"][False],
        hovertemplate=f"{label[0]}: {words}<extra></extra>",
        error_x=None if change.bound else error,
        customdata=[""],
    )
    gain = f"−{units.duration(saved)} ({units.share(saved / change.before)})"
    room = change.before - (change.after if change.bound else change.high) >= ROOM * change.before
    fig.add_bar(
        orientation="h",
        y=label,
        x=[saved / size],
        showlegend=False,
        marker_color="rgba(0,0,0,0)",
        text=[gain if room else ""],
        marker_line={"color": palette.PAGE["faint"][dark], "width": 1},
        insidetextanchor="end",
        textfont_color=palette.PAGE["ink"][dark],
        hovertemplate=f"saved: {gain}<extra></extra>",
        customdata=[""],
    )
