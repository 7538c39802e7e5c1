"""How often ranges hold, for ranges of every width: the calibration curve.

A range is meant to hold nine truths in ten. If errors are about normal, the same range scaled by z(p) / z(0.9) holds a
share p of them, with z(p) the bounds of the middle share p of a normal value: so one set of predictions shows the
coverage at each level.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import ceil
from statistics import NormalDist, median

from rich.table import Table

from benchmarks.verdicts.drawn_changes import COMBINED, ONE_LINK
from benchmarks.verdicts.predicted import Outcome
from gpuscope.analyzers.replay.contention import MARGINS, ON_ONE_LINK, TOGETHER

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
NOMINAL = 0.9
KINDS_COLUMNS = (
    "change",
    "fitted to",
    "margin",
    "predictions",
    "refused",
    "median error",
    "nine in ten within",
    "longer",
    "ranges that hold",
    "median width",
    "lacking",
)


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


def missing(outcome: Outcome) -> float:
    """By how much of the step either end of its range lies too near for the truth; less than 0 where it is held."""
    assert outcome.told is not None
    return max(outcome.told.low - outcome.after, outcome.after - outcome.told.high) / outcome.told.after


def fitted(missed: Sequence[float]) -> float:
    """What ranges need beyond theirs to hold nine truths in ten of others like these: the split-conformal quantile (Y.
    Romano and others, «Conformalized quantile regression», NeurIPS 2019)."""
    place = ceil(NOMINAL * (len(missed) + 1))
    return sorted(missed)[place - 1] if place <= len(missed) else float("inf")


def lacking(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """By kind of change what its ranges need beyond theirs, in shares of the step; two changes at once beyond that of
    the one which needs more."""
    found: dict[str, float] = {}
    kinds = {one.family: one.of for one in outcomes}
    for kind in sorted(kinds, key=lambda kind: len(kinds[kind])):
        own = [one for one in outcomes if one.family == kind and one.told is not None]
        found[kind] = fitted([missing(one) - max((found[other] for other in one.of), default=0.0) for one in own])
    return found


def by_kind(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """By kind of change its margin, how predictions and their ranges do, and what these lack beyond the margin: rows of
    `KINDS_COLUMNS`. «Longer»: how many predict a longer step than is so."""
    rows = []
    needed = lacking(outcomes)
    for kind in [*dict.fromkeys(one.family for one in outcomes), "all"]:
        asked = [one for one in outcomes if kind in (one.family, "all")]
        own = [(one, one.told) for one in asked if one.told is not None]
        errors = [told.after / one.after - 1 for one, told in own]
        sizes = sorted(map(abs, errors))
        held = sum(one.inside for one, _ in own)
        width = median((told.high - told.low) / told.after for _, told in own)
        margin = _OWN.get(kind)
        rows.append(
            [
                kind,
                str(margin.predictions) if margin else "",
                f"{margin.share:+.2%}" if margin else "",
                str(len(own)),
                str(len(asked) - len(own)),
                f"{median(sizes):.2%}",
                f"{sizes[ceil(NOMINAL * len(sizes)) - 1]:.1%}",
                f"{sum(error > 0 for error in errors) / len(own):.0%}",
                f"{held} ({held / len(own):.0%})",
                f"{width:.1%}",
                f"{needed[kind]:+.4f}" if kind in needed else "",
            ]
        )
    return rows


_OWN = {kind.__name__: margin for kind, margin in MARGINS.items()} | {ONE_LINK: ON_ONE_LINK, COMBINED: TOGETHER}
