"""Compares a case's turns: the step predicted from each turn before, and the step measured in the turn after.

Other load on the machine slows both turns of a round equally, and some rounds more than others. So each round's
ratio of after to before is compared; times are the median before, multiplied by the medians of these ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import gpuscope
from benchmarks.advice.cases import Case
from gpuscope.analyzers.base.lanes import summarise, views
from gpuscope.analyzers.facts.steady_state import steady_state
from gpuscope.analyzers.what_if_changes import Predicted, Refused


@dataclass(frozen=True)
class Outcome:
    """Medians over the rounds of a case, ns per step; or why nothing was predicted."""

    case: Case
    before: float
    measured: float
    predicted: float = 0.0
    low: float = 0.0
    high: float = 0.0
    rounds: int = 0
    """Rounds in which the replay gave a prediction."""
    refused: str = ""
    """Why it gave none in the other rounds."""

    @property
    def held(self) -> bool:
        return self.low <= self.measured <= self.high

    @property
    def error(self) -> float:
        return abs(self.predicted - self.measured) / self.measured


def outcome(case: Case, folder: Path) -> Outcome:
    """The medians of a case that was recorded into `folder`."""
    before, measured, refused = [], [], ""
    predictions: list[Predicted] = []
    for place in range(len(list(folder.glob("before*")))):
        before.append(step_ns(folder / f"before{place}"))
        measured.append(step_ns(folder / f"after{place}") / before[-1])
        replayer = gpuscope.analyze(folder / f"before{place}").replayer
        found = replayer.predict(list(case.changes)) if replayer is not None else Refused("nothing was replayed")
        if isinstance(found, Predicted):
            predictions.append(found)
        else:
            refused = found.why
    base = median(before)
    found_ratios = {
        name: base * median(getattr(one, field) / one.before for one in predictions)
        for name, field in (("predicted", "after"), ("low", "low"), ("high", "high"))
        if predictions
    }
    return Outcome(case, base, base * median(measured), **found_ratios, rounds=len(predictions), refused=refused)


def step_ns(folder: Path) -> float:
    """«The step» of a recording, as a prediction's `before` and `after` are (docs/definitions.md#which-step-time)."""
    trace = gpuscope.open_trace(folder)
    found = steady_state([summarise(trace, view) for view in views(trace)]).step_ns
    if found is None:
        raise SystemExit(f"{folder} holds no steady steps: record the case again")
    return float(found)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as Markdown."""
    lines = [
        "| change | before | predicted | range | measured | error | held |",
        "|---|--:|--:|--:|--:|--:|---|",
    ]
    for one in outcomes:
        if not one.rounds:
            lines.append(f"| {one.case.name} | | refused: {one.refused} | | {one.measured / 1e6:.1f} ms | | |")
            continue
        lines.append(
            f"| {one.case.name} | {one.before / 1e6:.1f} ms | {one.predicted / 1e6:.1f} ms "
            f"| {one.low / 1e6:.1f}–{one.high / 1e6:.1f} | {one.measured / 1e6:.1f} ms | {one.error:.1%} "
            f"| {'yes' if one.held else 'no'} |"
        )
    return "\n".join(lines)


def summary(outcomes: Sequence[Outcome]) -> str:
    """How many ranges held, and the median error, in a sentence."""
    predicted = [one for one in outcomes if one.rounds]
    if not predicted:
        return "Nothing was predicted."
    refused = f", {len(outcomes) - len(predicted)} refused" if len(predicted) < len(outcomes) else ""
    return (
        f"{sum(one.held for one in predicted)} of {len(predicted)} ranges hold the measured time{refused}; "
        f"median error {median(one.error for one in predicted):.1%}, worst {max(one.error for one in predicted):.1%}."
    )
