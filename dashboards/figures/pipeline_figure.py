"""Stages × time: what each pipeline stage computes when, and its bubbles."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.schema.pipeline_section import PipelineComputation, PipelineRow
from gpuscope.words import palette, units

LOOKS = {"forward": (palette.BLUE, ""), "backward": (palette.ORANGE, ""), "weight": (palette.GREEN, "/")}
NAMES = {"forward": "forward", "backward": "backward", "weight": "weight gradient"}
PARTS = (
    ("warm_up", "warm-up", palette.SKY, ""),
    ("steady", "steady", palette.YELLOW, ""),
    ("drain", "drain", palette.PURPLE, ""),
    ("imbalance", "imbalance", palette.VERMILLION, "/"),
)
MOST_NUMBERS = 400
"""Bars labelled with the micro-batch's number; beyond this it would be unreadable."""


def schedule(
    computations: Sequence[PipelineComputation], span_ns: int, dark: bool, leads_to: Sequence[str] = ()
) -> go.Figure:
    """One row per stage; gaps within the pipeline's span are bubble. `span_ns` puts both figures on one scale.

    `leads_to` gives the address that each computation leads to.
    """
    places = {id(one): place for one, place in zip(computations, leads_to, strict=False)}
    fig = go.Figure()
    first = min((one["start_ns"] for one in computations), default=0)
    size, unit = units.time_unit(span_ns)
    numbered = len(computations) <= MOST_NUMBERS
    for kind, (colour, pattern) in LOOKS.items():
        own = [one for one in computations if one["kind"] == kind]
        if not own:
            continue
        fig.add_bar(
            orientation="h",
            y=[f"stage {one['stage']}" for one in own],
            name=NAMES[kind],
            base=[(one["start_ns"] - first) / size for one in own],
            x=[one["dur_ns"] / size for one in own],
            marker={
                "color": colour,
                "line": {"width": 0.5, "color": "white"},
                "pattern": {"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
            },
            text=[str(one["micro_batch"]) if numbered else "" for one in own],
            textposition="inside",
            insidetextanchor="middle",
            hovertext=[_hover(one) for one in own],
            customdata=[places.get(id(one), "") for one in own],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    fig.update_layout(template=theme.template(dark), barmode="overlay", bargap=0.15)
    fig.update_xaxes(title=f"time since the first computation ({unit})", range=[0, span_ns / size])
    stages = sorted({one["stage"] for one in computations})
    fig.update_yaxes(autorange="reversed", categoryorder="array", categoryarray=[f"stage {stage}" for stage in stages])
    return fig


def _hover(one: PipelineComputation) -> str:
    chunk = f", model chunk {one['model_chunk']}" if one["model_chunk"] else ""
    return (
        f"{NAMES[one['kind']]} of micro-batch {one['micro_batch']}{chunk}<br>rank {one['rank']}, "
        f"{units.duration(one['dur_ns'])}"
    )


def bubbles(rows: Sequence[PipelineRow], dark: bool) -> go.Figure:
    """Mean bubble of each stage by part, as a share of the pipeline's part of the step."""
    stages = sorted({row["stage"] for row in rows})
    labels = [f"stage {stage}" for stage in stages]
    fig = go.Figure()
    for key, name, colour, pattern in PARTS:
        spent = [sum(_part(row, key) for row in rows if row["stage"] == stage) for stage in stages]
        spans = [sum(row["dur_ns"] for row in rows if row["stage"] == stage) for stage in stages]
        if not any(spent):
            continue
        shares = [value / span if span else 0.0 for value, span in zip(spent, spans, strict=True)]
        fig.add_bar(
            orientation="h",
            y=labels,
            x=[100 * share for share in shares],
            name=name,
            marker_color=colour,
            marker_pattern={"shape": pattern, "size": 5, "fgopacity": 0.6, "fillmode": "overlay"},
            text=[units.share(one) for one in shares],
            textposition="none",
            hovertemplate="%{y}<br>" + name + ": %{text}<extra></extra>",
        )
    fig.update_layout(template=theme.template(dark), barmode="stack", bargap=0.25, legend_traceorder="normal")
    fig.update_xaxes(title="share of the pipeline's part of the step", ticksuffix=" %", rangemode="tozero")
    fig.update_yaxes(autorange="reversed")
    return fig


def _part(row: PipelineRow, key: str) -> int:
    parts: dict[str, int] = dict(row["bubble_ns"])  # type: ignore[arg-type]
    return parts[key]
