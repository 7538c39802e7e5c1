"""Counterfactuals: the step that gpuscope predicts for a change, beside the one of the job simulated with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from simulator.counterfactuals import Counterfactual

from gpuscope.analyzers import what_if_changes
from gpuscope.analyzers.run.runner import analyze
from gpuscope.analyzers.what_if_changes import Predicted

OVERCLAIM = 1.5
"""A promised saving of more than this many true ones is an overclaim…"""
NO_CHANGE = "no such change"
NOTICED = 0.02
"""… where the promise is at least this share of the step."""


@dataclass(frozen=True)
class Outcome:
    """Step times in ns. Without a prediction `why` says why there is none."""

    name: str
    family: str
    before: float
    after: float
    told: Predicted | None
    why: str
    of: tuple[str, ...] = ()
    """Families of the changes, of two at once."""

    @property
    def error(self) -> float | None:
        """Relative to the true step with the change."""
        return None if self.told is None else self.told.after / self.after - 1

    @property
    def inside(self) -> bool:
        return self.told is not None and self.told.low <= self.after <= self.told.high

    @property
    def overclaims(self) -> bool:
        if self.told is None:
            return False
        promised = self.told.before - self.told.after
        return promised > NOTICED * self.told.before and promised > OVERCLAIM * (self.before - self.after)


def predict(case: Counterfactual, folder: Path) -> Outcome:
    """Analyse the job as it is, and ask for the change."""
    before, after = case.before.truth.step_ns, case.after.truth.step_ns
    replayer = analyze(case.before.write(folder)).replayer
    if not case.changes:
        return Outcome(case.name, case.family, before, after, None, NO_CHANGE)
    if replayer is None:
        return Outcome(case.name, case.family, before, after, None, "no replay")
    asked: list[Any] = [getattr(what_if_changes, name)(**arguments) for name, arguments in case.changes]
    told = replayer.predict(asked)
    if isinstance(told, Predicted):
        return Outcome(case.name, case.family, before, after, told, "")
    return Outcome(case.name, case.family, before, after, None, told.why)


def prediction_table(outcomes: Sequence[Outcome]) -> Table:
    """Truth against prediction, case by case; times in ms."""
    table = Table(
        "job", "family", "before", "after", "told before", "told after", "low", "high", "error", "inside", "note"
    )
    for one in outcomes:
        told = one.told
        times = [one.before, one.after] + ([told.before, told.after, told.low, told.high] if told else [])
        cells = [f"{time / 1e6:.3f}" for time in times] + [""] * (6 - len(times))
        error = "" if one.error is None else f"{one.error:+.1%}"
        note = "OVERCLAIM" if one.overclaims else one.why
        table.add_row(one.name, one.family, *cells, error, "yes" if one.inside else "NO" if told else "", note)
    return table


def prediction_summary(outcomes: Sequence[Outcome]) -> str:
    """Median error, how many ranges hold, overclaims, refusals."""
    told = [one for one in outcomes if one.error is not None]
    if not told:
        return "nothing predicted"
    asked = [one for one in outcomes if one.why != NO_CHANGE]
    errors = [abs(one.error or 0.0) for one in told]
    return (
        f"{len(told)} of {len(asked)} predicted: median error {median(errors):.1%}, worst {max(errors):.1%}; "
        f"{sum(one.inside for one in told)} ranges hold the truth; {sum(one.overclaims for one in told)} overclaims"
    )
