"""The series colours and the light and dark templates of every figure."""

from __future__ import annotations

from functools import cache
from typing import Any

import plotly.graph_objects as go

from gpuscope.words import palette

SERIES = (
    palette.BLUE,
    palette.ORANGE,
    palette.GREEN,
    palette.VERMILLION,
    palette.SKY,
    palette.PURPLE,
    palette.YELLOW,
    palette.GREY,
)
"""Default order of series without a colour of their own."""

SEVERITY_COLOURS = {"high": "red", "medium": "orange", "low": "gray"}
"""Names of dash-mantine-components' palette; never shown without the word."""
SEQUENTIAL = "Cividis"
"""Matplotlib's colour-blind-safe scale (Nuñez et al. 2018)."""
AROUND = (("#67A9CF", "#F7F7F7", "#F1A340"), ("#2166AC", "#252A2F", "#B35806"))
"""Below a middle, at it, above it, on light and dark pages: blue and orange are told apart by the colour-blind, and…"""
ON_CELLS = ("#111111", "#FFFFFF")
"""… text in cells of any of them has a contrast of 4.5; what plotly chooses by itself may have 2."""

MANTINE: dict[str, Any] = {
    "primaryColor": "blue",
    "primaryShade": {"light": 8, "dark": 8},
    "defaultRadius": "sm",
    "autoContrast": True,
    "fontFamily": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif",
    "components": {"Anchor": {"defaultProps": {"underline": "always"}}},
}
"""The components' theme: shades dark enough that text on them, or in them, has a contrast of 4.5; links within text
are told by more than their colour."""

PAGE_CSS = f":root {{ {palette.page_css(False)} }} :root[data-mantine-color-scheme=dark] {{ {palette.page_css(True)} }}"
"""The colours of pages, which assets/gpuscope.css uses."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


def pattern(shape: str) -> dict[str, Any]:
    """The pattern of a bar: dark strokes over its colour, or none."""
    return {"shape": shape, "size": 6, "fillmode": "overlay", "fgcolor": "#000000", "fgopacity": 0.45}


@cache
def template(dark: bool) -> go.layout.Template:
    """The template of figures on a light or dark page."""
    text, line = ("#C9C9C9", "#4A4A4A") if dark else ("#333333", "#DDDDDD")
    axis: dict[str, Any] = {
        "gridcolor": line,
        "zerolinecolor": line,
        "linecolor": line,
        "ticks": "outside",
        "tickcolor": line,
        "automargin": True,
        "title": {"standoff": 8},
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12, "color": text},
            "colorway": list(SERIES),
            "xaxis": axis,
            "yaxis": axis,
            "margin": {"l": 60, "r": 28, "t": 56, "b": 40},
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1, "x": 0, "maxheight": 0.6, "font": {"size": 11}},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": text, "activecolor": palette.BLUE},
            "hoverlabel": {"font": {"family": FONT}, "align": "left", "namelength": -1},
            "colorscale": {"sequential": SEQUENTIAL},
        }
    )
