"""The range of a prediction from the sources of its error."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

import numpy as np

from gpuscope.trace.columns.table import Array

_STUDENT = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""Student's t for a two-sided 90 % interval with 1, 2… degrees of freedom (NIST/SEMATECH e-Handbook of Statistical
Methods, 1.3.6.7.2); a replay holds at most ten steps."""

MODEL_ERROR = 0.03
INFERRED_ERROR = 0.06
"""Of a change's effect on the step, what its prediction may miss beside what is known to be uncertain, where streams'
waits are recorded, and where they are inferred. Chosen, and checked on simulated jobs (docs/trust.md)."""


def bounds(after: float, cases: Sequence[float], errors: Sequence[float]) -> tuple[int, int]:
    """Where the step lies nine times in ten, ns, of a predicted one.

    `cases` are the steps where what is assumed turns out well and badly: the truth may well be at one of them. `errors`
    are how far each other source may move the step either way, ns, nine times in ten. These are independent, so they
    add up as squares do: that all are at their worst together is rarer than that one is.
    """
    chance = hypot(*errors)
    return max(0, round(min(after, *cases) - chance)), round(max(after, *cases) + chance)


def by_chance(times: Array) -> float | None:
    """How far another run's mean of as many times may lie from that of these, relative, nine times in ten: Student's t
    times the standard error of the difference of two such means. None of fewer than two."""
    if len(times) < 2:
        return None
    quantile = _STUDENT[min(len(times) - 1, len(_STUDENT)) - 1]
    return float(quantile * times.std(ddof=1) * np.sqrt(2 / len(times)) / max(times.mean(), 1.0))
