"""Improvement, regression or neutral, on one rule for `gpuscope diff` and `gpuscope check`.

The 95 % interval of the step time's change is compared with a threshold. Entirely beyond it: a regression or an
improvement. Entirely within: neutral. Across it: neutral too, but not conclusive, for the traces can't decide it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuscope.analyzers.comparison.series import Series, mean_window_ns, step
from gpuscope.schema.diff_document import Change, DiffVerdict, Outcome
from gpuscope.schema.document import Report
from gpuscope.welch import Sample, difference, sample, times_needed
from gpuscope.words import units

DEFAULT_THRESHOLD = 0.01
"""Steps show the noise within one run only; two runs of the same job differ a little more, by clocks, placement and
neighbours. One per cent is an allowance for that, not a measurement."""
LARGE_CHANGE = 0.05
"""An inconclusive change from this share on is said first: it may well be real."""
RECORD_STEPS = "record ranges per step (profiler.step(), or an NVTX range `step`)"


def change(before: Report, after: Report, own: Series, other: Series) -> Change:
    """The change of the step time, or of the window where a run has no steps."""
    if own.steps and other.steps:
        first, second = _relative(own), _relative(other)
        bounds = difference(first, second) if first and second else None
        return _change(
            "steps", step(own), step(other), (math.expm1(bounds.low), math.expm1(bounds.high)) if bounds else None
        )
    window = mean_window_ns(before), mean_window_ns(after)
    if None not in window:
        return _change("window", *window, None)
    return _change("none", None, None, None)


def _relative(steps: Series) -> Sample | None:
    """The steps on a scale of ratios: times vary in proportion and upwards more than downwards, and no step is shorter
    than nothing."""
    return sample([math.log(max(ns, 1.0)) for ns in steps.durations])


def judge(moved: Change, threshold: float, own: Series, other: Series, different: Sequence[str] = ()) -> DiffVerdict:
    """The verdict on a change; none where the runs are of `different` jobs, which is then why."""
    if different:
        why = f"{'; '.join(different)}. Their times stand side by side; no change of one job made one from the other"
        return {"result": "different_jobs", "conclusive": False, "threshold_frac": threshold, "why": why}
    result, conclusive = outcome(moved, threshold)
    if moved["basis"] == "steps":
        why = _why_steps(moved, result, conclusive, threshold, own, other)
    elif moved["basis"] == "window":
        why = (
            f"no steps in {'both runs' if not own.steps and not other.steps else 'one of the runs'}, so only windows "
            f"compare ({_from_to(moved)}): they show how long was recorded, not how long a step takes; {RECORD_STEPS}"
        )
    else:
        why = "no device timeline in one of the runs: there is no time to compare"
    return {"result": result, "conclusive": conclusive, "threshold_frac": threshold, "why": why}


def outcome(moved: Change, threshold: float) -> tuple[Outcome, bool]:
    """The result, and whether it is conclusive."""
    low, high = moved["low_frac"], moved["high_frac"]
    if low is None or high is None:
        return "neutral", False
    if low > threshold:
        return "regression", True
    if high < -threshold:
        return "improvement", True
    return "neutral", -threshold <= low and high <= threshold


def _change(basis: str, before: int | None, after: int | None, bounds: tuple[float, float] | None) -> Change:
    if before is None or after is None:
        return {
            "basis": "none",
            "before_ns": before,
            "after_ns": after,
            "change_ns": None,
            "change_frac": None,
            "low_frac": None,
            "high_frac": None,
        }
    scale = before or 1
    return {
        "basis": "steps" if basis == "steps" else "window",
        "before_ns": before,
        "after_ns": after,
        "change_ns": after - before,
        "change_frac": (after - before) / scale,
        "low_frac": bounds[0] if bounds else None,
        "high_frac": bounds[1] if bounds else None,
    }


def _why_steps(moved: Change, result: Outcome, conclusive: bool, threshold: float, own: Series, other: Series) -> str:
    counts = f"{units.plural(len(own.steps), 'step')} and {units.plural(len(other.steps), 'step')}"
    low, high = moved["low_frac"], moved["high_frac"]
    if low is None or high is None:
        return f"{counts}: a single step has no measurable spread; record several"
    interval, limit = f"the 95 % interval of the change, from {counts},", units.share(threshold)
    if result != "neutral":
        return f"{interval} lies beyond {limit}"
    if conclusive:
        return f"{interval} lies within {limit}"
    loud = ""
    if abs(moved["change_frac"] or 0.0) >= LARGE_CHANGE:
        loud = f"the step changed by {units.signed(moved['change_frac'])}, which may be real; "
    return f"{loud}{interval} reaches across {limit}: {_noise(threshold, own, other)}"


def _noise(threshold: float, own: Series, other: Series) -> str:
    """Whose steps make the interval wide, and how many would settle it where that can be told."""
    first, second = _relative(own), _relative(other)
    if first is None or second is None:
        return "noise"
    wide, word = (own, "before") if first.error >= second.error else (other, "after")
    low, high = min(wide.durations), max(wide.durations)
    said = f"most of its width is from the run {word}, whose steps take {units.span(round(low), round(high), '–')}"
    change = second.median - first.median
    margin = min(
        abs(change - math.log1p(threshold)), abs(change - math.log1p(-threshold)) if threshold < 1 else math.inf
    )
    times = times_needed(first, second, margin) if margin else None
    if times is None:
        return said
    steps = math.ceil(times * max(len(own.steps), len(other.steps)))
    return f"{said}; with this spread about {units.count(steps)} steps of each would decide it"


def _from_to(moved: Change) -> str:
    return f"{units.duration(moved['before_ns'])} → {units.duration(moved['after_ns'])}"
