"""Rank × step: which ranks, which steps."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from html import escape
from statistics import median
from typing import Any

from plotly import graph_objects as go

from gpuscope.schema.call_tree_section import CompileEntry
from gpuscope.schema.plan_document import TriedChange
from gpuscope.words import units, vocabulary
from gpuscope.words.vocabulary import frame_place

# Names from traces as text where plotly would read HTML.


def plain(name: str) -> str:
    """A name from a trace for a plotly label or hover."""
    return escape(units.clean(name), quote=False)


# The series colours and the light and dark templates of every figure.

SERIES = (
    vocabulary.BLUE,
    vocabulary.ORANGE,
    vocabulary.GREEN,
    vocabulary.VERMILLION,
    vocabulary.SKY,
    vocabulary.PURPLE,
    vocabulary.YELLOW,
    vocabulary.GREY,
)
"""Default order of series without a colour of their own."""

SEVERITY_COLOURS = {"high": "red", "medium": "orange", "low": "gray"}
"""Names of dash-mantine-components' palette; never shown without the word."""
SEQUENTIAL = "Cividis"
"""Matplotlib's colour-blind-safe scale (Nuñez et al. 2018)."""
AROUND = (("#67A9CF", "#F7F7F7", "#F1A340"), ("#2166AC", "#252A2F", "#B35806"))
"""Below a middle, at it, above it, on light and dark pages: blue and orange are told apart by the colour-blind, and…"""
ON_CELLS = ("#111111", "#FFFFFF")
"""… text in cells of any of them has a contrast of 4.5; what plotly chooses by itself may have 2."""

MANTINE: dict[str, Any] = {
    "primaryColor": "blue",
    "primaryShade": {"light": 8, "dark": 8},
    "defaultRadius": "sm",
    "autoContrast": True,
    "fontFamily": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "components": {"Anchor": {"defaultProps": {"underline": "always"}}},
}
"""The components' theme: shades dark enough that text on them, or in them, has a contrast of 4.5; links within text
are told by more than their colour."""

