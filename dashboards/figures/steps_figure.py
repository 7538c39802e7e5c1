"""Step time over the steps of a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from plotly import graph_objects as go

from gpuscope.analyzers.comparison.compare import TrendPoint
from gpuscope.catalogue.suggestion import cause_words
from gpuscope.dashboards.data.counter_tracks import EVENT_STYLES
from gpuscope.dashboards.data.open_runs import COLUMNS, Strip
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.report.view import report_rows
from gpuscope.report.view.headline import Changed, kinds, pieces, seen
from gpuscope.schema.call_tree_section import ServingBatch
from gpuscope.schema.diff_document import Diff
from gpuscope.schema.document import RankEntry, StepEntry
from gpuscope.words import units, vocabulary
from gpuscope.words.vocabulary import BOUND, PARTS

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
            line={"width": 1.5, "color": heatmap_figure.SERIES[place % len(heatmap_figure.SERIES)]},
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
            line={"width": 1.5, "color": heatmap_figure.SERIES[0]},
            marker_size=5,
            text=[f"rank {one['rank']}: {units.duration(one['dur_ns'])}, {one['role']}, {_bound(one)}" for one in own],
            hovertemplate="step %{x}, %{text}",
            customdata=[leads_to(one) for one in own],
        )
    return _finished(fig, steps, dark, unit)


def _finished(fig: go.Figure, steps: Sequence[StepEntry], dark: bool, unit: str) -> go.Figure:
    fig.update_layout(template=heatmap_figure.template(dark), showlegend=len(fig.data) > 1, hovermode="closest")
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


# An inference server: its steps by phase, and its decode steps by batch.

COLOURS = {
    "decode": vocabulary.BLUE,
    "prefill": vocabulary.ORANGE,
    "mixed": vocabulary.PURPLE,
    "capture": vocabulary.GREEN,
    None: vocabulary.GREY,
}


def steps(found: Sequence[StepEntry], dark: bool, leads_to: Callable[[StepEntry], str] = lambda _: "") -> go.Figure:
    """The steps of one rank in their order, by phase."""
    size, unit = units.time_unit(max((step["dur_ns"] for step in found), default=0))
    fig = go.Figure()
    for phase, colour in COLOURS.items():
        own = [step for step in found if step.get("phase") == phase]
        if own:
            fig.add_bar(
                x=[step["step"] for step in own],
                y=[step["dur_ns"] / size for step in own],
                name=phase or "unknown",
                marker_color=colour,
                width=0.9,
                text=[_said(step) for step in own],
                textposition="none",
                hovertemplate="step %{x}: %{text}<extra></extra>",
                customdata=[leads_to(step) for step in own],
            )
    fig.update_layout(template=heatmap_figure.template(dark), showlegend=True, bargap=0.1, barmode="overlay")
    fig.update_xaxes(title="step", tickformat="d", **whole_steps(step["step"] for step in found))
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig


def _said(step: StepEntry) -> str:
    batch: Mapping[str, object] = step.get("batch") or {}
    counted = [
        f"{units.count(number)} {what}"
        for key, what in (
            ("prefill_requests", "prompts"),
            ("prefill_tokens", "tokens of prompts"),
            ("decode_requests", "in decode"),
        )
        if isinstance(number := batch.get(key), int) and number
    ]
    return ", ".join([step.get("phase") or "unknown phase", units.duration(step["dur_ns"]), *counted])


def batches(found: Sequence[ServingBatch], dark: bool) -> go.Figure:
    """Length of a decode step against the requests in it, with graphs and without."""
    size, unit = units.time_unit(max((one["step_ns"] for one in found), default=0))
    fig = go.Figure()
    for name, colour, symbol, graphed in (
        ("mostly graphs", vocabulary.BLUE, "circle", True),
        ("mostly launched singly", vocabulary.VERMILLION, "x", False),
    ):
        own = [one for one in found if (one["graphed_frac"] >= 0.5) is graphed]
        if own:
            said = [f"{units.duration(one['step_ns'])}, median of {units.plural(one['steps'], 'step')}" for one in own]
            fig.add_scatter(
                x=[one["requests"] for one in own],
                y=[one["step_ns"] / size for one in own],
                mode="markers",
                name=name,
                marker={"size": 9, "color": colour, "symbol": symbol},
                text=said,
                hovertemplate="%{x} requests: %{text}<extra></extra>",
            )
    fig.update_layout(template=heatmap_figure.template(dark), showlegend=True)
    fig.update_xaxes(title="requests in decode", tickformat="d", rangemode="tozero")
    fig.update_yaxes(title=f"step time ({unit})", rangemode="tozero")
    return fig


# Stacked bars of each rank's time by cause, and beneath them the step after a change.

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
        for entry, label in zip(ranks, report_rows.rank_labels(list(ranks)), strict=True)
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
            marker_pattern=heatmap_figure.pattern(kind.look.fill),
            hovertemplate="%{y}<br>" + kind.label + ": %{text}<extra></extra>",
            customdata=[place(entry, "" if kind.code == "compute" else kind.code) for entry in ranks],
        )
    fig.update_layout(template=heatmap_figure.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal")
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
        "color": vocabulary.PAGE["ink"][dark],
    }
    words = said if change.bound else f"{said} ({units.span(change.low, change.high, '–')})"
    fig.add_bar(
        orientation="h",
        y=label,
        x=[change.after / size],
        showlegend=False,
        marker_color=vocabulary.PAGE["good"][False],
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
        marker_line={"color": vocabulary.PAGE["faint"][dark], "width": 1},
        insidetextanchor="end",
        textfont_color=vocabulary.PAGE["ink"][dark],
        hovertemplate=f"saved: {gain}<extra></extra>",
        customdata=[""],
    )


# Two runs side by side, and a job's step time over its stored runs.

RESULT_LOOKS = {
    "regression": ("regression", vocabulary.VERMILLION, "triangle-up"),
    "improvement": ("improvement", vocabulary.GREEN, "triangle-down"),
    "neutral": ("neutral", vocabulary.GREY, "circle"),
    "different_jobs": ("another job", vocabulary.GREY, "x"),
    None: ("first", vocabulary.GREY, "circle-open"),
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
    fig.update_layout(template=heatmap_figure.template(dark), barmode="stack", bargap=0.3, legend_traceorder="normal")
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
    fig.update_layout(template=heatmap_figure.template(dark), barmode="overlay", bargap=0.15, margin_t=30)
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
        line={"color": vocabulary.GREY, "width": 1},
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
    fig.update_layout(template=heatmap_figure.template(dark), hovermode="closest")
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
