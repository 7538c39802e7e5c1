"""The range of a prediction from the sources of its error."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot


def bounds(after: float, cases: Sequence[float], errors: Sequence[float]) -> tuple[int, int]:
    """Where the step lies nine times in ten, ns, of a predicted one.

    `cases` are the steps where what is assumed turns out well and badly: the truth may well be at one of them. `errors`
    are how far each other source may move the step either way, ns, nine times in ten. These are independent, so they
    add up as squares do: that all are at their worst together is rarer than that one is.
    """
    chance = hypot(*errors)
    return max(0, round(min(after, *cases) - chance)), round(max(after, *cases) + chance)
