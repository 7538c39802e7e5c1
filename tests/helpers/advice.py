"""Reports and findings that rules are tried on: only what rules read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuscope.catalogue.suggestion import Suggestion
from gpuscope.schema.call_tree_section import BlockingCallEntry, HostCallsEntry
from gpuscope.schema.document import FindingEntry, Report


def finding(code: str, severity: str = "high", ranks: Sequence[int] = (0, 1)) -> FindingEntry:
    spans = [{"rank": 0, "start_ns": 0, "dur_ns": 5, "name": "aten::item", "note": ""}]
    return {
        "code": code,
        "severity": severity,
        "message": "It waits",
        "ranks": list(ranks),
        "cost_ns_per_step": 1,
        "cost_ns": 2,
        "share_frac": 0.2,
        "evidence": spans,
    }  # type: ignore[typeddict-item, return-value]


def host_calls(**given: Any) -> HostCallsEntry:
    """What one rank calls in each of two steady steps of 100 kernels; nothing but launches unless given."""
    return {
        "rank": 0,
        "device": 0,
        "runtime": "cuda",
        "steps": 2,
        "steady": True,
        "kernels_per_step": 100.0,
        "repeated_frac": 1.0,
        "blocking_calls": [],
        "allocations_per_step": 0.0,
        "frees_per_step": 0.0,
        "least_allocations": 0,
        "least_frees": 0,
        "maps_segments": False,
        "caches": None,
        "frees_outside_per_step": None,
        "passes_per_step": None,
    } | given  # type: ignore[return-value]


def blocking(call: str, **given: Any) -> BlockingCallEntry:
    """A place that blocks once per step for 10 ms in all."""
    return {
        "call": call,
        "operator": None,
        "within": None,
        "copy": None,
        "bytes": None,
        "count": 2,
        "per_step": 1.0,
        "dur_ns": 10_000_000,
    } | given  # type: ignore[return-value]


def steady(case: Report, *numbers: int) -> Report:
    """The report with these steady step numbers on rank 0."""
    case["steps"] = [{"step": number, "rank": 0, "role": "steady"} for number in numbers]  # type: ignore[typeddict-item]
    return case


def report(*findings: FindingEntry, frameworks: Sequence[str] = (), **verdict: Any) -> Report:
    told = {"bound_by": "cpu", "cause": "input", "abstained": False, "cause_abstained": False} | verdict
    return {
        "findings": list(findings),
        "verdict": told,
        "stragglers": [],
        "steps": [],
        "rank_steps": [],
        "collectives": [],
        "copies": [],
        "api_calls": [],
        "launches": [{"launches": 1}],
        "step_time": dict.fromkeys(("median_ns", "p90_ns", "min_ns", "max_ns"), 100_000_000) | {"steps": 2},
        "trace": {"frameworks": list(frameworks), "program": "pytorch", "world_size": 2, "sources": []},
        "ranks": [
            {
                "rank": 0,
                "device": 0,
                "steps": 2,
                "window_ns": 200_000_000,
                "stall_ns": {"cpu": {}, "communication": {}, "memory": {}, "unattributed": 0},
                "breakdown_ns": {"compute": 0, "exposed_communication": 0, "exposed_memory": 0, "idle": 0},
            }
        ],
    }  # type: ignore[typeddict-item, return-value]


def suggestion(code: str, *answers: str, subject: str = "", **words: Any) -> Suggestion:
    """A record that answers these findings."""
    texts = {"action": f"Do {code}", "why": "", "risk": "a risk", "verify": "", "sets": "a test"}
    given = {"code": code, "answers": answers, "subject": subject, **texts, **words}
    kind: type[Suggestion] = type(code, (Suggestion,), given)
    return kind()
