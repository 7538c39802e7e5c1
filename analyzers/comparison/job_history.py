"""How a job's step time went over its stored runs, and where it regressed."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.analyzers.comparison.compare import Side, compare
from gpuscope.analyzers.comparison.judging import DEFAULT_THRESHOLD
from gpuscope.schema.diff_document import Outcome
from gpuscope.schema.document import Report
from gpuscope.when_used import dataclass


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
