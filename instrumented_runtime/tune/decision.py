"""Keep or roll back: a change is kept where its whole interval lies beyond one per cent, as `gpuscope diff` judges
an improvement, and its losses are those of the baseline.

One run shows most changes to gain nothing, and a large gain: one beyond what runs differ by on a busy machine. What
looks faster but is not as clear, or gains nothing but should for certain, is run again, at most `ROUNDS` times, beside
the best each time (best, change, best, change), so that what drifts meets both. Where the budget ends before, a change
that is predicted to gain for certain and is ahead by more than equal runs differ stays: both say the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from gpuscope.instrumented_runtime.tune import losses
from gpuscope.instrumented_runtime.tune.candidates import LEAST_GAIN
from gpuscope.instrumented_runtime.tune.measured import Run, better_known, step_ns
from gpuscope.instrumented_runtime.tune.noise import Noise, assumed, change, near, noise, with_prior
from gpuscope.schema.tune_document import Outcome
from gpuscope.welch import Interval
from gpuscope.words import units

ROUNDS = 20
"""Runs of a change at most."""
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
    refused: Run | None = None
    """The run that could not make all of its changes."""
    settled: bool = True
    """Whether further runs would not change it."""
    moved: float | None = None
    """How far its losses are from the best's, as a fraction."""
    limit: float | None = None
    sure: float = 1.0
    """The ratio of the steps that it should lead to at least: that there is no gain takes runs that contradict it."""

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval alone shows the gain."""
        return _decisive(self.interval)


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

    def repeat(self, run: Run) -> None:
        """One more run of the best."""
        self.best[:] = better_known(self.best, run)


def judge(
    standing: Standing,
    take: Take,
    *,
    alters: bool = False,
    before: Sequence[Run] = (),
    rounds: int = ROUNDS,
    sure: float = 1.0,
) -> Judgement:
    """Run a change until it is settled, or `rounds` times, the runs of it `before` first; the best is run again beside
    it where that helps."""
    made, ready = Judgement("not_beyond_chance", sure=sure), list(before)
    standing.groups.append(made.runs)
    for number in range(rounds):
        if number and not ready and not _beside(standing, take, made):
            return _at_the_end(standing, made)
        run = ready.pop(0) if ready else take("trial")
        if run is None:
            return _at_the_end(standing, made)
        if run.failed is not None:
            made.outcome, made.detail = run.failed, run.detail
            if run.refused:
                made.refused, made.detail = run, "; ".join(run.refused.values())
            return made
        made.runs.append(run)
        wrong = _losses(standing, run, made, alters=alters)
        if wrong == "losses_moved" and losses.own_noise([standing.baseline, standing.best]) is None:
            # What runs differ by without any change is not known yet.
            if not _beside(standing, take, made):
                return made
            wrong = _losses(standing, run, made, alters=alters)
        if wrong is not None:
            made.outcome = wrong
            return made
        known = _weigh(standing, made)
        hopeless = known is not None and _contradicted(made) and _hopeless(made, known, len(standing.best))
        if made.outcome in ("no_gain", "faster") or hopeless:
            return made
    made.settled = rounds >= ROUNDS
    return made


def _at_the_end(standing: Standing, made: Judgement) -> Judgement:
    """The budget is spent."""
    made.outcome = "budget"
    if made.runs:  # the best may have been run again
        _weigh(standing, made)
    if made.outcome == "budget" and made.runs and made.sure < 1 and ahead(standing, made.runs):
        made.outcome = "faster"
    return made


def ahead(standing: Standing, runs: Sequence[Run]) -> bool:
    """Whether these runs are faster than the best by more than equal runs differ, nine times in ten."""
    apart = assumed(standing.noise(runs)).apart(len(standing.best), len(runs))
    return math.log(step_ns(standing.best) / step_ns(runs)) > apart


def _weigh(standing: Standing, made: Judgement) -> Noise | None:
    """Set a change's interval, and its outcome where that settles it. Returns the noise that it rests on."""
    known, last = standing.noise(made.runs), made.interval
    made.interval = change(standing.best, made.runs, assumed(known)).scaled(WIDER)
    clear = change(standing.best, made.runs, with_prior(known)).scaled(WIDER)
    if (made.interval.low + made.interval.high) / 2 > math.log1p(-LEAST_GAIN):
        made.outcome = "no_gain" if _contradicted(made) else made.outcome
    elif _decisive(clear) or (_decisive(last) and _decisive(made.interval)):
        made.outcome = "faster"
    return known


