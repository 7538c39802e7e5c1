"""How often ranges hold, for ranges of every width: the calibration curve.

A range is meant to hold nine truths in ten. If errors are about normal, the same range scaled by z(p) / z(0.9) holds a
share p of them, with z(p) the bounds of the middle share p of a normal value: so one set of predictions shows the
coverage at each level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import NormalDist, median

from rich.table import Table

from benchmarks.verdicts.predicted import Outcome

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
NOMINAL = 0.9


def scale(level: float) -> float:
    """Width of the range that is to hold a share of the truths, by that of nine in ten."""
    return _bound(level) / _bound(NOMINAL)


def _bound(level: float) -> float:
    return NormalDist().inv_cdf(0.5 + level / 2)


def distance(outcome: Outcome) -> float:
    """How far the truth lies from the predicted step, by half the range on that side."""
    assert outcome.told is not None
    after, truth = outcome.told.after, outcome.after
    half = outcome.told.high - after if truth > after else after - outcome.told.low
    off = abs(truth - after)
    return off / half if half else 0.0 if off <= 1 else float("inf")


def coverage(distances: Sequence[float], level: float) -> float:
    """The share of truths within the ranges of a level."""
    return sum(one <= scale(level) for one in distances) / len(distances)


def calibration_table(outcomes: Iterable[Outcome]) -> Table:
    """Coverage by level, of all predictions and by family; last the median width, (high - low) / predicted."""
    groups: Mapping[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        if one.told is not None:
            groups["all"].append(one)
            groups[one.family].append(one)
    table = Table("family", "predictions", *(f"{level:.0%}" for level in LEVELS), "median width")
    for family, own in groups.items():
        distances = [distance(one) for one in own]
        width = median((one.told.high - one.told.low) / one.told.after for one in own if one.told is not None)
        cells = (f"{coverage(distances, level):.0%}" for level in LEVELS)
        table.add_row(family, str(len(own)), *cells, f"{width:.1%}")
    return table
