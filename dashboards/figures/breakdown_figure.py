"""Stacked bars: where the time of each rank goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.report.schema.document import RankEntry
from gpuscope.report.view import arrangement, units
from gpuscope.report.view.vocabulary import PARTS, cause_label

IDLE_CAUSES = ("input", "sync", "launch", "gc", "host_other", "allocator", "unattributed")
"""Causes of which idle time is made (docs/definitions.md): class cpu, the allocator, and what nothing explains."""


@dataclass(frozen=True)
class Piece:
    """One colour of the stack: ns per rank, in the order of the ranks."""

    label: str
    colour: str
    pattern: str
    values: list[int]


def pieces(ranks: Sequence[RankEntry]) -> list[Piece]:
    """The parts of each rank's window, idle by cause; they sum to it. Parts no rank has are left out."""
    found = [
        Piece(part.label, part.colour, "", [entry["breakdown_ns"][part.key] for entry in ranks])
        for part in PARTS
        if part.key != "idle"
    ]
    rest = [entry["breakdown_ns"]["idle"] for entry in ranks]
    for cause in IDLE_CAUSES:
        values = [idle_of(entry, cause) for entry in ranks]
        rest = [left - value for left, value in zip(rest, values, strict=True)]
        colour, pattern = theme.CAUSE_LOOKS[cause]
        found.append(Piece(f"idle: {cause_label(cause)}", colour, pattern, values))
    # A pipeline stage without work idles by another class's cause.
    found.append(Piece("idle: other classes' causes", theme.GREY, "-", [max(left, 0) for left in rest]))
    return [piece for piece in found if any(piece.values)]


def idle_of(entry: RankEntry, cause: str) -> int:
    """Idle time of a rank with this cause, ns."""
    stalls = entry["stall_ns"]
    if cause == "unattributed":
        return stalls["unattributed"]
    return stalls["memory" if cause == "allocator" else "cpu"].get(cause, 0)


def bars(ranks: Sequence[RankEntry], dark: bool) -> go.Figure:
    """One horizontal bar per rank and device."""
    labels = [f"rank {label}" for label in arrangement.rank_labels(list(ranks))]
    windows = [entry["window_ns"] for entry in ranks]
    fig = go.Figure()
    for piece in pieces(ranks):
        told = [
            f"{units.duration(value)}, {units.share(value / window if window else None)}"
            for value, window in zip(piece.values, windows, strict=True)
        ]
        shares = [100 * value / window if window else 0 for value, window in zip(piece.values, windows, strict=True)]
        fig.add_bar(
            orientation="h", y=labels, x=shares, name=piece.label, text=told, textposition="none",
            marker_color=piece.colour, marker_line_width=0,
            marker_pattern=theme.pattern(piece.pattern),
            hovertemplate="%{y}<br>" + piece.label + ": %{text}<extra></extra>",
        )  # fmt: skip
    fig.update_layout(template=theme.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal")
    if len(fig.data) > 4:
        fig.update_layout(margin_t=82)  # the legend takes two lines: clear of the buttons
    fig.update_xaxes(title="share of the window", ticksuffix=" %", range=[0, 100])
    fig.update_yaxes(autorange="reversed", type="category")
    return fig
