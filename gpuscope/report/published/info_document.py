"""What `gpuscope info --json` and `gpuscope runs --json` print. Times are ns, sizes bytes."""

from __future__ import annotations

from typing import Any

from gpuscope.schema.document import ProblemEntry
from gpuscope.when_used import TypedDict


class InfoSource(TypedDict):
    """A file that was read."""

    path: str
    format: str
    format_version: str
    events: int
    ranks: list[int]
    world_size: int | None


class InfoRank(TypedDict):
    """A rank on one device; `device` is null where its training thread is the device."""

    rank: int
    device: int | None
    device_name: str | None
    host: str | None
    backend: str | None
    device_events: int
    window_ns: int | None
    steps: list[int]
    steps_basis: str | None


class Info(TypedDict):
    """What is in a trace, and what is missing."""

    sources: list[InfoSource]
    ranks: list[InfoRank]
    tables: dict[str, int]
    """Rows by table."""
    missing: list[str]
    problems: list[ProblemEntry]


class StoredRun(TypedDict):
    """A row of `gpuscope runs --json`; docs/history.md has the columns."""

    id: int
    key: str
    recorded_at: str
    analysed_at: str
    gpuscope_version: str
    report_version: int
    paths: list[str]
    options: dict[str, Any]
    label: str | None
    world_size: int | None
    ranks_present: int
    bound_by: str | None
    cause: str | None
    share_frac: float
    cause_share_frac: float | None
    confidence: float
    abstained: bool
    why: str
    steps: int
    step_ns: float | None
    window_ns: float | None
