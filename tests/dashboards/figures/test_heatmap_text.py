"""Text in cells and boxes is legible on every colour that they can have."""

from __future__ import annotations

from itertools import pairwise

import pytest

pytest.importorskip("plotly")

from plotly.colors import find_intermediate_color, hex_to_rgb

from gpuscope.dashboards.figures.gains_figure import icicle
from gpuscope.dashboards.figures.heatmap_figure import heatmap
from gpuscope.report.html.drawing import COLOURS

STEPS = 50


def luminance(rgb: tuple[float, ...]) -> float:
    """WCAG's, of a colour with parts from 0 to 255."""
    red, green, blue = (one / 3294.6 if one <= 10.31 else ((one / 255 + 0.055) / 1.055) ** 2.4 for one in rgb)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize(("deviation", "ranks"), [(False, 2), (True, 2), (True, 1)], ids=["late", "off", "alone"])
def test_text_has_a_contrast_of_four_and_a_half(dark: bool, deviation: bool, ranks: int) -> None:
    cells = {(rank, step): 1_000_000 * (1 + rank + step) for rank in range(ranks) for step in range(2)}
    drawn = heatmap(cells, "step time", dark, deviation).data[0]
    text = luminance(hex_to_rgb(drawn.textfont.color))
    colours = [hex_to_rgb(colour) for _, colour in drawn.colorscale]
    for low, high in pairwise(colours):
        for part in range(STEPS + 1):
            cell = luminance(find_intermediate_color(low, high, part / STEPS))
            assert contrast(cell, text) >= 4.5


def test_names_in_a_flame_graph_have_it_too_on_dark_pages() -> None:
    drawn = icicle([], dark=True).data[0]
    assert drawn.leaf.opacity == 1  # else the page shows through
    text = luminance(hex_to_rgb(drawn.textfont.color))
    assert all(contrast(luminance(hex_to_rgb(colour)), text) >= 4.5 for colour in COLOURS.values())
