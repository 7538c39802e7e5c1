"""Predicted step times vs. the recorded step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from plotly import graph_objects as go

from gpuscope.collective_costs.bus_bandwidth import busbw_factor
from gpuscope.dashboards.data.counter_tracks import BEFORE, MemoryOverTime, Segment
from gpuscope.dashboards.figures import heatmap_figure
from gpuscope.dashboards.figures.heatmap_figure import log_axis, log_range, plain
from gpuscope.report.html.drawing import COLOURS
from gpuscope.report.view import call_tree, report_rows
from gpuscope.schema.call_tree_section import PlaceEntry
from gpuscope.schema.document import KernelEntry
from gpuscope.schema.memory_section import HeldEntry, MemoryEntry
from gpuscope.schema.nccl_sections import BandwidthEntry, FitEntry
from gpuscope.schema.provenance import RoleStepEntry
from gpuscope.when_used import dataclass
from gpuscope.words import units, vocabulary
from gpuscope.words.units import short_kernel
from gpuscope.words.vocabulary import LABELS, ORDER

# Steps of a job for reinforcement learning: which role ran when.

SHOWN = 40
"""Steps, the last ones, that are drawn."""
Bar = tuple[str, str, int, int]
"""Row, role, start and duration, ns."""


def timeline(steps: Sequence[RoleStepEntry], dark: bool) -> go.Figure:
    """A row per step, or where starts are recorded per role and rank: bars by role."""
    bars = list(_bars(steps[-SHOWN:]))
    size, unit = units.time_unit(max((start + dur for _, _, start, dur in bars), default=0))
    fig = go.Figure()
    for role in sorted({role for _, role, _, _ in bars}, key=lambda role: ORDER.get(role, len(ORDER))):
        own = [bar for bar in bars if bar[1] == role]
        place = ORDER.get(role, len(ORDER))
        fig.add_bar(
            y=[row for row, *_ in own],
            base=[start / size for _, _, start, _ in own],
            x=[dur / size for *_, dur in own],
            orientation="h",
            name=LABELS.get(role, role),
            text=[units.duration(dur) for *_, dur in own],
            textposition="none",
            marker={
                "color": heatmap_figure.SERIES[place % len(heatmap_figure.SERIES)],
                "pattern": heatmap_figure.pattern("/" if place >= len(heatmap_figure.SERIES) else ""),
            },
            hovertemplate=f"%{{y}}: {LABELS.get(role, role)}, %{{text}}<extra></extra>",
        )
    fig.update_layout(template=heatmap_figure.template(dark), barmode="overlay", bargap=0.2)
    fig.update_xaxes(title=f"time ({unit})", rangemode="tozero")
    fig.update_yaxes(type="category", autorange="reversed", showgrid=False)
    return fig


def _bars(steps: Sequence[RoleStepEntry]) -> Iterator[Bar]:
    placed = [one for step in steps for one in step.get("intervals", [])]
    begin = min((one["start_ns"] for one in placed), default=0)
    for one in placed:
        rank = "" if one["rank"] is None else f", rank {one['rank']}"
        yield f"{one['name']}{rank}", one["role"], one["start_ns"] - begin, one["dur_ns"]
    for step in () if placed else steps:
        at = 0
        for role in sorted(step["by_role_ns"], key=lambda role: ORDER.get(role, len(ORDER))):
            yield f"step {step['step']}", role, at, step["by_role_ns"][role]
            at += step["by_role_ns"][role]


# Bus bandwidth against message size, with the fit and the link's peak.

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
        colour = heatmap_figure.SERIES[place % len(heatmap_figure.SERIES)]
        own = sorted((row for row in drawn if (row["op"], row["group"]) == key), key=lambda row: row["bytes"])
        _points(fig, key, own, colour, place)
        for fit in fits:
            if (fit["op"], fit["group"]) == key and fit["alpha_ns"] is not None and fit["busbw_gbps"]:
                _curve(fig, key, fit, [row["bytes"] for row in own], colour)
    _peaks(fig, drawn)
    fig.update_layout(template=heatmap_figure.template(dark), hovermode="closest", showlegend=True)
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
            line={"color": vocabulary.GREY, "dash": "dot", "width": 1.5},
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


# The caching allocator over time, its contents at the peak, and the segments with their holes.

STACKS = 20
"""Lines of code drawn, the largest first."""
STATES = (("allocated", vocabulary.BLUE, ""), ("awaiting free", vocabulary.ORANGE, "/"), ("free", vocabulary.GREY, "."))
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
        ("reserved", reserved, vocabulary.GREY, "dot"),
        ("allocated", [one["allocated_bytes"] for one in samples], vocabulary.BLUE, "solid"),
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
    fig.update_layout(template=heatmap_figure.template(dark), hovermode="x")
    fig.update_xaxes(title=f"time ({unit})" if timed else "events, in order")
    fig.update_yaxes(title="GiB", rangemode="tozero")
    return fig


def _stacked(fig: go.Figure, by_kind: MemoryOverTime, size: int) -> None:
    x = (by_kind.time / size if by_kind.timed else by_kind.time).tolist()
    for place, (name, used) in enumerate(by_kind.used.items()):
        colour = vocabulary.GREY if name == BEFORE else heatmap_figure.SERIES[place % len(heatmap_figure.SERIES)]
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
        marker_color=vocabulary.BLUE,
        text=[f"{units.memory(one['bytes'])} in {one['blocks']}" for one in drawn],
        textposition="auto",
        cliponaxis=False,
        customdata=[_stack(one) for one in drawn],
        hovertemplate="%{customdata}<extra></extra>",
    )
    fig.update_layout(template=heatmap_figure.template(dark), bargap=0.25)
    most = max((one["bytes"] for one in drawn), default=0) / GIB
    fig.update_xaxes(title="GiB", range=[0, 1.3 * most or 1])  # room for the text beside a bar
    fig.update_yaxes(autorange="reversed", type="category")
    return fig


def _short(one: HeldEntry) -> str:
    return plain(report_rows.short_where(one))


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
    fig.update_layout(template=heatmap_figure.template(dark), barmode="overlay", bargap=0.2)
    fig.update_xaxes(title="MiB from the segment's start", rangemode="tozero")
    fig.update_yaxes(
        type="category", categoryorder="array", categoryarray=[one.label for one in drawn], autorange="reversed"
    )
    return fig


# Device time by category of kernel, and achieved floating-point rates.

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
        marker_color=vocabulary.BLUE,
        hovertemplate="%{y}: %{text}<extra></extra>",
        cliponaxis=False,
    )
    fig.update_layout(template=heatmap_figure.template(dark), bargap=0.3)
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
                "color": heatmap_figure.SERIES[place % len(heatmap_figure.SERIES)],
                "symbol": place,
                "opacity": 0.75,
            },
            text=[_rate_hover(kernel) for kernel in own],
            hovertemplate="%{text}<extra></extra>",
        )
    for label, peak in peaks.items():
        fig.add_hline(
            peak / 1e12,
            line={"dash": "dash", "color": vocabulary.VERMILLION, "width": 1.5},
            annotation_text=plain(label),
            annotation_position="top left",
        )
    fig.update_layout(template=heatmap_figure.template(dark))
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


# Device and idle time by place of the program, as an icicle: click a place to look into it.

CALL_TREE_FIGURE_NAME = 200


def icicle(entries: Sequence[PlaceEntry], dark: bool) -> go.Figure:
    """Each place below the one that called it, as wide as its device and idle time."""
    within = call_tree.inclusive(entries)
    said = [tuple(units.duration(ns) for ns in within[entry["id"]]) for entry in entries]
    fig = go.Figure()
    fig.add_icicle(
        ids=[str(entry["id"]) for entry in entries],
        parents=["" if entry["parent"] is None else str(entry["parent"]) for entry in entries],
        labels=[plain(units.crop(entry["name"], CALL_TREE_FIGURE_NAME)) for entry in entries],
        values=[within[entry["id"]][0] + within[entry["id"]][2] for entry in entries],
        customdata=[[entry["kind"], *words] for entry, words in zip(entries, said, strict=True)],
        branchvalues="total",
        tiling={"orientation": "v"},
        marker={"colors": [COLOURS[entry["kind"]] for entry in entries]},
        leaf={"opacity": 1},
        textfont={"color": vocabulary.PAGE["ink"][False]},  # dark on all of these, on dark pages too
        hovertemplate="%{label} (%{customdata[0]})<br>device %{customdata[1]}, exposed communication %{customdata[2]}, "
        "idle %{customdata[3]}<extra></extra>",
        maxdepth=14,
    )
    fig.update_layout(
        template=heatmap_figure.template(dark),
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"t": 8, "l": 8, "r": 8, "b": 8},
    )
    return fig


@dataclass(frozen=True)
class Step:
    """A predicted step; ns."""

    label: str
    after: int
    low: int
    high: int

    @property
    def text(self) -> str:
        """Its time and range."""
        return f"{units.duration(self.after)} ({units.duration(self.low)} to {units.duration(self.high)})"


def steps(before: int, predicted: Sequence[Step], dark: bool) -> go.Figure:
    """The recorded step, and each prediction with its range."""
    size, unit = units.time_unit(max(before, *(one.high for one in predicted), 1))
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=["as recorded"],
        x=[before / size],
        marker_color=vocabulary.GREY,
        showlegend=False,
        hovertemplate=units.duration(before) + "<extra></extra>",
    )
    fig.add_bar(
        orientation="h",
        y=[plain(units.crop(one.label, 60)) for one in predicted],
        x=[one.after / size for one in predicted],
        marker_color=vocabulary.BLUE,
        showlegend=False,
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [(one.high - one.after) / size for one in predicted],
            "arrayminus": [(one.after - one.low) / size for one in predicted],
            "thickness": 1.5,
            "color": vocabulary.PAGE["ink"][dark],
        },
        text=[one.text for one in predicted],
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
    )
    fig.update_layout(template=heatmap_figure.template(dark), bargap=0.3)
    fig.update_xaxes(title=f"step time ({unit})", rangemode="tozero")
    fig.update_yaxes(autorange="reversed", type="category")
    return fig
