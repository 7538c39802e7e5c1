"""The range of a prediction from the sources of its error."""

from __future__ import annotations

from collections.abc import Sequence
from math import hypot

import numpy as np

from gpuscope.averages import quantile
from gpuscope.student import student
from gpuscope.trace.columns.table import Array

_MISSED = 0.05
"""Probability on either side of a range that holds nine times in ten."""

MODEL_ERROR = 0.03
"""Of a change's effect on the step, what its prediction may miss beside what is known to be uncertain, on a CPU."""


def bounds(cases: Sequence[float], errors: Sequence[float], margin: float = 0.0) -> tuple[int, int]:
    """Where the step lies nine times in ten, ns, of a predicted one.

    `cases` are the steps as expected, and where what is assumed turns out well and badly: the truth may be at any.
    `errors` are how far each other source may move the step either way, ns, nine times in ten. These are independent,
    so they add up as squares do: that all are at their worst together is rarer than that one is. Beyond them lies a
    `margin`.
    """
    beyond = hypot(*errors) + margin
    return max(0, round(min(cases) - beyond)), round(max(cases) + beyond)


def by_chance(times: Array) -> float | None:
    """How far another run's mean of as many times may lie from that of these, relative, nine times in ten: Student's t
    times the standard error of the difference of two such means. None of fewer than two."""
    if len(times) < 2:
        return None
    return float(_quantile(times) * times.std(ddof=1) * np.sqrt(2 / len(times)) / max(times.mean(), 1.0))


SPREAD_OF_QUARTILES = 1.349
"""Between the quartiles of a normal distribution, in standard deviations…"""
OF_MEDIAN = 1.2533
"""… and the standard error of a median by that of a mean, of one."""
LEAST_STEPS = 4
"""Steps from which quartiles tell more than all of them."""
LEAST_CHANCE = 0.001
"""Of the step: quartiles of so few may lie together by chance."""


def median_by_chance(times: Array) -> float | None:
    """The same of medians, as «the step» is one: the first step of a recording, which nothing held up, or a single slow
    one says nothing of how far the median may lie off. The spread is that of the middle half."""
    if len(times) < LEAST_STEPS:
        return by_chance(times)
    low, middle, high = (quantile(times.tolist(), part) for part in (0.25, 0.5, 0.75))
    error = (high - low) / SPREAD_OF_QUARTILES * OF_MEDIAN / np.sqrt(len(times))
    return max(LEAST_CHANCE, float(_quantile(times) * error * np.sqrt(2) / max(middle, 1.0)))


def _quantile(times: Array) -> float:
    return student(_MISSED, len(times) - 1)
