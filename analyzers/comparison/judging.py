"""Improvement, regression or neutral, on one rule for `gpuscope diff` and `gpuscope check`.

The 95 % interval of the step time's change is compared with a threshold. Entirely beyond it: a regression or an
improvement. Entirely within: neutral. Across it: neutral too, but not conclusive, for the traces can't decide it.
"""

from __future__ import annotations

from gpuscope.analyzers.comparison.series import Series, mean_window_ns, step
from gpuscope.analyzers.comparison.welch import Interval, Sample, difference, sample, steps_needed
from gpuscope.report.schema.diff_document import Change, DiffVerdict, Outcome
from gpuscope.report.schema.document import Report
from gpuscope.report.view import units

DEFAULT_THRESHOLD = 0.01
"""Steps show the noise within one run only; two runs of the same job differ a little more, by clocks, placement and
neighbours. One per cent is an allowance for that, not a measurement."""
LARGE_CHANGE = 0.05
"""An inconclusive change from this share on is said first: it may well be real."""
RECORD_STEPS = "record ranges per step (profiler.step(), or an NVTX range `step`)"


def change(before: Report, after: Report, own: Series, other: Series) -> Change:
    """The change of the step time, or of the window where a run has no steps."""
    if own.steps and other.steps:
        first, second = sample(own.durations), sample(other.durations)
        bounds = difference(first, second) if first and second else None
        return _change("steps", step(own), step(other), bounds)
    window = mean_window_ns(before), mean_window_ns(after)
    if None not in window:
        return _change("window", *window, None)
    return _change("none", None, None, None)


def judge(moved: Change, threshold: float, own: Series, other: Series) -> DiffVerdict:
    """The verdict on a change."""
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


def _change(basis: str, before: int | None, after: int | None, bounds: Interval | None) -> Change:
    if before is None or after is None:
        return {"basis": "none", "before_ns": before, "after_ns": after, "change_ns": None, "change_frac": None,
                "low_frac": None, "high_frac": None}  # fmt: skip
    scale = before or 1
    return {
        "basis": "steps" if basis == "steps" else "window",
        "before_ns": before, "after_ns": after, "change_ns": after - before, "change_frac": (after - before) / scale,
        "low_frac": max(bounds.low / scale, -1.0) if bounds else None,
        "high_frac": bounds.high / scale if bounds else None,
    }  # fmt: skip


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
    more = _more(moved, threshold, own, other)
    loud = ""
    if abs(moved["change_frac"] or 0.0) >= LARGE_CHANGE:
        loud = f"the step changed by {100 * (moved['change_frac'] or 0.0):+.1f} %, which may be real; "
    return f"{loud}{interval} spans {limit}: noise, or a change too small for this number of steps{more}"


def _more(moved: Change, threshold: float, own: Series, other: Series) -> str:
    first, second = sample(own.durations), sample(other.durations)
    margin = abs(abs(moved["change_frac"] or 0.0) - threshold) * (moved["before_ns"] or 0)
    if not margin or not isinstance(first, Sample) or not isinstance(second, Sample):
        return ""
    return f"; with this spread about {units.count(steps_needed(first, second, margin))} steps of each would decide it"


def _from_to(moved: Change) -> str:
    return f"{units.duration(moved['before_ns'])} → {units.duration(moved['after_ns'])}"
