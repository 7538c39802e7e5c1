"""What a run must hold against its baseline to pass."""

from __future__ import annotations

from gpuscope.report.schema.diff_document import CheckCase, Diff
from gpuscope.report.schema.document import Report
from gpuscope.report.terminal.diff_text import verdict_line

_ORDER = ("low", "medium", "high")


def step_time(diff: Diff) -> CheckCase:
    """Failed where the step time got worse by more than the threshold beyond its uncertainty; skipped where the
    traces can't rule that out."""
    high = diff["step"]["high_frac"]
    result, threshold = diff["verdict"]["result"], diff["verdict"]["threshold_frac"]
    ruled_out = high is not None and high <= threshold
    status = "failed" if result == "regression" else "passed" if ruled_out else "skipped"
    return _case("step time", status, f"{verdict_line(diff)}; {diff['verdict']['why']}")


def new_findings(baseline: Report, report: Report, severity: str) -> CheckCase:
    """Failed where a finding of that severity or a higher one was none of the baseline's at that severity."""
    grave = _ORDER[_ORDER.index(severity) :]
    known = {finding["code"] for finding in baseline["findings"] if finding["severity"] in grave}
    new = [finding for finding in report["findings"] if finding["severity"] in grave and finding["code"] not in known]
    said = "; ".join(f"{finding['code']} ({finding['severity']}): {finding['message']}" for finding in new)
    return _case("new findings", "failed" if new else "passed", said or f"none of severity {severity} or higher")


def _case(name: str, status: str, message: str) -> CheckCase:
    return {
        "name": name,
        "status": "failed" if status == "failed" else "passed" if status == "passed" else "skipped",
        "message": message,
    }
