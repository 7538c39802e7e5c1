"""The colours of every front: Okabe and Ito, Color Universal Design (2008), for the colour-blind; and of pages."""

from __future__ import annotations

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
SKY = "#56B4E9"
YELLOW = "#F0E442"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"

PAGE = {
    "page": ("#f6f7f8", "#14171a"),
    "card": ("#ffffff", "#1c2024"),
    "ink": ("#1c1e21", "#e8eaed"),
    "faint": ("#5d646c", "#a3abb3"),
    "line": ("#d9dcdf", "#363c42"),
    "mark": ("#b0004e", "#ff7ab0"),
    "high": ("#b3261e", "#ff8a80"),
    "medium": ("#8a5a00", "#f2b84b"),
    "low": ("#4b5563", "#b6bec7"),
    "good": ("#1b6e3c", "#7ddc9f"),
    "idle-paper": ("#e9ebed", "#2a2f35"),
    "link": ("#0b57a4", "#8ab8f0"),
}
"""Of a page, light and dark: text on `page` and `card` has a contrast of 4.5 and more."""


def page_css(dark: bool) -> str:
    """Them as CSS variables."""
    return " ".join(f"--{name}: {colours[dark]};" for name, colours in PAGE.items())
