"""Logarithmic axes: ranges that always hold labelled ticks, and labels that are whole numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

ROOM = 0.06
"""Of the range, left free at each end."""
FINE = 3
"""Decades up to which 2 and 5 of each are labelled too."""


def log_axis(values: Iterable[float]) -> dict[str, Any]:
    """An axis for some positive values. With a format of its own: plotly writes 20 as a small «2» without one."""
    low, high = log_range(values)
    return {"type": "log", "range": [low, high], "tickformat": "~r", "dtick": "D2" if high - low <= FINE else 1}


def log_range(values: Iterable[float], least: float = 1.0) -> list[float]:
    """Ends of an axis for some positive values, as powers of ten: at least `least` decades around them."""
    exponents = [math.log10(value) for value in values if value > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    missing = max(least - (high - low), 0) / 2
    room = ROOM * max(high - low, least)
    return [low - missing - room, high + missing + room]
