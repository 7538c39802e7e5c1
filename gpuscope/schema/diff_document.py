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


class VersionChange(TypedDict):
    """Software whose version differs, or is recorded on one side only."""

    name: str
    """As in `trace.setup.versions`."""
    before: str | None
    """Null where not recorded."""
    after: str | None
    """Null where not recorded."""


class OperatorSide(TypedDict):
    """Kernels of an operator in one of the runs, per step and rank."""

    calls: float
    """Calls."""
    kernels: float
    """Kernels launched in them."""
    kernel: str
    """The kernel with most of the time."""
    dur_ns: int
    """Their time."""
    share_frac: float
    """Of the step."""
    flops_per_s: float | None
    """Achieved; null where FLOPs are not known."""
    bytes_per_s: float | None
    """Achieved, of the bytes moved at least; null where not known."""
    bound: Literal["flops", "bytes"] | None
    """Which of the device's peaks takes longer for this work."""
    peak_frac: float | None
    """Share of that peak; above 1 where a cache holds the data."""


class OperatorPair(TypedDict):
    """One operator with its input shapes on both platforms, or what stands for it on each."""

    module: str | None
    """Class of the module it runs in."""
    operator: str
    """Its name; of a whole module, what most of its time is on the side before."""
    shapes: str
    """Of its inputs."""
    category: str
    """What it does."""
    matched_by: Literal["operator", "within", "module"] | None
    """Name and shapes; those of the outermost operator around it, inside which other operators run; the module, in
    which the operators differ. Null where only one run has it."""
    before: OperatorSide | None
    """Null where only the other run has it."""
    after: OperatorSide | None
    """Null where only the other run has it."""
    change_ns: int
    """After − before."""


class ExplainedChange(TypedDict):
    """A part of the step's change. `work_ns`, `peak_ns` and `speed_ns` sum to `change_ns`, or are all null."""

    what: Literal["operators", "unmatched", "overlap", "exposed_communication", "exposed_memory", "idle"]
    """Operators that both have, those that one has, kernels that run beside each other, a part of the breakdown."""
    category: str | None
    """Of the operators."""
    before_ns: int
    """Before; of `overlap` negative, for it shortens the step."""
    after_ns: int
    """After."""
    change_ns: int
    """After − before."""
    work_ns: int | None
    """By more or less work: FLOPs, else bytes, else calls."""
    peak_ns: int | None
    """By the devices' peaks, were as much of them reached as before."""
    speed_ns: int | None
    """The rest: by how much of the peak is reached; where work or peaks are not known, all that work is not."""


class PlatformChange(TypedDict):
    """Two runs by operators and not by kernels, whose names differ between GPUs and versions."""

    changed: bool
    """Whether the devices differ, or a version of software that both recorded."""
    device_before: str | None
    """Model."""
    device_after: str | None
    """Model."""
    versions: list[VersionChange]
    """Versions that differ."""
    by: list[Literal["module", "operator", "shapes"]]
    """What operators are matched by: what both runs recorded."""
    matched_frac: float
    """Share of the compute time that is matched, of the run where it is less."""
    comparable: bool
    """Whether enough is."""
    why: str
    """Why not, or what the match lacks; what to record. Else empty."""
    explained: list[ExplainedChange]
    """What makes up `step.change_ns`, to the nanosecond, the largest first; empty where not comparable."""
    pairs: list[OperatorPair]
    """Operators, the one whose time changed most first; empty where not comparable."""


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
    platform: NotRequired[PlatformChange]
    """The runs by operator; **absent** without device kernels in both, and for reports that older versions wrote."""
    suggestions: list[Proof]
    """Suggestions of BEFORE's report, the one followed first; of another platform only one that was named."""
    caveats: list[str]
    """Other differences of the runs, in words."""
    checks: NotRequired[list[CheckCase]]
    """What `gpuscope check` says; absent from `gpuscope diff`."""
