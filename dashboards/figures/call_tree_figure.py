"""Device and idle time by place of the program, as an icicle: click a place to look into it."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from gpuscope.dashboards import theme
from gpuscope.dashboards.plain_text import plain
from gpuscope.report.html.flame_drawing import COLOURS
from gpuscope.report.view import places
from gpuscope.schema.call_tree_section import PlaceEntry
from gpuscope.words import palette, units

NAME = 200


def icicle(entries: Sequence[PlaceEntry], dark: bool) -> go.Figure:
    """Each place below the one that called it, as wide as its device and idle time."""
    within = places.inclusive(entries)
    said = [tuple(units.duration(ns) for ns in within[entry["id"]]) for entry in entries]
    fig = go.Figure()
    fig.add_icicle(
        ids=[str(entry["id"]) for entry in entries],
        parents=["" if entry["parent"] is None else str(entry["parent"]) for entry in entries],
        labels=[plain(units.crop(entry["name"], NAME)) for entry in entries],
        values=[within[entry["id"]][0] + within[entry["id"]][2] for entry in entries],
        customdata=[[entry["kind"], *words] for entry, words in zip(entries, said, strict=True)],
        branchvalues="total",
        tiling={"orientation": "v"},
        marker={"colors": [COLOURS[entry["kind"]] for entry in entries]},
        leaf={"opacity": 1},
        textfont={"color": palette.PAGE["ink"][False]},  # dark on all of these, on dark pages too
        hovertemplate="%{label} (%{customdata[0]})<br>device %{customdata[1]}, exposed communication %{customdata[2]}, "
        "idle %{customdata[3]}<extra></extra>",
        maxdepth=14,
    )
    fig.update_layout(
        template=theme.template(dark),
        uniformtext={"minsize": 9, "mode": "hide"},
        margin={"t": 8, "l": 8, "r": 8, "b": 8},
    )
    return fig
