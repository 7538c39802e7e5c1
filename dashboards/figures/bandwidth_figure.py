"""Bus bandwidth against message size, with the fit and the link's peak."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from gpuscope.collective_costs.bus_bandwidth import busbw_factor
from gpuscope.dashboards import theme
from gpuscope.dashboards.log_axis import log_axis, log_range
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.nccl_sections import BandwidthEntry, FitEntry
from gpuscope.words import palette, units

POINTS = 60
"""Points of a fitted curve: more than a screen resolves."""

OPEN = 100
"""What plotly adds to a marker symbol's number for its open form."""

Series = tuple[str, str | None]
"""Operation and group."""


def against_size(rows: Sequence[BandwidthEntry], fits: Sequence[FitEntry], dark: bool) -> go.Figure:
    """Points are measured, dashed lines the fits T(S) = α + S·factor/B, dotted lines the links' peaks."""
    fig = go.Figure()
    drawn = [row for row in rows if row["busbw_gbps"]]
    series: list[Series] = sorted({(row["op"], row["group"]) for row in drawn}, key=str)
    for place, key in enumerate(series):
        colour = theme.SERIES[place % len(theme.SERIES)]
        own = sorted((row for row in drawn if (row["op"], row["group"]) == key), key=lambda row: row["bytes"])
        _points(fig, key, own, colour, place)
        for fit in fits:
            if (fit["op"], fit["group"]) == key and fit["alpha_ns"] is not None and fit["busbw_gbps"]:
                _curve(fig, key, fit, [row["bytes"] for row in own], colour)
    _peaks(fig, drawn)
    fig.update_layout(template=theme.template(dark), hovermode="closest", showlegend=True)
    sizes = [row["bytes"] for row in drawn]
    ticks = _powers(sizes)
    fig.update_xaxes(
        title="message size",
        type="log",
        tickvals=ticks,
        ticktext=[units.memory(size) for size in ticks],
        range=log_range(ticks, 0.3),
    )
    drawn_rates = [rate for row in drawn for rate in (row["busbw_gbps"], row["peak_gbps"]) if rate]
    fig.update_yaxes(title="busbw (GB/s)", **log_axis(drawn_rates))
    return fig


def _points(fig: go.Figure, key: Series, rows: Sequence[BandwidthEntry], colour: str, place: int) -> None:
    fig.add_scatter(
        x=[row["bytes"] for row in rows],
        y=[row["busbw_gbps"] for row in rows],
        name=plain(_name(key)),
        mode="markers",
        marker={
            "color": colour,
            "size": 9,
            "symbol": [place % 8 + (OPEN if row["lower_bound"] else 0) for row in rows],
        },
        text=[_hover(row) for row in rows],
        hovertemplate="%{text}<extra></extra>",
    )


def _hover(row: BandwidthEntry) -> str:
    lines = [
        _name((row["op"], row["group"])),
        ("≈ " if row["size_basis"] else "")
        + f"{units.memory(row['bytes'])}, {units.duration(row['dur_ns'])}, {row['count']} times",
        f"busbw {units.bandwidth(row['busbw_gbps'])}"
        + (" or more: the time holds waiting" if row["lower_bound"] else ""),
    ]
    if row["efficiency_frac"] is not None:
        lines.append(f"{units.share(row['efficiency_frac'])} of {row['link']}")
    if row["algorithm"]:
        lines.append(f"{row['algorithm']} {row['protocol'] or ''} {row['channels'] or ''}")
    return "<br>".join(plain(line) for line in lines)


def _curve(fig: go.Figure, key: Series, fit: FitEntry, sizes: Sequence[int], colour: str) -> None:
    assert fit["alpha_ns"] is not None
    assert fit["busbw_gbps"]
    x = np.geomspace(min(sizes), max(sizes), POINTS)
    moved = x * (busbw_factor(fit["op"], fit["group_size"]) or 1.0)
    fig.add_scatter(
        x=x,
        y=moved / (fit["alpha_ns"] + moved / fit["busbw_gbps"]),
        mode="lines",
        showlegend=False,
        line={"color": colour, "dash": "dash", "width": 1.5},
        hoverinfo="skip",
        name=plain(f"{_name(key)}: fit"),
    )


def _peaks(fig: go.Figure, rows: Sequence[BandwidthEntry]) -> None:
    sizes = [row["bytes"] for row in rows]
    peaks = {(row["link"], row["peak_gbps"]) for row in rows if row["peak_gbps"]}
    for link, peak in sorted(peaks, key=str):
        fig.add_scatter(
            x=[min(sizes), max(sizes)],
            y=[peak, peak],
            mode="lines",
            name=plain(f"{link}: {units.bandwidth(peak)}"),
            line={"color": palette.GREY, "dash": "dot", "width": 1.5},
            hoverinfo="name",
        )


def _name(key: Series) -> str:
    op, group = key
    return units.crop(f"{op} · {group}" if group else op, 48)


def _powers(sizes: Sequence[int]) -> list[int]:
    """Powers of 2 around the sizes, at most ten: more would be written aslant."""
    if not sizes:
        return []
    low, high = int(np.log2(max(min(sizes), 1))), int(np.ceil(np.log2(max(*sizes, 2))))
    step = max(-(-(high - low) // 8), 1)
    return [1 << power for power in range(low, high + step, step)]
