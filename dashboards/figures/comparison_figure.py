"""Two runs side by side, and a job's step time over its stored runs."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.analyzers.comparison.job_history import TrendPoint
from gpuscope.dashboards import theme
from gpuscope.dashboards.data.rows.event_styles import EVENT_STYLES
from gpuscope.dashboards.data.typical_step import COLUMNS, Strip
from gpuscope.schema.diff_document import Diff
from gpuscope.words import palette, units
from gpuscope.words.vocabulary import PARTS

RESULT_LOOKS = {
    "regression": ("regression", palette.VERMILLION, "triangle-up"),
    "improvement": ("improvement", palette.GREEN, "triangle-down"),
    "neutral": ("neutral", palette.GREY, "circle"),
    "different_jobs": ("another job", palette.GREY, "x"),
    None: ("first", palette.GREY, "circle-open"),
}


def parts(diff: Diff, dark: bool) -> go.Figure:
    """The breakdown of both runs, per step (or window) and rank: stacked bars."""
    rows = {row["part"]: row for row in diff["breakdown"]}
    longest = max((sum(row[key] for row in rows.values()) for key in ("before_ns", "after_ns")), default=1)
    size, unit = units.time_unit(longest)
    fig = go.Figure()
    for part in PARTS:
        row = rows.get(part.key)
        if row is None or not row["before_ns"] + row["after_ns"]:
            continue
        values = [row["before_ns"], row["after_ns"]]
        fig.add_bar(
            orientation="h",
            y=["before", "after"],
            x=[value / size for value in values],
            name=part.label,
            marker_color=part.colour,
            text=[units.duration(value) for value in values],
            textposition="none",
            hovertemplate="%{y}<br>" + part.label + ": %{text}<extra></extra>",
        )
    fig.update_layout(template=theme.template(dark), barmode="stack", bargap=0.3, legend_traceorder="normal")
    what = "step" if diff["step"]["basis"] == "steps" else "window"
    fig.update_xaxes(title=f"time per {what} and rank ({unit})", rangemode="tozero")
    fig.update_yaxes(autorange="reversed")
    return fig


def aligned(strips: Sequence[tuple[str, Strip]], dark: bool) -> go.Figure:
    """One row per run and kind of work, darker where busier; both from the start of a step, on one scale of time."""
    longest = max(strip.duration for _, strip in strips)
    size, unit = units.time_unit(longest)
    kinds = [kind for kind in EVENT_STYLES.values() if any(kind[0] in strip.busy for _, strip in strips)]
    fig = go.Figure()
    for label, colour in kinds:
        rgb = ",".join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))
        for word, strip in strips:
            width = strip.duration / COLUMNS / size
            share = strip.busy.get(label, [0.0])
            filled = [(place, float(one)) for place, one in enumerate(share) if one > 0] or [(0, 0.0)]
            fig.add_bar(
                orientation="h",
                y=[f"{label}, {word}"] * len(filled),
                base=[place * width for place, _ in filled],
                x=[width] * len(filled),
                showlegend=False,
                marker_line_width=0,
                marker_color=[f"rgba({rgb},{one:.2f})" for _, one in filled],
                text=[f"{100 * one:.0f} % busy" for _, one in filled],
                textposition="none",
                hovertemplate=f"{label}, {word}, step {strip.step}<br>%{{base:.4g}} {unit}: %{{text}}<extra></extra>",
            )
    fig.update_layout(template=theme.template(dark), barmode="overlay", bargap=0.15, margin_t=30)
    fig.update_xaxes(title=f"time since the step began ({unit})", range=[0, longest / size])
    fig.update_yaxes(autorange="reversed", type="category", showgrid=False)
    return fig


def trend(points: Sequence[TrendPoint], dark: bool, leads_to: Sequence[str] = ()) -> go.Figure:
    """Step time of each run with its 95 % interval; marks show the change from the previous run.

    `leads_to` gives the address that each point leads to.
    """
    to = dict(zip((point.number for point in points), leads_to, strict=False))
    timed = [point for point in points if point.step_ns is not None]
    size, unit = units.time_unit(max((point.step_ns or 0 for point in timed), default=1))
    places = list(range(len(timed)))
    fig = go.Figure()
    scaled = [(point.step_ns or 0) / size for point in timed]
    fig.add_scatter(
        x=places,
        y=scaled,
        mode="lines",
        showlegend=False,
        line={"color": palette.GREY, "width": 1},
        hoverinfo="skip",
    )
    for result, (name, colour, symbol) in RESULT_LOOKS.items():
        own = [(place, point) for place, point in zip(places, timed, strict=True) if point.result == result]
        if not own:
            continue
        fig.add_scatter(
            x=[place for place, _ in own],
            y=[scaled[place] for place, _ in own],
            mode="markers",
            name=name,
            marker={"color": colour, "symbol": symbol, "size": 11},
            error_y={
                "type": "data",
                "symmetric": False,
                "thickness": 1,
                "array": [_above(point) / size for _, point in own],
                "arrayminus": [_below(point) / size for _, point in own],
            },
            text=[_hover(point) for _, point in own],
            hovertemplate="%{text}<extra></extra>",
            customdata=[to.get(point.number, "") for _, point in own],
        )
    fig.update_layout(template=theme.template(dark), hovermode="closest")
    fig.update_xaxes(
        title="run of the store (UTC)",
        tickvals=places,
        tickangle=0,
        ticktext=[f"{point.number}<br>{point.recorded_at[5:16].replace('T', ' ')}" for point in timed],
    )
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig


def _above(point: TrendPoint) -> int:
    return 0 if point.high_ns is None or point.step_ns is None else point.high_ns - point.step_ns


def _below(point: TrendPoint) -> int:
    return 0 if point.low_ns is None or point.step_ns is None else point.step_ns - point.low_ns


def _hover(point: TrendPoint) -> str:
    change = "" if point.change_frac is None else f", {units.signed(point.change_frac)}"
    return (
        f"run {point.number}, {point.recorded_at[:16].replace('T', ' ')} UTC<br>{units.duration(point.step_ns)}{change}"
    )
