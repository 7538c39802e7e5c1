"""Why a change was kept or rolled back, in words: each outcome's sentence once."""

from __future__ import annotations

import math

from gpuscope.instrumented_runtime.tune.candidates import LEAST_GAIN
from gpuscope.instrumented_runtime.tune.decision import Judgement
from gpuscope.words import units


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
