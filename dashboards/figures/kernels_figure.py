"""Device time by category of kernel, and achieved floating-point rates."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.log_axis import log_axis
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.document import KernelEntry
from gpuscope.words import palette, units
from gpuscope.words.short_kernels import short_kernel

NAME = 80


def categories(kernels: Sequence[KernelEntry], dark: bool) -> go.Figure:
    """A bar per category: its device time, and how often it ran."""
    time: dict[str, int] = defaultdict(int)
    count: dict[str, int] = defaultdict(int)
    for kernel in kernels:
        time[kernel["category"]] += kernel["dur_ns"]
        count[kernel["category"]] += kernel["count"]
    order = sorted(time, key=lambda name: -time[name])
    size, unit = units.time_unit(max(time.values(), default=0))
    everything = sum(time.values())
    texts = [
        f"{units.duration(time[name])}, {units.share(time[name] / everything if everything else None)}, "
        f"{units.plural(count[name], 'event')}"
        for name in order
    ]
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=order,
        x=[time[name] / size for name in order],
        text=texts,
        textposition="auto",
        marker_color=palette.BLUE,
        hovertemplate="%{y}: %{text}<extra></extra>",
        cliponaxis=False,
    )
    fig.update_layout(template=theme.template(dark), bargap=0.3)
    fig.update_xaxes(title=f"device time ({unit}), all ranks", rangemode="tozero")
    fig.update_yaxes(autorange="reversed", type="category")
    return fig


def rates(kernels: Sequence[KernelEntry], peaks: Mapping[str, float], dark: bool) -> go.Figure:
    """Achieved FLOP/s of each kernel that has a rate, against its mean time; dashed, the device's peaks."""
    rated = [kernel for kernel in kernels if kernel["flops_per_s"]]
    largest = max((kernel["dur_ns"] for kernel in rated), default=1) or 1
    fig = go.Figure()
    for place, category in enumerate(sorted({kernel["category"] for kernel in rated})):
        own = [kernel for kernel in rated if kernel["category"] == category]
        fig.add_scatter(
            mode="markers",
            name=category,
            x=[kernel["mean_ns"] / 1000 for kernel in own],
            y=[(kernel["flops_per_s"] or 0) / 1e12 for kernel in own],
            marker={
                "size": [8 + 32 * math.sqrt(kernel["dur_ns"] / largest) for kernel in own],
                "color": theme.SERIES[place % len(theme.SERIES)],
                "symbol": place,
                "opacity": 0.75,
            },
            text=[_rate_hover(kernel) for kernel in own],
            hovertemplate="%{text}<extra></extra>",
        )
    for label, peak in peaks.items():
        fig.add_hline(
            peak / 1e12,
            line={"dash": "dash", "color": palette.VERMILLION, "width": 1.5},
            annotation_text=plain(label),
            annotation_position="top left",
        )
    fig.update_layout(template=theme.template(dark))
    times = [kernel["mean_ns"] / 1000 for kernel in rated]
    speeds = [*((kernel["flops_per_s"] or 0) / 1e12 for kernel in rated), *(peak / 1e12 for peak in peaks.values())]
    fig.update_xaxes(title="mean time of a kernel (µs)", **log_axis(times))
    fig.update_yaxes(title="achieved TFLOP/s", **log_axis(speeds))
    return fig


def _rate_hover(kernel: KernelEntry) -> str:
    name = plain(short_kernel(kernel["name"], NAME))
    return (
        f"{name}<br>{units.flop_rate(kernel['flops_per_s'])}, mean {units.duration(kernel['mean_ns'])}, "
        f"{units.share(kernel['share_frac'])} of device time"
    )
