"""Two reports in, the document of `gpuscope diff` out."""

from __future__ import annotations

from gpuscope.analyzers.comparison import moved
from gpuscope.analyzers.comparison.by_operator import platform
from gpuscope.analyzers.comparison.judging import DEFAULT_THRESHOLD, change, judge
from gpuscope.analyzers.comparison.same_job import differences, same_command
from gpuscope.analyzers.comparison.series import Series, series, step
from gpuscope.errors import UsageError
from gpuscope.report.view.arrangement import step_ns
from gpuscope.schema.diff_document import DIFF_VERSION, Basis, Diff, DiffSide, Proof
from gpuscope.schema.document import Report, SuggestionEntry
from gpuscope.version import __version__
from gpuscope.welch import median_interval, sample
from gpuscope.when_used import dataclass
from gpuscope.words import units

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
