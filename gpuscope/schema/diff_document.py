"""What `gpuscope diff` and `gpuscope check` say, as one JSON document (docs/history.md).

Times are integer ns: per step and rank where both runs have steps, as shares of the judged time times «the step»; else
per window and rank.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

DIFF_VERSION = 1

Outcome = Literal["improvement", "regression", "neutral", "different_jobs"]
Basis = Literal["steps", "window", "none"]


class DiffSide(TypedDict):
    """One of the two runs."""

    name: str
    """As given."""
    run: int | None
    """Its number in the run store, if it came from there."""
    sources: list[str]
    """Paths of its files."""
    ranks: list[int]
    """Ranks in them."""
    steps: int
    """Steps compared: those that all ranks have."""
    step_ns: int | None
    """Their mean."""
    low_ns: int | None
    """Lower end of its 95 % interval."""
    high_ns: int | None
    """Bounds of the 95 % interval of the mean step; None below two steps."""
    bound_by: str | None
    """Class of its verdict."""
    cause: str | None
    """Cause of its verdict."""


class DiffVerdict(TypedDict):
    """What became of the step time."""

    result: Outcome
    """`improvement`, `regression` or `neutral`."""
    conclusive: bool
    """Whether the traces settle it; a neutral result is conclusive only if any larger change is ruled out. Never where
    the runs are of different jobs."""
    threshold_frac: float
    """Smaller changes count as none."""
    why: str
    """The reason, and what to record if it is undecided."""


class Change(TypedDict):
    """The step time's change; a fraction of the step before, positive for slower."""

    basis: Basis
    """`steps`, `window` (no steps in one of the runs) or `none` (no timeline)."""
    before_ns: int | None
    """Mean step or window before."""
    after_ns: int | None
    """And after."""
    change_ns: int | None
    """After − before."""
    change_frac: float | None
    """Change / before."""
    low_frac: float | None
    """Lower end of its 95 % interval; null without enough steps."""
    high_frac: float | None
    """Upper end."""


class PartChange(TypedDict):
    """One part of the breakdown; totals are over the ranks' whole windows."""

    part: str
    """`compute`, `exposed_communication`, `exposed_memory` or `idle`."""
    before_ns: int
    """Before."""
    after_ns: int
    """After."""
    change_ns: int
    """After − before."""
    low_ns: int | None
    """Lower end of the change's 95 % interval."""
    high_ns: int | None
    """Upper end."""
    total_before_ns: int
    """Over the whole windows of all ranks, before."""
    total_after_ns: int
    """And after."""


CauseChange = TypedDict(
    "CauseChange",
    {
        "class": Annotated[str | None, Meta(description="Its class.")],
        "cause": Annotated[str, Meta(description="The cause.")],
        "before_ns": Annotated[int, Meta(description="Before.")],
        "after_ns": Annotated[int, Meta(description="After.")],
        "change_ns": Annotated[int, Meta(description="After − before.")],
    },
)
"""`class` is no name of Python's, so its keys' meanings can't stand below them."""


class KernelChange(TypedDict):
    """Device events of one name and category."""

    name: str
    """Name."""
    category: str
    """Category."""
    before_ns: int
    """Before."""
    after_ns: int
    """After."""
    change_ns: int
    """After − before."""
    before_count: float
    """How often before."""
    after_count: float
    """How often after."""


class OperatorChange(TypedDict):
    """Calls of one operator, without the operators and ranges in them."""

    name: str
    """Name."""
    before_device_ns: int | None
    """Durations of what it launched; None where that run has no device."""
    after_device_ns: int | None
    """And after."""
    before_host_ns: int
    """Time on the host before."""
    after_host_ns: int
    """And after."""
    change_ns: int
    """On the device where both runs have one, else on the host."""
    before_count: float
    """Calls before."""
    after_count: float
    """Calls after."""


class CollectiveSide(TypedDict):
    """An operation of a group in one of the runs: per step; `dur_ns` and `wait_ns` per rank too."""

    count: float
    """Instances per step."""
    bytes: int | None
    """Bytes per step."""
    dur_ns: int
    """Time per step and rank."""
    wait_ns: int | None
    """Waiting in it."""
    transfer_ns: int | None
    """Transfer per step."""
    busbw_gbps: float | None
    """Bus bandwidth."""


class CollectiveChange(TypedDict):
    """An operation of a group in both runs; None where a run has none."""

    op: str
    """Operation."""
    group: str | None
    """Process group."""
    before: CollectiveSide | None
    """Null if a run has none."""
    after: CollectiveSide | None
    """Null if a run has none."""


class FindingChange(TypedDict):
    """Codes of findings that only one of the runs has, or both with another severity."""

    new: list[str]
    """Only after."""
    gone: list[str]
    """Only before."""
    worse: list[str]
    """Of higher severity after."""
    better: list[str]
    """Of lower severity after."""


class Proof(TypedDict):
    """A suggestion of BEFORE's report, compared with what AFTER measured."""

    code: str
    """Its code."""
    action: str
    """What to do."""
    applied: bool | None
    """Whether it was named as the one applied; None where none was named."""
    predicted_ns: int
    """Predicted step."""
    low_ns: int
    """Lower bound."""
    high_ns: int
    """Upper bound."""
    predicted_gain_ns: int
    """Step it starts from − predicted step."""
    measured_ns: int | None
    """Window / steps of AFTER, mean over ranks."""
    gained_ns: int | None
    """Step it starts from − measured."""
    held: Literal["inside", "faster", "slower"] | None
    """Where the measured step lies in the predicted range."""


class CheckCase(TypedDict):
    """One thing that `gpuscope check` checks."""

    name: str
    """`step time` or `new findings`."""
    status: Literal["passed", "failed", "skipped"]
    """`skipped` where the traces don't settle it."""
    message: str
    """In words."""


class Diff(TypedDict):
    """The whole document."""

    diff_version: int
    """Version of this document: 1."""
    gpuscope_version: str
    """Version that compared."""
    verdict: DiffVerdict
    """What became of the step time."""
    step: Change
    """The change of the step time."""
    before: DiffSide
    """The two runs."""
    after: DiffSide
    """The two runs."""
    breakdown: list[PartChange]
    """The four parts."""
    causes: list[CauseChange]
    """Every cause that either run has, the largest change first."""
    findings: FindingChange
    """Codes of findings that came, went or changed."""
    collectives: list[CollectiveChange]
    """Operations of a group, the one whose time changed most first."""
    kernels: list[KernelChange]
    """Device events by name and category, the largest change first."""
    operators: list[OperatorChange]
    """Operators of the framework, without those in them, the largest change first; empty where a run records none."""
    suggestions: list[Proof]
    """Suggestions of BEFORE's report, the one followed first."""
    caveats: list[str]
    """Other differences of the runs, in words."""
    checks: NotRequired[list[CheckCase]]
    """What `gpuscope check` says; absent from `gpuscope diff`."""
