"""Traffic matrix, and a drawing of the links inside a host."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, pi, sin

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.schema.nccl_sections import TopologyEntry, TrafficEntry
from gpuscope.words import palette, units

LINK_LOOKS = {
    "nvlink": (palette.GREEN, "solid"),
    "nvswitch": (palette.GREEN, "solid"),
    "pcie": (palette.BLUE, "dot"),
    "net": (palette.ORANGE, "dash"),
}
"""Colour and dash of each kind of link; paths of `topo -m` by what they cross."""


def matrix(rows: Sequence[TrafficEntry], dark: bool) -> go.Figure:
    """Sender × receiver: bytes where all sizes are known, else time."""
    ranks = sorted({rank for row in rows for rank in (row["rank"], row["peer"])})
    at = {rank: place for place, rank in enumerate(ranks)}
    sized = all(row["bytes"] is not None for row in rows)
    values: list[list[int | None]] = [[None] * len(ranks) for _ in ranks]
    texts = [[""] * len(ranks) for _ in ranks]
    for row in rows:
        y, x = at[row["rank"]], at[row["peer"]]
        values[y][x] = row["bytes"] if sized else row["dur_ns"]
        texts[y][x] = (
            f"rank {row['rank']} to rank {row['peer']}: {_bytes(row)}, {row['count']} messages, "
            f"{units.duration(row['dur_ns'])}"
        )
    names = [str(rank) for rank in ranks]
    fig = go.Figure(
        go.Heatmap(
            z=values,
            x=names,
            y=names,
            text=texts,
            hovertemplate="%{text}<extra></extra>",
            colorscale=theme.SEQUENTIAL,
            zmin=0,
            xgap=1,
            ygap=1,
            colorbar={"title": "bytes" if sized else "ns", "tickformat": ".3s"},
        )
    )
    fig.update_layout(template=theme.template(dark), margin_t=40)  # room for the buttons
    fig.update_xaxes(title="receiving rank", type="category", showgrid=False)
    fig.update_yaxes(title="sending rank", type="category", autorange="reversed", showgrid=False)
    return fig


def _bytes(row: TrafficEntry) -> str:
    return "size not recorded" if row["bytes"] is None else units.memory(row["bytes"])


def topology(rows: Sequence[TopologyEntry], dark: bool) -> go.Figure:
    """The devices of one host on a circle and the links between them."""
    nodes = sorted({node for row in rows for node in (row["node"], row["peer"])})
    place = {node: (cos(2 * pi * i / len(nodes)), sin(2 * pi * i / len(nodes))) for i, node in enumerate(nodes)}
    fig = go.Figure()
    for link in sorted({row["link"] for row in rows}):
        own = [row for row in rows if row["link"] == link]
        colour, dash = look(link)
        x: list[float | None] = []
        y: list[float | None] = []
        for row in own:
            (ax, ay), (bx, by) = place[row["node"]], place[row["peer"]]
            x += [ax, bx, None]
            y += [ay, by, None]
        fig.add_scatter(
            x=x,
            y=y,
            mode="lines",
            name=plain(link),
            line={"color": colour, "dash": dash, "width": 1.5},
            hoverinfo="skip",
        )
        middle = [
            ((place[r["node"]][0] + place[r["peer"]][0]) / 2, (place[r["node"]][1] + place[r["peer"]][1]) / 2)
            for r in own
        ]
        fig.add_scatter(
            x=[at[0] for at in middle],
            y=[at[1] for at in middle],
            mode="markers",
            showlegend=False,
            marker={"size": 10, "color": "rgba(0,0,0,0)"},
            text=[_link(row) for row in own],
            hovertemplate="%{text}<extra></extra>",
        )
    fig.add_scatter(
        x=[place[node][0] for node in nodes],
        y=[place[node][1] for node in nodes],
        mode="markers+text",
        text=[plain(units.crop(node, 20)) for node in nodes],
        textposition=[_anchor(place[node]) for node in nodes],
        marker={"size": 16, "color": [palette.SKY if "GPU" in node.upper() else palette.GREY for node in nodes]},
        showlegend=False,
        hoverinfo="skip",
    )
    fig.update_layout(template=theme.template(dark))
    fig.update_xaxes(visible=False, range=[-1.6, 1.6])
    fig.update_yaxes(visible=False, range=[-1.25, 1.25])
    return fig


def look(link: str) -> tuple[str, str]:
    """Colour and dash of a link, or of a path of `nvidia-smi topo -m` (NV12, PIX, PXB, PHB, NODE, SYS)."""
    if link in LINK_LOOKS:
        return LINK_LOOKS[link]
    if link.startswith("NV"):
        return LINK_LOOKS["nvlink"]
    if link in ("PIX", "PXB"):
        return LINK_LOOKS["pcie"]
    return palette.GREY, "dot"


def _link(row: TopologyEntry) -> str:
    width = f" ×{row['width']}" if row["width"] else ""
    rate = f", {units.bandwidth(row['rate_gbps'])} per direction" if row["rate_gbps"] else ""
    return plain(f"{row['node']} – {row['peer']}: {row['link']}{width}{rate}")


def _anchor(at: tuple[float, float]) -> str:
    vertical = "top" if at[1] > 0.3 else "bottom" if at[1] < -0.3 else "middle"
    return f"{vertical} {'right' if at[0] > 0.05 else 'left' if at[0] < -0.05 else 'center'}"
