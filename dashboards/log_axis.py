"""Ranges of logarithmic axes that always hold labelled ticks."""

from __future__ import annotations

import math
from collections.abc import Iterable

ROOM = 0.06
"""Of the range, left free at each end."""


def log_range(values: Iterable[float], least: float = 1.0) -> list[float]:
    """Ends of an axis for some positive values, as powers of ten: at least `least` decades around them."""
    exponents = [math.log10(value) for value in values if value > 0] or [0.0]
    low, high = min(exponents), max(exponents)
    missing = max(least - (high - low), 0) / 2
    room = ROOM * max(high - low, least)
    return [low - missing - room, high + missing + room]
