"""The caching allocator over time, its contents at the peak, and the segments with their holes."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.data.memory.memory_stacks import BEFORE, MemoryOverTime
from gpuscope.dashboards.data.memory.segments import Segment
from gpuscope.dashboards.plain_text import plain
from gpuscope.report.view import memory_sentences
from gpuscope.schema.memory_section import HeldEntry, MemoryEntry
from gpuscope.words import palette, units

STACKS = 20
"""Lines of code drawn, the largest first."""
STATES = (("allocated", palette.BLUE, ""), ("awaiting free", palette.ORANGE, "/"), ("free", palette.GREY, "."))
"""Name, colour and pattern of each state of a block, in the order of BlockState."""
GIB = 1 << 30


def over_time(entry: MemoryEntry, dark: bool, by_kind: MemoryOverTime | None = None) -> go.Figure:
    """Allocated and reserved at each sample of the timeline; stacked below it, what is in use by kind."""
    samples = entry["timeline"]
    timed = all(one["time_ns"] is not None for one in samples)
    first = min((one["time_ns"] or 0 for one in samples), default=0)
    size, unit = units.time_unit(max(((one["time_ns"] or 0) - first for one in samples), default=1))
    x = [((one["time_ns"] or 0) - first) / size for one in samples] if timed else list(range(len(samples)))
    fig = go.Figure()
    if by_kind is not None and by_kind.timed == timed:
        _stacked(fig, by_kind, size)
    reserved = [one["reserved_bytes"] for one in samples]
    for name, values, colour, dash in (
        ("reserved", reserved, palette.GREY, "dot"),
        ("allocated", [one["allocated_bytes"] for one in samples], palette.BLUE, "solid"),
    ):
        if any(value is not None for value in values):
            fig.add_scatter(
                x=x,
                y=[None if value is None else value / GIB for value in values],
                name=name,
                mode="lines",
                line={"color": colour, "dash": dash, "width": 1.5, "shape": "hv"},
                text=["" if value is None else units.memory(value) for value in values],
                hovertemplate=name + ": %{text}<extra></extra>",
            )
    fig.update_layout(template=theme.template(dark), hovermode="x")
    fig.update_xaxes(title=f"time ({unit})" if timed else "events, in order")
    fig.update_yaxes(title="GiB", rangemode="tozero")
    return fig


def _stacked(fig: go.Figure, by_kind: MemoryOverTime, size: int) -> None:
    x = (by_kind.time / size if by_kind.timed else by_kind.time).tolist()
    for place, (name, used) in enumerate(by_kind.used.items()):
        colour = palette.GREY if name == BEFORE else theme.SERIES[place % len(theme.SERIES)]
        fig.add_scatter(
            x=x,
            y=(used / GIB).tolist(),
            name=name,
            mode="lines",
            stackgroup="kinds",
            fillcolor=colour,
            line={"color": colour, "width": 0.5, "shape": "hv"},
            text=[units.memory(int(value)) for value in used],
            hovertemplate=name + ": %{text}<extra></extra>",
        )


def at_peak(held: Sequence[HeldEntry], dark: bool) -> go.Figure:
    """Bytes in use at the peak by the line of code that asked for them."""
    drawn = held[:STACKS]
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=[f"{place + 1}. {_short(one)}" for place, one in enumerate(drawn)],
        x=[one["bytes"] / GIB for one in drawn],
        marker_color=palette.BLUE,
        text=[f"{units.memory(one['bytes'])} in {one['blocks']}" for one in drawn],
        textposition="auto",
        cliponaxis=False,
        customdata=[_stack(one) for one in drawn],
        hovertemplate="%{customdata}<extra></extra>",
    )
    fig.update_layout(template=theme.template(dark), bargap=0.25)
    most = max((one["bytes"] for one in drawn), default=0) / GIB
    fig.update_xaxes(title="GiB", range=[0, 1.3 * most or 1])  # room for the text beside a bar
    fig.update_yaxes(autorange="reversed", type="category")
    return fig


def _short(one: HeldEntry) -> str:
    return plain(memory_sentences.short_where(one))


def _stack(one: HeldEntry) -> str:
    frames = [plain(units.crop(frame, 110)) for frame in one["frames"][:12]]
    return "<br>".join(frames) or _short(one)


def segments(drawn: Sequence[Segment], dark: bool) -> go.Figure:
    """One bar per segment, its blocks in order of address."""
    fig = go.Figure()
    for state, (name, colour, pattern) in enumerate(STATES):
        y, base, x, hover = [], [], [], []
        for segment in drawn:
            at = 0
            for nbytes, own, frame in segment.blocks:
                if own == state:
                    y.append(segment.label)
                    base.append(at / (1 << 20))
                    x.append(nbytes / (1 << 20))
                    hover.append(
                        f"{name}, {units.memory(nbytes)}" + (f"<br>{plain(units.crop(frame, 90))}" if frame else "")
                    )
                at += nbytes
        if y:
            fig.add_bar(
                orientation="h",
                y=y,
                base=base,
                x=x,
                name=name,
                marker_color=colour,
                marker_line_width=0,
                marker_pattern={"shape": pattern, "size": 5, "fgopacity": 0.5, "fillmode": "overlay"},
                customdata=hover,
                hovertemplate="%{customdata}<extra></extra>",
            )
    fig.update_layout(template=theme.template(dark), barmode="overlay", bargap=0.2)
    fig.update_xaxes(title="MiB from the segment's start", rangemode="tozero")
    fig.update_yaxes(
        type="category", categoryorder="array", categoryarray=[one.label for one in drawn], autorange="reversed"
    )
    return fig
