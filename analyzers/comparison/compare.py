"""Two reports in, the document of `gpuscope diff` out."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpuscope.analyzers.comparison import moved
from gpuscope.analyzers.comparison.by_operator import differences, platform, same_command
from gpuscope.analyzers.comparison.moved import Series, mean_window_ns, series, step
from gpuscope.errors import UsageError
from gpuscope.report.view.report_rows import step_ns
from gpuscope.schema.diff_document import DIFF_VERSION, Basis, Change, Diff, DiffSide, DiffVerdict, Outcome, Proof
from gpuscope.schema.document import Report, SuggestionEntry
from gpuscope.version import __version__
from gpuscope.welch import Sample, difference, median_interval, sample, times_needed
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Improvement, regression or neutral, on one rule for `gpuscope diff` and `gpuscope check`.
#
# The 95 % interval of the step time's change is compared with a threshold. Entirely beyond it: a regression or an
# improvement. Entirely within: neutral. Across it: neutral too, but not conclusive, for the traces can't decide it.

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


OTHER_WORK = 0.01
"""A step of one job repeats the same kernels; from this share on it is worth saying that it does not."""


@dataclass(frozen=True)
class Side:
    """A report, what the user called it, and its number in the run store if it came from there."""

    report: Report
    name: str
    run: int | None = None


def compare(before: Side, after: Side, threshold: float = DEFAULT_THRESHOLD, applied: str | None = None) -> Diff:
    """The comparison; `threshold` is a fraction, `applied` the code of the suggestion that was followed."""
    old, new = before.report, after.report
    own, other = series(old), series(new)
    step, different = change(old, new, own, other), differences(old, new, one_command=same_command(old, new))
    per_step = step["basis"] == "steps"
    per = moved.Unit.of(old, per_step), moved.Unit.of(new, per_step)
    recorded = moved.Unit.recorded(old, per_step), moved.Unit.recorded(new, per_step)
    breakdown = moved.breakdown(old, new, own, other, per_step)
    by_operator = platform(old, new, step, breakdown)
    elsewhere = bool(different) or bool(by_operator and by_operator["changed"])
    document: Diff = {
        "diff_version": DIFF_VERSION,
        "gpuscope_version": __version__,
        "verdict": judge(step, threshold, own, other, different),
        "step": step,
        "before": _side(before, own),
        "after": _side(after, other),
        "breakdown": breakdown,
        "causes": moved.causes(old, new, per),
        "findings": moved.findings(old, new),
        "collectives": moved.collectives(old, new, recorded),
        "kernels": moved.kernels(old, new, recorded),
        "operators": moved.operators(old, new, recorded),
        "suggestions": proofs(old, new, applied) if applied or not elsewhere else [],
        "caveats": _caveats(old, new, step["basis"], recorded),
    }
    if by_operator is not None:
        document["platform"] = by_operator
    return document


def _side(side: Side, steps: Series) -> DiffSide:
    own = sample(steps.durations)
    bounds = median_interval(own) if own else None
    return {
        "name": side.name,
        "run": side.run,
        "sources": [source["path"] for source in side.report["trace"]["sources"]],
        "ranks": side.report["trace"]["ranks_present"],
        "steps": len(steps.steps),
        "step_ns": step(steps),
        "low_ns": round(bounds.low) if bounds else None,
        "high_ns": round(bounds.high) if bounds else None,
        "bound_by": side.report["verdict"]["bound_by"],
        "cause": side.report["verdict"]["cause"],
    }


def _caveats(before: Report, after: Report, basis: Basis, per: tuple[moved.Unit, moved.Unit]) -> list[str]:
    """What may make the runs incomparable."""
    found = [
        f"{what} differ: {old or 'not recorded'} before, {new or 'not recorded'} after"
        for what, old, new in (
            ("ranks", units.ranks(before["trace"]["ranks_present"]), units.ranks(after["trace"]["ranks_present"])),
            ("world sizes", before["trace"]["world_size"], after["trace"]["world_size"]),
            ("devices", _devices(before), _devices(after)),
            ("formats", _formats(before), _formats(after)),
            ("parallelisms", _parallelism(before), _parallelism(after)),
            ("sources of the steps", before["steps_basis"], after["steps_basis"]),
            ("gpuscope versions", before["gpuscope_version"], after["gpuscope_version"]),
        )
        if old != new
    ]
    found += [
        f"{word} contains a hang: its times are those of waiting"
        for word, report in (("the run before", before), ("the run after", after))
        if report.get("hang", {}).get("hung")
    ]
    old_count = moved.compute_kernels(before) / per[0].all_ranks
    new_count = moved.compute_kernels(after) / per[1].all_ranks
    if old_count and abs(new_count - old_count) > OTHER_WORK * old_count:
        unit = "step" if basis == "steps" else "window"
        reason = (
            "fewer or more kernels for the same work (fusion, graphs), or other work"
            if basis == "steps"
            else "the windows hold different amounts of work, so the job may still have become faster or slower"
        )
        ran = f"{old_count:,.0f} → {new_count:,.0f} compute kernels per {unit} and rank"
        found.append(f"{ran} ({units.signed(new_count / old_count - 1)}): {reason}")
    return found


def _devices(report: Report) -> str:
    return ", ".join(sorted({entry["device_name"] for entry in report["ranks"] if entry["device_name"]}))


def _formats(report: Report) -> str:
    return ", ".join(sorted({source["format"] for source in report["trace"]["sources"]}))


def _parallelism(report: Report) -> str:
    return ", ".join(f"{kind} {size}" for kind, size in sorted(report["trace"].get("parallelism", {}).items()))


def proofs(before: Report, after: Report, applied: str | None) -> list[Proof]:
    """One per suggestion; `applied` is the code of the one that was followed, which then comes first.

    The measured step is «the step» of AFTER, as predictions start from that of BEFORE. Raises `UsageError` for a code
    that BEFORE does not suggest.
    """
    suggestions = before["suggestions"]
    codes = list(dict.fromkeys(suggestion["code"] for suggestion in suggestions))
    if applied is not None and applied not in codes:
        known = f"it suggests: {', '.join(codes)}" if codes else "it holds no suggestions"
        raise UsageError(f"the run before does not suggest {applied!r}", hint=known)
    measured = step_ns(after)
    rows = [_proof(suggestion, measured, applied) for suggestion in suggestions]
    return sorted(rows, key=lambda row: row["applied"] is False)


def _proof(suggestion: SuggestionEntry, measured: int | None, applied: str | None) -> Proof:
    predicted = suggestion["predicted"]
    return {
        "code": suggestion["code"],
        "action": suggestion["action"],
        "applied": None if applied is None else suggestion["code"] == applied,
        "predicted_ns": predicted["step_ns_after"],
        "low_ns": predicted["low_ns"],
        "high_ns": predicted["high_ns"],
        "predicted_gain_ns": predicted["step_ns_before"] - predicted["step_ns_after"],
        "measured_ns": measured,
        "gained_ns": None if measured is None else predicted["step_ns_before"] - measured,
        "held": None
        if measured is None
        else "faster"
        if measured < predicted["low_ns"]
        else "slower"
        if measured > predicted["high_ns"]
        else "inside",
    }


# How a job's step time went over its stored runs, and where it regressed.


@dataclass(frozen=True)
class StoredRun:
    """A run of the store: its number, when it was first analysed (ISO 8601, UTC), its report."""

    number: int
    recorded_at: str
    report: Report


@dataclass(frozen=True)
class TrendPoint:
    """One run of a trend; times in ns."""

    number: int
    recorded_at: str
    step_ns: int | None
    low_ns: int | None
    high_ns: int | None
    result: Outcome | None
    """Against the run before it; None for the first one."""
    change_frac: float | None


def trend(runs: Sequence[StoredRun], threshold: float = DEFAULT_THRESHOLD) -> list[TrendPoint]:
    """Each run compared with the one before it, in the order given."""
    points: list[TrendPoint] = []
    for place, run in enumerate(runs):
        before = runs[place - 1] if place else run
        diff = compare(Side(before.report, str(before.number)), Side(run.report, str(run.number)), threshold)
        own = diff["after"]
        points.append(
            TrendPoint(
                run.number,
                run.recorded_at,
                own["step_ns"],
                own["low_ns"],
                own["high_ns"],
                diff["verdict"]["result"] if place else None,
                diff["step"]["change_frac"] if place else None,
            )
        )
    return points