def _contradicted(made: Judgement) -> bool:
    """Whether its runs show that it leads to less than is predicted for certain, or nothing is."""
    return made.sure == 1 or (made.interval is not None and made.interval.low > math.log(made.sure))


def _hopeless(made: Judgement, known: Noise, best: int) -> bool:
    """Whether all rounds would hardly settle it: not even with a gain one standard error larger than measured."""
    assert made.interval is not None
    count = len(made.runs)
    middle = (made.interval.low + made.interval.high) / 2 - known.fraction * math.sqrt(1 / best + 1 / count)
    foreseen = Noise(known.variance, known.freedom + 2 * (ROUNDS - count)).interval(middle, ROUNDS, ROUNDS)
    return not _decisive(foreseen.scaled(WIDER))


def _beside(standing: Standing, take: Take, made: Judgement) -> bool:
    """Run the best once more; False where the budget does not allow it."""
    run = take("best")
    if run is None:
        made.outcome = "budget"
        return False
    if run.failed is None:
        standing.repeat(run)
    return True


def clearly_faster(standing: Standing) -> bool:
    """Whether the best, run twice or more, is faster than the baseline beyond what runs differ by on a busy machine."""
    known = noise([standing.baseline, standing.best])
    return len(standing.best) > 1 and _decisive(change(standing.baseline, standing.best, with_prior(known)))


def confirmed(standing: Standing, take: Take) -> bool:
    """Whether all that was kept is faster than the baseline, both run once more where the budget allows it."""
    for side, runs in (("trial", standing.baseline), ("best", standing.best)):
        again = take(side)  # type: ignore[arg-type]
        if again is not None and again.failed is None:
            runs.append(again)
    interval = overall(standing)
    return interval.high < 0


def overall(standing: Standing) -> Interval:
    """The interval of the logarithm of best / baseline."""
    known = noise([standing.baseline, standing.best])
    return change(standing.baseline, standing.best, assumed(known))


def _decisive(interval: Interval | None) -> bool:
    return interval is not None and interval.high < math.log1p(-LEAST_GAIN)


def _losses(standing: Standing, run: Run, made: Judgement, *, alters: bool) -> Outcome | None:
    """What is wrong with a run's losses beside the best's; None where nothing is, or the baseline's were not seen."""
    made.limit = losses.limit([standing.baseline, standing.best], alters=alters)
    if made.limit is None:
        return None
    made.moved = losses.moved(standing.best, run)
    if made.moved is None:
        return "losses_not_seen"
    return "losses_moved" if made.moved > made.limit else None


def why(made: Judgement) -> str:
    """The sentence for what became of a change."""
    match made.outcome:
        case "faster" if not made.beyond_chance:
            return f"the budget ended; faster by more than equal runs differ, as surely predicted ({_interval(made)})"
        case "faster":
            return f"the whole 95 % interval, {_interval(made)}, lies beyond {units.share(LEAST_GAIN)}"
        case "no_gain":
            return f"no gain of {units.share(LEAST_GAIN)} measured ({_interval(made)})"
        case "not_beyond_chance":
            return f"{units.plural(len(made.runs), 'run')} can't tell it from chance ({_interval(made)})"
        case "losses_moved":
            return (
                f"the losses of the first steps moved by {_fraction(made.moved)}, more than the "
                f"{_fraction(made.limit)} that the order of sums and the noise between runs explain"
            )
        case "losses_not_seen":
            return "its losses could not be seen, those of the baseline could"
        case "not_applied":
            return f"nothing in the job took it: {made.detail}"
        case "hung":
            return f"it had not ended after {made.detail} s, and was killed"
        case "failed":
            last = made.detail.splitlines()
            return f"the job failed: {last[-1].strip()}" if last else "the job failed"
        case "no_steps":
            return "no steps were recorded"
        case "budget":
            unfinished = f"the budget ended its run after {made.detail} s, unfinished"
            return unfinished if made.detail else "the budget ended before it was settled"
        case "not_confirmed":
            return "with all that was kept, beside the baseline once more, no gain was left beyond chance"


def _interval(made: Judgement) -> str:
    if made.interval is None:
        return "no interval"
    low, high = (100 * math.expm1(one) for one in (made.interval.low, made.interval.high))
    return f"{low:+.1f} to {high:+.1f} %"


def _fraction(value: float | None) -> str:
    return "an unknown part" if value is None else "no end" if math.isinf(value) else f"{100 * value:.2g} %"