PAGE_CSS = (
    f":root {{ {vocabulary.page_css(False)} }} :root[data-mantine-color-scheme=dark] {{ {vocabulary.page_css(True)} }}"
)
"""The colours of pages, which assets/gpuscope.css uses."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def pattern(shape: str) -> dict[str, Any]:
    """The pattern of a bar: dark strokes over its colour, or none."""
    return {"shape": shape, "size": 6, "fillmode": "overlay", "fgcolor": "#000000", "fgopacity": 0.45}


@cache
def template(dark: bool) -> go.layout.Template:
    """The template of figures on a light or dark page."""
    text, line = ("#C9C9C9", "#4A4A4A") if dark else ("#333333", "#DDDDDD")
    axis: dict[str, Any] = {
        "gridcolor": line,
        "zerolinecolor": line,
        "linecolor": line,
        "ticks": "outside",
        "tickcolor": line,
        "automargin": True,
        "title": {"standoff": 8},
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12, "color": text},
            "colorway": list(SERIES),
            "xaxis": axis,
            "yaxis": axis,
            "margin": {"l": 60, "r": 28, "t": 56, "b": 40},
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1, "x": 0, "maxheight": 0.6, "font": {"size": 11}},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": text, "activecolor": vocabulary.BLUE},
            "hoverlabel": {"font": {"family": FONT}, "align": "left", "namelength": -1},
            "colorscale": {"sequential": SEQUENTIAL},
        }
    )


# What a tuning session tried: the step predicted for each change, and the step measured.


def tried(rows: Sequence[TriedChange], dark: bool) -> go.Figure:
    """A row per change in the order of trials, as shares of the step before: the prediction with its range, and what
    was measured, filled where it was kept."""
    fig = go.Figure()
    names = [f"{number}  {plain(units.crop(row['code'], 40))}" for number, row in enumerate(rows, 1)]
    fig.add_bar(
        orientation="h",
        y=names,
        x=[100] * len(rows),
        name="before",
        width=0.5,
        opacity=0.35,
        marker_color=vocabulary.GREY,
        text=[units.duration(row["before_ns"]) for row in rows],
        textposition="none",
        hovertemplate="before: %{text}<extra></extra>",
    )
    told = [
        (name, 100 / row["before_ns"], at, row["low_ns"] or at, row["high_ns"] or at)
        for name, row in zip(names, rows, strict=True)
        if (at := row["predicted_ns"]) is not None
    ]
    fig.add_scatter(
        y=[name for name, *_ in told],
        x=[at * share for _, share, at, _, _ in told],
        mode="markers",
        name="predicted",
        marker={"symbol": "line-ns-open", "size": 16, "color": vocabulary.ORANGE, "line": {"width": 3}},
        error_x={
            "type": "data",
            "symmetric": False,
            "thickness": 1.5,
            "color": vocabulary.ORANGE,
            "array": [(high - at) * share for _, share, at, _, high in told],
            "arrayminus": [(at - low) * share for _, share, at, low, _ in told],
        },
        text=[f"{units.duration(at)} ({units.span(low, high, '–')})" for _, _, at, low, high in told],
        hovertemplate="predicted: %{text}<extra></extra>",
    )
    for name, kept, symbol in (("measured, kept", True, "circle"), ("measured, not kept", False, "circle-open")):
        own = [
            (label, 100 / row["before_ns"], at)
            for label, row in zip(names, rows, strict=True)
            if row["kept"] is kept and (at := row["measured_ns"]) is not None
        ]
        fig.add_scatter(
            y=[label for label, *_ in own],
            x=[at * share for _, share, at in own],
            mode="markers",
            name=name,
            marker={"symbol": symbol, "size": 11, "color": vocabulary.BLUE, "line": {"width": 2}},
            text=[units.duration(at) for *_, at in own],
            hovertemplate=f"{name}: %{{text}}<extra></extra>",
        )
    fig.update_layout(template=template(dark), showlegend=True, hovermode="closest")
    fig.update_xaxes(title="step time, of the one before", ticksuffix=" %", rangemode="tozero")
    fig.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1])
    return fig


# Compilations of torch.compile by rank and time: first ones, recompilations, failures.

LOOKS = (
    ("compiled", vocabulary.BLUE, ""),
    ("recompiled", vocabulary.ORANGE, ""),
    ("failed", vocabulary.VERMILLION, "/"),
)


def compilations(compiles: Sequence[CompileEntry], dark: bool) -> go.Figure:
    """One row per rank, one bar per compilation of a frame."""
    timed = [one for one in compiles if one["start_ns"] is not None and one["dur_ns"] is not None]
    spans: dict[int, tuple[int, int]] = {}
    for one in timed:
        begun = one["start_ns"] or 0
        low, high = spans.get(one["rank"], (begun, begun))
        spans[one["rank"]] = min(low, begun), max(high, begun + (one["dur_ns"] or 0))
    lows, highs = zip(*spans.values(), strict=True) if spans else ((0,), (1,))
    apart = max(lows) > min(highs)  # logs of different starts: on one axis nothing could be seen
    zero = {rank: low if apart else min(lows) for rank, (low, _) in spans.items()}
    size, unit = units.time_unit(max((high - zero[rank] for rank, (_, high) in spans.items()), default=1))
    fig = go.Figure()
    for kind, colour, pattern in LOOKS:
        own = [one for one in timed if kind_of(one) == kind]
        if own:
            fig.add_bar(
                orientation="h",
                y=[f"rank {one['rank']}" for one in own],
                name=kind,
                base=[((one["start_ns"] or 0) - zero[one["rank"]]) / size for one in own],
                x=[(one["dur_ns"] or 0) / size for one in own],
                marker={
                    "color": colour,
                    "line": {"width": 0.5, "color": "white"},
                    "pattern": {"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
                },
                hovertext=[_hover(one) for one in own],
                hovertemplate="%{hovertext}<extra></extra>",
            )
    fig.update_layout(template=template(dark), barmode="overlay", bargap=0.15)
    whose = "each rank's" if apart else "the"
    fig.update_xaxes(title=f"time since {whose} first compilation ({unit})")
    ranks = sorted({one["rank"] for one in timed})
    fig.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=[f"rank {rank}" for rank in ranks])
    return fig


def kind_of(one: CompileEntry) -> str:
    """Which of `LOOKS` a compilation has."""
    return "failed" if one["failed"] else "recompiled" if one["recompiled"] else "compiled"


def _hover(one: CompileEntry) -> str:
    why = one["failed"] or one["reason"] or ""
    place = frame_place(one["function"], one["file"], one["line"])
    return plain(f"{one['compile_id']} {place}, {units.duration(one['dur_ns'])}") + (f"<br>{plain(why)}" if why else "")


# Logarithmic axes: ranges that always hold labelled ticks, and labels that are whole numbers.

ROOM = 0.06
"""Of the range, left free at each end."""
FINE = 3
"""Decades up to which 2 and 5 of each are labelled too."""


def log_axis(values: Iterable[float]) -> dict[str, Any]:
    """An axis for some positive values. With a format of its own: plotly writes 20 as a small «2» without one."""
    low, high = log_range(values)
    return {"type": "log", "range": [low, high], "tickformat": "~r", "dtick": "D2" if high - low <= FINE else 1}


def log_range(values: Iterable[float], least: float = 1.0) -> list[float]:
    """Ends of an axis for some positive values, as powers of ten: at least `least` decades around them."""
    exponents = [math.log10(value) for value in values if value > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    missing = max(least - (high - low), 0) / 2
    room = ROOM * max(high - low, least)
    return [low - missing - room, high + missing + room]


WRITTEN = 10
"""Steps of which each cell is wide enough to show its number."""
LATENESS = (((0.0, "#F1F3F5"), (1.0, vocabulary.VERMILLION)), ((0.0, "#252A2F"), (1.0, "#BF551A")))
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
    below, middle, _ = AROUND[dark]
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
            textfont_color=ON_CELLS[dark],
            **scale,
        )
    )
    fig.update_layout(template=template(dark))
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
    scale = tuple(zip((0.0, 0.5, 1.0), AROUND[dark], strict=True))
    return {"colorscale": scale, "zmin": -most, "zmax": most, "colorbar": bar}


def _text(value: int, off: float | None) -> str:
    return units.duration(value) + (f" ({off:+.1f} %)" if off is not None else "")
