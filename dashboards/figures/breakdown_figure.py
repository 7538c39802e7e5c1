"""Stacked bars of each rank's time breakdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from gpuscope.catalogue.cause import Cause
from gpuscope.catalogue.cause_table import CAUSES
from gpuscope.dashboards import theme
from gpuscope.report.view import arrangement
from gpuscope.schema.document import RankEntry
from gpuscope.words import palette, units
from gpuscope.words.vocabulary import PARTS


@dataclass(frozen=True)
class Piece:
    """One colour of the stack: ns per rank, in the order of the ranks."""

    label: str
    colour: str
    pattern: str
    values: list[int]
    code: str = ""
    """The cause whose findings show it, where it has one."""


def pieces(ranks: Sequence[RankEntry]) -> list[Piece]:
    """The parts of each rank's window, idle by cause; they sum to it. Parts no rank has are left out."""
    found = [
        Piece(
            part.label,
            part.colour,
            "",
            [entry["breakdown_ns"][part.key] for entry in ranks],
            _main_cause(part.key, ranks),
        )
        for part in PARTS
        if part.key != "idle"
    ]
    rest = [entry["breakdown_ns"]["idle"] for entry in ranks]
    for cause in (cause for cause in CAUSES if cause.idle):
        values = [idle_of(entry, cause) for entry in ranks]
        rest = [left - value for left, value in zip(rest, values, strict=True)]
        found.append(Piece(f"idle: {cause.label}", cause.look.colour, cause.look.fill, values, cause.code))
    # A pipeline stage without work is idle by a cause of another class.
    found.append(Piece("idle: other classes' causes", palette.GREY, "-", [max(left, 0) for left in rest]))
    return [piece for piece in found if any(piece.values)]


def _main_cause(part: str, ranks: Sequence[RankEntry]) -> str:
    """The costliest cause of an exposed part, over these ranks."""
    class_name = {"exposed_communication": "communication", "exposed_memory": "memory"}.get(part)
    total: dict[str, int] = {}
    for entry in ranks:
        for code, ns in (dict(entry["stall_ns"])[class_name] if class_name else {}).items():  # type: ignore[attr-defined]
            total[code] = total.get(code, 0) + ns
    return max(total, key=lambda code: total[code]) if total else ""


def idle_of(entry: RankEntry, cause: Cause) -> int:
    """Idle time of a rank with this cause, ns."""
    stalls = entry["stall_ns"]
    of_class = {"cpu": stalls["cpu"], "communication": stalls["communication"], "memory": stalls["memory"]}
    return of_class[cause.class_name].get(cause.code, 0) if cause.class_name in of_class else stalls["unattributed"]


def bars(
    ranks: Sequence[RankEntry], dark: bool, place: Callable[[RankEntry, str], str] = lambda _, __: ""
) -> go.Figure:
    """One horizontal bar per rank and device; `place` gives where a piece, by its cause's code, leads to."""
    labels = [f"rank {label}" for label in arrangement.rank_labels(list(ranks))]
    windows = [entry["window_ns"] for entry in ranks]
    fig = go.Figure()
    for piece in pieces(ranks):
        texts = [
            f"{units.duration(value)}, {units.share(value / window if window else None)}"
            for value, window in zip(piece.values, windows, strict=True)
        ]
        shares = [100 * value / window if window else 0 for value, window in zip(piece.values, windows, strict=True)]
        fig.add_bar(
            orientation="h", y=labels, x=shares, name=piece.label, text=texts, textposition="none",
            marker_color=piece.colour, marker_line_width=0,
            marker_pattern=theme.pattern(piece.pattern),
            hovertemplate="%{y}<br>" + piece.label + ": %{text}<extra></extra>",
            customdata=[place(entry, piece.code) for entry in ranks],
        )  # fmt: skip
    fig.update_layout(template=theme.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal")
    if len(fig.data) > 4:
        fig.update_layout(margin_t=82)  # the legend takes two lines: clear of the buttons
    fig.update_xaxes(title="share of the window", ticksuffix=" %", range=[0, 100])
    fig.update_yaxes(autorange="reversed", type="category")
    return fig
