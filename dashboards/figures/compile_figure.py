"""Compilations of torch.compile by rank and time: first ones, recompilations, failures."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.compilation_section import CompileEntry
from gpuscope.words import palette, units
from gpuscope.words.compiled_frames import frame_place

LOOKS = (
    ("compiled", palette.BLUE, ""),
    ("recompiled", palette.ORANGE, ""),
    ("failed", palette.VERMILLION, "/"),
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
    fig.update_layout(template=theme.template(dark), barmode="overlay", bargap=0.15)
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
