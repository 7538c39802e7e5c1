"""What `gpuscope diff` and `gpuscope check` say, as one JSON document (docs/history.md).

Times are integer ns: per step and rank where both runs have steps, as shares of the judged time times «the step»; else
per window and rank.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

DIFF_VERSION = 1

Outcome = Literal["improvement", "regression", "neutral", "different_jobs"]
Basis = Literal["steps", "window", "none"]


class DiffSide(TypedDict):
    """One of the two runs."""

    name: str
    run: int | None
    """Its number in the run store, if it came from there."""
    sources: list[str]
    ranks: list[int]
    steps: int
    """Steps compared: those that all ranks have."""
    step_ns: int | None
    low_ns: int | None
    high_ns: int | None
    """Bounds of the 95 % interval of the mean step; None below two steps."""
    bound_by: str | None
    cause: str | None


class DiffVerdict(TypedDict):
    """What became of the step time."""

    result: Outcome
    conclusive: bool
    """Whether the traces settle it; a neutral result is conclusive only if any larger change is ruled out. Never where
    the runs are of different jobs."""
    threshold_frac: float
    why: str


class Change(TypedDict):
    """The step time's change; a fraction of the step before, positive for slower."""

    basis: Basis
    before_ns: int | None
    after_ns: int | None
    change_ns: int | None
    change_frac: float | None
    low_frac: float | None
    high_frac: float | None


class PartChange(TypedDict):
    """One part of the breakdown; totals are over the ranks' whole windows."""

    part: str
    before_ns: int
    after_ns: int
    change_ns: int
    low_ns: int | None
    high_ns: int | None
    total_before_ns: int
    total_after_ns: int


CauseChange = TypedDict(
    "CauseChange", {"class": str | None, "cause": str, "before_ns": int, "after_ns": int, "change_ns": int}
)


class KernelChange(TypedDict):
    """Device events of one name and category."""

    name: str
    category: str
    before_ns: int
    after_ns: int
    change_ns: int
    before_count: float
    after_count: float


class OperatorChange(TypedDict):
    """Calls of one operator, without the operators and ranges in them."""

    name: str
    before_device_ns: int | None
    """Durations of what it launched; None where that run has no device."""
    after_device_ns: int | None
    before_host_ns: int
    after_host_ns: int
    change_ns: int
    """On the device where both runs have one, else on the host."""
    before_count: float
    after_count: float


class CollectiveSide(TypedDict):
    """An operation of a group in one of the runs: per step; `dur_ns` and `wait_ns` per rank too."""

    count: float
    bytes: int | None
    dur_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    busbw_gbps: float | None


class CollectiveChange(TypedDict):
    """An operation of a group in both runs; None where a run has none."""

    op: str
    group: str | None
    before: CollectiveSide | None
    after: CollectiveSide | None


class FindingChange(TypedDict):
    """Codes of findings that only one of the runs has, or both with another severity."""

    new: list[str]
    gone: list[str]
    worse: list[str]
    better: list[str]


class Proof(TypedDict):
    """A suggestion of BEFORE's report, compared with what AFTER measured."""

    code: str
    action: str
    applied: bool | None
    """Whether it was named as the one applied; None where none was named."""
    predicted_ns: int
    low_ns: int
    high_ns: int
    predicted_gain_ns: int
    measured_ns: int | None
    gained_ns: int | None
    held: Literal["inside", "faster", "slower"] | None
    """Where the measured step lies in the predicted range."""


class CheckCase(TypedDict):
    """One thing that `gpuscope check` checks."""

    name: str
    status: Literal["passed", "failed", "skipped"]
    """`skipped` where the traces don't settle it."""
    message: str


class Diff(TypedDict):
    """The whole document."""

    diff_version: int
    gpuscope_version: str
    verdict: DiffVerdict
    step: Change
    before: DiffSide
    after: DiffSide
    breakdown: list[PartChange]
    causes: list[CauseChange]
    findings: FindingChange
    collectives: list[CollectiveChange]
    kernels: list[KernelChange]
    operators: list[OperatorChange]
    suggestions: list[Proof]
    caveats: list[str]
    checks: NotRequired[list[CheckCase]]
    """What `gpuscope check` says; absent from `gpuscope diff`."""
