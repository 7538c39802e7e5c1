"""Stored runs of one job, for trends: read-only, and reopened each time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuscope.analyzers.comparison.job_history import StoredRun, TrendPoint, trend
from gpuscope.schema.document import Report
from gpuscope.store.store import opened

MOST = 50
"""Runs of a trend, whose reports are read for each drawing."""


def jobs(store: Path) -> list[str]:
    """Job names of stored runs: their label, else their paths; most runs first."""
    with opened(store) as open_store:
        names = [_name(row) for row in open_store.runs()]
    return sorted(dict.fromkeys(names), key=lambda name: -names.count(name))


def job_of(store: Path, files: Sequence[str]) -> str:
    """The name of the newest stored run of any of these files; empty where there is none."""
    with opened(store) as open_store:
        found = open_store.runs_of(files)
    return _name(found[0]) if found else ""


def trend_of(store: Path, job: str) -> list[TrendPoint]:
    """The last runs of that name, the oldest first."""
    with opened(store) as open_store:
        rows = [row for row in open_store.runs() if _name(row) == job][:MOST]
        rows.sort(key=lambda row: (row["recorded_at"], row["id"]))
        return trend([StoredRun(row["id"], row["recorded_at"], open_store.report(row["id"])) for row in rows])


def report_of(store: Path, number: int) -> Report | None:
    """The report of a stored run; None if there is none of that number."""
    with opened(store) as open_store:
        return open_store.report(number) if open_store.runs("id = ?", [number]) else None


def _name(row: dict[str, object]) -> str:
    paths = row["paths"]
    assert isinstance(paths, list)
    return str(row["label"] or ", ".join(paths))
