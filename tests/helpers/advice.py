"""Reports and findings that rules are tried on: only what rules read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope.report.schema.document import FindingEntry, Report


def finding(code: str, severity: str = "high", ranks: Sequence[int] = (0, 1)) -> FindingEntry:
    spans = [{"rank": 0, "start_ns": 0, "dur_ns": 5, "name": "aten::item", "note": ""}]
    return {
        "code": code, "severity": severity, "message": "It waits", "ranks": list(ranks), "cost_ns_per_step": 1,
        "share_frac": 0.2, "evidence": spans,
    }  # type: ignore[typeddict-item, return-value]  # fmt: skip


def report(*findings: FindingEntry, frameworks: Sequence[str] = (), **verdict: Any) -> Report:
    told = {"bound_by": "cpu", "cause": "input", "abstained": False} | verdict
    return {
        "findings": list(findings), "verdict": told, "trace": {"frameworks": list(frameworks)}, "stragglers": [],
        "ranks": [{"device": 0}],
    }  # type: ignore[typeddict-item, return-value]  # fmt: skip
