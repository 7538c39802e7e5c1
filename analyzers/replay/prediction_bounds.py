"""The range of a prediction from the sources of its error, which are independent of each other."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot


def bounds(after: float, cases: Sequence[float], errors: Sequence[float]) -> tuple[int, int]:
    """Where the step lies nine times in ten, ns, of a predicted one.

    `cases` are the steps where what is assumed turns out well and badly, `errors` how far each other source may move
    the step either way, ns, nine times in ten. Independent errors add up as squares do: that all are at their worst
    together is rarer than that one is.
    """
    low = after - hypot(after - min(after, *cases), *errors)
    high = after + hypot(max(after, *cases) - after, *errors)
    return max(0, round(low)), round(high)
