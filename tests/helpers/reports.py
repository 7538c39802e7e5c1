"""Reports of synthetic runs: steps of given lengths on given ranks, all of it compute but for what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any, cast

import numpy as np

from gpuscope.schema.document import FindingEntry, Report, SuggestionEntry


def report(*step_ms: float, ranks: int = 2, **changed: Any) -> Report:
    """Every rank runs steps of these lengths (ms); `changed` replaces sections."""
    window = sum(round(ms * 1_000_000) for ms in step_ms) or 50_000_000
    document = {
        "schema_version": 3,
        "gpuscope_version": "0.1.0",
        "trace": {
            "sources": [
                {
                    "path": "synthetic",
                    "format": "kineto",
                    "format_version": "",
                    "rank": None,
                    "ranks": list(range(ranks)),
                    "events": 0,
                }
            ],
            "world_size": ranks,
            "world_basis": "distributed_info",
            "ranks_present": list(range(ranks)),
            "clock_error_ns": None,
            "clock_provenance": None,
            "frameworks": [],
            "program": "pytorch",
            "parallelism": {},
        },
        "verdict": {
            "bound_by": "compute",
            "cause": None,
            "share_frac": 1.0,
            "confidence": 0.9,
            "abstained": False,
            "cause_abstained": False,
            "why": "",
            "limits": [],
        },
        "ranks": [rank_entry(rank, window, len(step_ms)) for rank in range(ranks)],
        "steps": steps(step_ms, ranks),
        "step_time": step_time(step_ms),
        "steps_basis": "synthetic",
        "steps_provenance": "measured",
        "collectives": [],
        "stragglers": [],
        "kernels": [],
        "findings": [],
        "suggestions": [],
        "problems": [],
        "analyzers": [],
    }
    return cast(Report, document | changed)


def rank_entry(rank: int, window: int, number: int) -> dict[str, Any]:
    """A rank that computes all the time."""
    return {
        "rank": rank,
        "device": 0,
        "device_name": None,
        "window_ns": window,
        "start_ns": 0,
        "steps": number,
        "recorded_ns": window,
        "recorded_breakdown_ns": parts(window),
        "breakdown_ns": parts(window),
        "communication_ns": 0,
        "overlapped_communication_ns": 0,
        "overlap_frac": None,
        "stall_ns": {"cpu": {}, "communication": {}, "memory": {}, "unattributed": 0},
    }


def steps(step_ms: Sequence[float], ranks: int) -> list[dict[str, Any]]:
    """One entry per step and rank."""
    return [
        {
            "step": step,
            "rank": rank,
            "device": 0,
            "role": "steady",
            "start_ns": 0,
            "dur_ns": round(ms * 1_000_000),
            "breakdown_ns": parts(round(ms * 1_000_000)),
            "bound_by": "compute",
            "cause": None,
        }
        for rank in range(ranks)
        for step, ms in enumerate(step_ms)
    ]


def step_time(step_ms: Sequence[float]) -> dict[str, int] | None:
    """Median and spread of the steps, all of which are judged."""
    if not step_ms:
        return None
    times = [round(ms * 1_000_000) for ms in step_ms]
    return {
        "median_ns": round(median(times)),
        "p90_ns": round(float(np.percentile(times, 90))),
        "min_ns": min(times),
        "max_ns": max(times),
        "steps": len(times),
    }


def parts(compute: int, communication: int = 0, memory: int = 0, idle: int = 0) -> dict[str, int]:
    """A breakdown."""
    return {"compute": compute, "exposed_communication": communication, "exposed_memory": memory, "idle": idle}


def suggestion(code: str, before_ms: float, after_ms: float, low_ms: float, high_ms: float) -> dict[str, Any]:
    """A suggestion with its prediction."""
    names = ("step_ns_before", "step_ns_after", "low_ns", "high_ns")
    times = (before_ms, after_ms, low_ms, high_ms)
    predicted = {name: round(ms * 1_000_000) for name, ms in zip(names, times, strict=True)}
    return {
        "code": code,
        "finding": "latency",
        "action": f"do {code}",
        "why": "",
        "setting": {"kind": "env", "name": "X", "value": "1"},
        "predicted": {**predicted, "basis": "synthetic"},
        "risk": "",
        "verify": "",
    }


def finding(code: str, share: float, ranks: Sequence[int] = ()) -> FindingEntry:
    """A finding that costs 10 ms a step."""
    return {
        "code": code,
        "severity": "high",
        "message": "",
        "ranks": list(ranks),
        "cost_ns_per_step": 10_000_000,
        "cost_ns": None,
        "share_frac": share,
        "evidence": [],
        "per_step_ns": 10_000_000,
    }


def change(code: str, answers: str, after_ms: int, high_ms: int | None = None, certain: bool = True) -> SuggestionEntry:
    """A change of a setting with the name of its code that makes of a step of 100 ms one of so many."""
    after, high = (ms * 1_000_000 for ms in (after_ms, after_ms if high_ms is None else high_ms))
    return {
        "code": code,
        "finding": answers,
        "action": f"Do {code}",
        "why": "",
        "risk": "",
        "verify": "",
        "setting": {"kind": "config", "name": code, "value": "1"},
        "certain": certain,
        "predicted": {
            "step_ns_before": 100_000_000,
            "step_ns_after": after,
            "low_ns": after,
            "high_ns": high,
            "basis": "",
            "provenance": "inferred",
        },
    }
