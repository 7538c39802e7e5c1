"""Whether a change moved what training computes, by the losses of the first steps.

Runs of one command with the same settings differ by the order of sums, or, where the script sets no seed, by all that
is drawn. What the baseline's runs differ by is known; a change may move losses by twice as much, and in any case by
`REDUCTION_ORDER`, for it may change the order of sums itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from gpuscope.instrumented_runtime.tune.measured import Run

REDUCTION_ORDER = 1e-3
"""Of a loss: rounding of 1e-7 in one step grows over the first twenty, by far less than this."""
TIMES = 2.0
ALLOWED = 0.05
"""What changes may move losses by that were allowed to alter training: more is no rounding of a smaller type."""

Losses = Mapping[int, Sequence[float]]


def distance(one: Losses, other: Losses) -> float | None:
    """The largest difference of two losses of the same rank and step, as a fraction; None where none can be compared.
    Infinite where one of them is no number and the other is."""
    pairs = [pair for rank in one.keys() & other.keys() for pair in zip(one[rank], other[rank], strict=False)]
    return max((_apart(*pair) for pair in pairs), default=None)


def own_noise(groups: Sequence[Sequence[Run]]) -> float | None:
    """What runs with the same settings differ by at most; None where no two showed their losses."""
    found = [distance(one.losses, other.losses) for runs in groups for one, other in combinations(runs, 2)]
    known = [one for one in found if one is not None]
    return max(known, default=None)


def compared(groups: Sequence[Sequence[Run]]) -> Literal["equal", "within_noise", "seen_once", "not_seen"]:
    """How the losses of runs with the same settings compare."""
    found = own_noise(groups)
    if found is None:
        return "seen_once" if any(run.losses for runs in groups for run in runs) else "not_seen"
    return "within_noise" if found else "equal"


def limit(groups: Sequence[Sequence[Run]], *, alters: bool) -> float | None:
    """By how much a change may move losses, as a fraction; None where the baseline's were not seen. Until two runs with
    the same settings showed theirs, these are taken to be equal."""
    if not any(run.losses for runs in groups for run in runs):
        return None
    return max(TIMES * (own_noise(groups) or 0.0), ALLOWED if alters else REDUCTION_ORDER)


def moved(best: Sequence[Run], trial: Run) -> float | None:
    """How far the losses of a run are from the nearest of the best's; None where they can't be compared."""
    found = [distance(run.losses, trial.losses) for run in best]
    known = [one for one in found if one is not None]
    return min(known, default=None)


def _apart(one: float, other: float) -> float:
    if math.isfinite(one) and math.isfinite(other):
        return abs(one - other) / max(abs(one), abs(other), 1e-12)
    return 0.0 if math.isfinite(one) == math.isfinite(other) else math.inf
