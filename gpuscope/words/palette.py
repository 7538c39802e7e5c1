"""The colours of every front: Okabe and Ito, Color Universal Design (2008), for the colour-blind."""

from __future__ import annotations

BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILLION = "#D55E00"
SKY = "#56B4E9"
YELLOW = "#F0E442"
PURPLE = "#CC79A7"
GREY = "#8C8C8C"
