"""Keep or roll back: a change is kept where its whole interval lies beyond one per cent, as `gpuscope diff` judges
an improvement, and its losses are those of the baseline.

One run shows most changes to gain nothing. What looks faster is run again, at most `ROUNDS` times: beside the best each
time where the noise is high (best, change, best, change), so that what drifts meets both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuscope.instrumented_runtime.tune import losses
from gpuscope.instrumented_runtime.tune.measured import Run
from gpuscope.instrumented_runtime.tune.noise import Noise, change, near, noise
from gpuscope.schema.tune_document import Outcome
from gpuscope.welch import Interval

LEAST_GAIN = 0.01
"""Of the step: `gpuscope diff`'s threshold, below which two runs of one job differ by themselves."""
ROUNDS, LEAST_ROUNDS = 5, 2
"""Runs of a change at most, and at least of one that is kept: its interval has to hold twice in a row."""
WIDER = 1.15
"""Times a single comparison's interval: a session has several changes and looks at each after every run. With it noise
alone keeps a change in at most 5 of 100 sessions (tests/runtime/tune/test_decision.py), whatever the noise."""

Take = Callable[[Literal["best", "trial"]], Run | None]
"""Makes one more run; None where the budget allows none."""


@dataclass
class Judgement:
    """What became of a change, with the runs that say so."""

    outcome: Outcome
    runs: list[Run] = field(default_factory=list)
    interval: Interval | None = None
    """Of the logarithm of its step by the best's."""
    detail: str = ""
    moved: float | None = None
    """How far its losses are from the best's, as a fraction."""
    limit: float | None = None


@dataclass
class Standing:
    """What a change is judged against. Runs of the best that are repeated join `best`."""

    baseline: list[Run]
    best: list[Run]
    groups: list[list[Run]]
    """All groups of runs with the same settings so far, these two included: they tell the noise."""

    def noise(self, trial: Sequence[Run] = ()) -> Noise | None:
        """Of runs like the best's, and of a trial's own."""
        others = [one for one in near(self.groups, self.best) if one is not trial]
        return noise([*others, trial])


def judge(standing: Standing, take: Take, *, alters: bool = False) -> Judgement:
    """Run a change until it is settled; the best is run again beside it where that helps."""
    made = Judgement("not_beyond_chance")
    standing.groups.append(made.runs)
    for number in range(ROUNDS):
        if number and not _decisive(made.interval):
            beside = take("best")
            if beside is None:
                made.outcome = "budget"
                return made
            if beside.failed is None:
                standing.best.append(beside)
        run = take("trial")
        if run is None or run.failed is not None:
            made.outcome, made.detail = (run.failed or "failed", run.detail) if run else ("budget", "")
            return made
        made.runs.append(run)
        if (wrong := _losses(standing, run, made, alters=alters)) is not None:
            made.outcome = wrong
            return made
        known, before = standing.noise(made.runs), made.interval
        if known is None:
            continue
        made.interval = change(standing.best, made.runs, known).scaled(WIDER)
        if (made.interval.low + made.interval.high) / 2 > math.log1p(-LEAST_GAIN):
            made.outcome = "no_gain"
            return made
        if _decisive(before) and _decisive(made.interval):
            made.outcome = "faster"
            return made
    return made


def confirmed(standing: Standing, take: Take) -> tuple[bool, Interval | None]:
    """Whether all that was kept is faster than the baseline, both run once more where the budget allows it."""
    for side, runs in (("best", standing.best), ("trial", standing.baseline)):
        again = take(side)  # type: ignore[arg-type]
        if again is not None and again.failed is None:
            runs.append(again)
    interval = overall(standing)
    return interval is not None and interval.high < 0, interval


def overall(standing: Standing) -> Interval | None:
    """The interval of the logarithm of best / baseline."""
    known = noise([standing.baseline, standing.best])
    return None if known is None else change(standing.baseline, standing.best, known)


def _decisive(interval: Interval | None) -> bool:
    return interval is not None and interval.high < math.log1p(-LEAST_GAIN)


def _losses(standing: Standing, run: Run, made: Judgement, *, alters: bool) -> Outcome | None:
    """What is wrong with a run's losses beside the best's; None where nothing is, or the baseline's were not seen."""
    made.limit = losses.limit(standing.baseline, alters=alters)
    if made.limit is None:
        return None
    made.moved = losses.moved(standing.best, run)
    if made.moved is None:
        return "losses_not_seen"
    return "losses_moved" if made.moved > made.limit else None
