"""`gpuscope.check`: what a run must hold against its baseline to pass."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Literal

from gpuscope.analyzers.comparison.compare import compare
from gpuscope.analyzers.comparison.comparison import Comparison, check_fraction
from gpuscope.analyzers.comparison.loading import Reading, Run, load
from gpuscope.errors import UsageError
from gpuscope.report.terminal.diff_text import verdict_line
from gpuscope.schema.diff_document import CheckCase, Diff
from gpuscope.schema.document import Report
from gpuscope.sources.opening import PathLike
from gpuscope.when_used import dataclass

Severity = Literal["low", "medium", "high"]
Status = Literal["passed", "failed", "skipped"]
_ORDER = ("low", "medium", "high")
DEFAULT_FAIL_ON = 0.05
"""Slower by more than that, beyond its uncertainty, fails."""


@dataclass(frozen=True, repr=False)
class CheckResult:
    """What `gpuscope.check` found."""

    comparison: Comparison
    """The run against its baseline; its document holds the cases under `checks`, as `gpuscope check --json` does."""
    cases: list[CheckCase]
    """One per thing checked: its name, whether it `passed`, `failed` or was `skipped`, and why."""

    @property
    def failed(self) -> bool:
        """Whether a case failed: `gpuscope check` then exits with 1."""
        return any(case["status"] == "failed" for case in self.cases)

    @property
    def conclusive(self) -> bool:
        """Whether the traces settle every case: with --strict `gpuscope check` exits with 1 where they don't."""
        return not any(case["status"] == "skipped" for case in self.cases)

    def __repr__(self) -> str:
        said = [f"{case['name']} {case['status']}" for case in self.cases]
        return f"CheckResult({', '.join(said)})"


def check(
    run: Run,
    *,
    baseline: Run,
    fail_on: float = DEFAULT_FAIL_ON,
    fail_on_finding: Severity | None = None,
    ranks: Collection[int] | None = None,
    steps: tuple[int, int] | None = None,
    partial: bool = False,
    nsys: str | None = None,
    store: PathLike | None = None,
    workers: int = 1,
    progress: bool = False,
) -> CheckResult:
    """Check a run against its baseline, for continuous integration.

    `run` and `baseline` are each a trace (a file, a folder of ranks or a glob), the JSON of a report, the number of a
    run in the run store, or an `Analysis`. The step time fails where it is slower by more than `fail_on` (a fraction:
    0.05 is 5 %) beyond its uncertainty, and is skipped where the traces can't rule that out. With `fail_on_finding` a
    finding of that severity or a higher one that the baseline has not fails too. The other arguments are those of
    `gpuscope.diff`.

    Raises `InputError` for what can't be read, `UsageError` for ranks or steps of a finished report, a run that the
    store has not, or a limit that is none, `AnalysisError` where an analysis failed. A failed check raises nothing.
    """
    check_fraction("fail_on", fail_on)
    if fail_on_finding is not None and fail_on_finding not in _ORDER:
        raise UsageError(f"fail_on_finding={fail_on_finding!r} is no severity", hint=f"one of {', '.join(_ORDER)}")
    reading = Reading(ranks, steps, partial, nsys, Path(store) if store is not None else None, workers, progress)
    before, after = load(baseline, reading), load(run, reading, advice=False)
    document = compare(before, after, fail_on)
    cases = [step_time(document)]
    if fail_on_finding is not None:
        cases.append(new_findings(before.report, after.report, fail_on_finding))
    document["checks"] = cases
    return CheckResult(Comparison(document), cases)


def step_time(diff: Diff) -> CheckCase:
    """Failed where the step time got worse by more than the threshold beyond its uncertainty; skipped where the
    traces can't rule that out."""
    high = diff["step"]["high_frac"]
    result, threshold = diff["verdict"]["result"], diff["verdict"]["threshold_frac"]
    ruled_out = high is not None and high <= threshold
    if result == "different_jobs":
        return _case("step time", "skipped", f"{verdict_line(diff)}; {diff['verdict']['why']}")
    status: Status = "failed" if result == "regression" else "passed" if ruled_out else "skipped"
    return _case("step time", status, f"{verdict_line(diff)}; {diff['verdict']['why']}")


def new_findings(baseline: Report, report: Report, severity: Severity) -> CheckCase:
    """Failed where a finding of that severity or a higher one was none of the baseline's at that severity."""
    grave = _ORDER[_ORDER.index(severity) :]
    known = {finding["code"] for finding in baseline["findings"] if finding["severity"] in grave}
    new = [finding for finding in report["findings"] if finding["severity"] in grave and finding["code"] not in known]
    said = "; ".join(f"{finding['code']} ({finding['severity']}): {finding['message']}" for finding in new)
    return _case("new findings", "failed" if new else "passed", said or f"none of severity {severity} or higher")


def _case(name: str, status: Status, message: str) -> CheckCase:
    return {"name": name, "status": status, "message": message}
