"""The report: one JSON document, the same for the terminal, HTML, `--json` and the Python API.

Keys are stable; more may be added. Times and sizes are integers (ns, bytes), `*_frac` is 0..1, bandwidths
are 1e9 B/s. What the numbers mean stands in docs/definitions.md.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from gpuscope.schema.compute_section import ComputeEntry, DeviceCounterEntry, IdealEntry, PowerEntry
from gpuscope.schema.hang_section import Hang
from gpuscope.schema.host_calls_section import HostCallsEntry
from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.schema.nccl_sections import (
    BandwidthEntry,
    CrossoverEntry,
    FitEntry,
    LinkCounterEntry,
    Nccl,
    TopologyEntry,
    TrafficEntry,
)
from gpuscope.schema.pipeline_section import Pipeline
from gpuscope.schema.profile_sections import (
    ApiCallEntry,
    CopyEntry,
    GapEntry,
    KernelRankEntry,
    LaunchEntry,
    OperatorEntry,
    PhaseEntry,
    QueueEntry,
    RangeEntry,
    StreamEntry,
)
from gpuscope.schema.provenance import Provenance
from gpuscope.schema.replay_section import Prediction, Replay
from gpuscope.trace.naming.programs import Program

SCHEMA_VERSION = 3

Class = Literal["cpu", "communication", "memory", "compute"]
AbstainReason = Literal[
    "contradiction", "hung", "cut_off", "no_device_events", "thinned", "kernels_lost", "no_host_events"
]


class SourceEntry(TypedDict):
    """A file that was read."""

    path: str
    format: str
    format_version: str
    rank: int | None
    """The rank it holds; None where it holds several (they are then in `ranks`)."""
    ranks: list[int]
    events: int


class TraceEntry(TypedDict):
    """What was analysed."""

    sources: list[SourceEntry]
    world_size: int | None
    world_basis: str | None
    """Where world_size comes from: distributed_info, communicators, environment, manifest, or assumed."""
    ranks_present: list[int]
    clock_error_ns: int | None
    """Bound on the error of cross-rank times; None where nothing ties the ranks' clocks."""
    clock_provenance: Provenance | None
    """`measured` by collectives that end together; `assumed` where the slowdown assumes one clock, as the recorder
    states; None where times of different ranks are not compared."""
    frameworks: list[str]
    """Frameworks recognised in the trace: deepspeed, megatron, lightning, fsdp2, ddp…"""
    program: Program | None
    """What kind of program was recorded; None where only records without events were read."""
    parallelism: dict[str, int]
    """Ranks per kind of parallelism (dp, tp, pp, cp, ep), from the process groups."""


class Verdict(TypedDict):
    """What bounds the run, and how sure that is."""

    bound_by: Class | None
    cause: str | None
    share_frac: float
    confidence: float
    abstained: bool
    cause_abstained: bool
    """The class is certain, its cause is not: `why` says what to record."""
    why: str
    limits: list[str]
    """What lowers the confidence by a tenth or more, the most first."""
    abstain_reason: NotRequired[AbstainReason | None]
    """Why there is no verdict; reports of version 2 lack it."""
    record: NotRequired[str]
    """What to record or add to have the verdict, or its cause; empty where that is no short matter."""


class BreakdownEntry(TypedDict):
    compute: int
    exposed_communication: int
    exposed_memory: int
    idle: int


class Stalls(TypedDict):
    """Time that is not compute, by class and cause, in ns."""

    cpu: dict[str, int]
    communication: dict[str, int]
    memory: dict[str, int]
    unattributed: int


class RankEntry(TypedDict):
    """One rank on one device over the whole window."""

    rank: int
    device: int | None
    device_name: str | None
    window_ns: int
    """Of what is judged: the steady steps, else the whole window."""
    start_ns: int
    steps: int
    """Judged steps."""
    recorded_ns: int
    recorded_breakdown_ns: BreakdownEntry
    breakdown_ns: BreakdownEntry
    communication_ns: int
    overlapped_communication_ns: int
    overlap_frac: float | None
    stall_ns: Stalls


class StepEntry(TypedDict):
    """One step of one rank; `step` is None for what ran before the first step."""

    step: int | None
    rank: int
    device: int | None
    role: Literal["setup", "partial", "warmup", "outlier", "steady"]
    start_ns: int
    dur_ns: int
    breakdown_ns: BreakdownEntry
    bound_by: Class
    cause: str | None


class StepTime(TypedDict):
    """«The step»: the median over the judged steps of their duration, the largest over ranks; and their spread."""

    median_ns: int
    p90_ns: int
    min_ns: int
    max_ns: int
    steps: int


class CollectiveEntry(TypedDict):
    """One operation of one group: count, bytes and transfer over instances, wait and dur over ranks too."""

    op: str
    group: str | None
    count: int
    bytes: int | None
    size_basis: str | None
    """What sizes among them are estimated from; None where all are recorded, or none is known."""
    dur_ns: int
    wait_ns: int | None
    transfer_ns: int | None
    algbw_gbps: float | None
    busbw_gbps: float | None
    lower_bound: bool
    """Whether bandwidth is at least this: some instances are not matched, and their time may hold waiting."""


class StragglerEntry(TypedDict):
    """A rank that others waited for, or that made another one late."""

    rank: int
    caused_wait_ns: int
    """The others' exposed waits where it came last, summed over them."""
    caused_wait_ns_per_step: int | None
    """What of it is exposed per rank that waited and step, waited once by collectives that wait together: the mean."""
    per_step_ns: int | None
    """The same as its share of the judged time of the ranks that waited, times «the step»: compares with a gain. None
    without steps."""
    root_wait_ns: int
    """Waits that go back to it, through whatever ranks it made late on the way."""
    phase: str | None
    operation: str | None
    recurrent: bool
    reason: Literal["device", "data", "host", "cores"] | None
    """Its device is slower at equal work, it has more work, its host is late, or other threads held its cores; None
    where the trace can't show it."""
    reason_why: str
    more_work: NotRequired[str]
    """With the reason `data`: how much more it computes, and what."""
    own_operation: NotRequired[str]
    """With the reason `data`: the operation that makes it late, where no other rank runs it at all."""


class RankStepEntry(TypedDict):
    """One rank in one step: a cell of the rank × step table."""

    rank: int
    step: int
    step_ns: int
    wait_caused_ns: int
    wait_suffered_ns: int


class Evidence(TypedDict):
    """A span of the trace that shows a finding."""

    rank: int
    start_ns: int
    dur_ns: int
    name: str
    note: str


class FindingEntry(TypedDict):
    """Something that costs time, under a stable code (docs/findings.md)."""

    code: str
    severity: Literal["high", "medium", "low"]
    message: str
    facts: NotRequired[dict[str, Any]]
    """What the message is made of; reports of version 2 lack them."""
    ranks: list[int]
    cost_ns_per_step: int | None
    """The mean over the judged steps, which no page shows: see `per_step_ns`. None of what is paid once."""
    per_step_ns: NotRequired[int | None]
    """`share_frac` times «the step»: what pages call «per step»; added when the report is made. None of what is paid
    once, and without steps."""
    cost_ns: int | None
    """In all: of a stall over the judged steps; of what is paid once, in the whole recording."""
    share_frac: float
    evidence: list[Evidence]


class Setting(TypedDict):
    """What to set."""

    kind: Literal["env", "python", "config"]
    name: str
    value: str
    now: NotRequired[str]
    """What it is in this run, where the trace shows it."""
    besides: NotRequired[str]
    """Other arguments that belong to the same call."""


class SuggestionEntry(TypedDict):
    """A change, its predicted gain and how to verify it."""

    code: str
    finding: str
    action: str
    why: str
    setting: Setting
    predicted: Prediction
    certain: NotRequired[bool]
    """Whether the whole range is a gain; else it is the expected outcome alone."""
    grounds: NotRequired[str]
    """What in the trace calls for it, and that it is inferred where it is; absent where its finding says so."""
    risk: str
    verify: str


class MemoryBound(TypedDict):
    """What a change can save at most of the memory in use at the peak."""

    peak_bytes_before: int
    peak_bytes_low: int
    basis: str


class UnpredictedEntry(TypedDict):
    """A change that may help, but whose gain is not estimated."""

    code: str
    finding: str
    action: str
    setting: Setting
    why_not: str
    risk: NotRequired[str]
    verify: NotRequired[str]
    """How to try it; reports of older versions lack both."""
    grounds: NotRequired[str]
    """As a suggestion's."""
    memory_bound: NotRequired[MemoryBound]
    """Of a change that saves memory, where an allocator snapshot shows how much at most."""
    path: NotRequired[str]
    """The snapshot that it is for, where several are of different jobs."""


class TriedEntry(TypedDict):
    """A change that was replayed and gains nothing."""

    code: str
    action: str
    setting: Setting
    step_ns_after: int


class NothingGainsEntry(TypedDict):
    """A cause that costs more than 5 % of the time, and what was tried against it in vain."""

    finding: str
    share_frac: float
    tried: list[TriedEntry]


class PlanStep(TypedDict):
    """One change of a plan."""

    code: str
    finding: str
    action: str
    setting: Setting
    step_ns_after: int
    """Of this and all before it together."""
    risk: str
    verify: str


class PlanEntry(TypedDict):
    """The best combination of changes that was found, in the order of what each adds."""

    predicted: Prediction
    """Of all of them together, by one replay."""
    steps: list[PlanStep]


class AdviceEntry(TypedDict):
    """Why there are no suggestions, changes without an estimated gain, and causes that nothing helps against."""

    why: str
    """Why there are none; empty where there are."""
    asked: NotRequired[bool]
    """False where advice was not asked for; else absent."""
    unpredicted: list[UnpredictedEntry]
    nothing_gains: NotRequired[list[NothingGainsEntry]]
    plan: NotRequired[PlanEntry]
    """Where two changes or more together gain more than any alone."""


class KernelEntry(TypedDict):
    """All device events of one name and category, over the ranks analysed."""

    name: str
    category: str
    operator: str | None
    """The operator or range that launches it, innermost first; of several, the one with most of its time."""
    known_by: Literal["name", "namespace", "launcher"] | None
    """Of communication, the rule that knew it: its own name, its library's namespace, or what launched it."""
    count: int
    dur_ns: int
    mean_ns: int
    min_ns: int
    max_ns: int
    share_frac: float
    """Share of all device-event time."""
    flops_per_s: float | None
    """Achieved rate where the operators' shapes were recorded."""
    precision: str | None
    """At which it multiplies: `bf16`, `fp8`…, `fp32 or tf32`; None where it does not, or that is not known."""
    peak_frac: float | None
    """That rate over the device's dense peak at that precision."""


class PrecisionEntry(TypedDict):
    """FLOPs at one precision."""

    precision: str | None
    flops: int
    peak_flops_per_s: float | None
    """The device's dense peak at it."""


class StepEfficiency(TypedDict):
    """One step of one rank; `step` is None for the whole window where no steps were found."""

    step: int | None
    dur_ns: int
    flops: int
    """Of operators whose shapes were recorded."""
    mfu: float | None


class EfficiencyEntry(TypedDict):
    """How much of its device's peak one rank uses, over its steps."""

    rank: int
    device: int
    device_name: str | None
    mfu: float | None
    flops_per_step: float | None
    flops_per_s: float | None
    precisions: list[PrecisionEntry]
    coverage_frac: float | None
    """Share of the time of matrix products, convolutions and attention that `mfu` counts."""
    why: str
    """Why there is no MFU, or what it leaves out; empty where it counts all."""
    steps: list[StepEfficiency]


class ProblemEntry(TypedDict):
    """What was lost or is uncertain."""

    severity: Literal["info", "data_loss", "error"]
    code: str
    count: int
    message: str


class AnalyzerEntry(TypedDict):
    """What became of one analysis."""

    name: str
    status: Literal["ok", "skipped", "failed"]
    why: str
    applicable: bool
    """False where it is skipped because the run holds nothing that it analyses: no loss."""


class Explained(TypedDict):
    """M: the share of the slowdown that goes away if only these operations were as fast as their peers."""

    by_operation: dict[str, float]
    by_rank: dict[str, float]
    by_stage: dict[str, float]


class Slowdown(TypedDict):
    """What-if slowdowns (where they can be computed)."""

    total: float
    provenance: Provenance
    """`measured` by timers of the job, `inferred` where operations are found from ranges."""
    by_operation: dict[str, float]
    by_rank: dict[str, float]
    by_stage: dict[str, float]
    explained: NotRequired[Explained]
    steps: NotRequired[int]
    """Steps replayed."""
    recorded_step_ns: NotRequired[int]
    replayed_step_ns: NotRequired[int]
    """T: mean replayed step time with the recorded durations, nothing launched late."""
    ideal_step_ns: NotRequired[int]
    """The same where no operation is slower than its peers."""
    at_peers_pace: NotRequired[dict[str, Prediction]]
    """By rank, what the step becomes with it at the mean pace of its peers: of each `slow_worker`."""


class SharedEntry(TypedDict):
    """How many different names `--share` replaced."""

    paths: int
    hosts: int
    users: int


class Diagnosis(TypedDict):
    """The diagnosis of a run: the document as far as advice rests on it."""

    schema_version: int
    gpuscope_version: str
    trace: TraceEntry
    verdict: Verdict
    ranks: list[RankEntry]
    steps: list[StepEntry]
    step_time: StepTime | None
    """None where no steps were found: the whole window is judged."""
    steps_basis: str | None
    """What the steps were found from; None where there are none."""
    steps_provenance: Provenance | None
    """`measured` from ranges that name steps, `inferred` from what repeats; None where there are none."""
    collectives: list[CollectiveEntry]
    stragglers: list[StragglerEntry]
    rank_steps: list[RankStepEntry]
    """Who waited for whom, by rank and step; empty where no collective is matched."""
    slowdown: NotRequired[Slowdown]
    replay: NotRequired[Replay]
    pipeline: NotRequired[Pipeline]
    """Where ranks are stages of a pipeline."""
    hang: NotRequired[Hang]
    """Where Flight Recorder dumps were read."""
    nccl: NotRequired[Nccl]
    topology: NotRequired[list[TopologyEntry]]
    """These two where records of NCCL and its tools were read."""
    bandwidth: NotRequired[list[BandwidthEntry]]
    fits: NotRequired[list[FitEntry]]
    """Where sizes of collectives are recorded, or NCCL's tools measured."""
    link_counters: NotRequired[list[LinkCounterEntry]]
    """What the counters of ports, NVLink and PCIe recorded."""
    device_counters: NotRequired[list[DeviceCounterEntry]]
    """What the counters of GPUs recorded: SMs, memory, power, clocks."""
    crossovers: NotRequired[list[CrossoverEntry]]
    """Where measured times show that another choice of NCCL is faster."""
    traffic: NotRequired[list[TrafficEntry]]
    """Where messages between ranks are recorded with their other end."""
    memory: NotRequired[list[MemoryEntry]]
    """Where allocator snapshots or memory events were read."""
    host_calls: NotRequired[list[HostCallsEntry]]
    """Where a rank with a device was recorded."""
    kernels: list[KernelEntry]
    efficiency: NotRequired[list[EfficiencyEntry]]
    """Where compute kernels were recorded."""
    compute: NotRequired[list[ComputeEntry]]
    ideal: NotRequired[list[IdealEntry]]
    """What each rank's kernels are, and its step with all at peak; where compute kernels were recorded."""
    power: NotRequired[list[PowerEntry]]
    """Clocks and power of each rank's GPU, where NVML was sampled."""
    kernel_ranks: list[KernelRankEntry]
    operators: list[OperatorEntry]
    ranges: list[RangeEntry]
    phases: list[PhaseEntry]
    api_calls: list[ApiCallEntry]
    copies: list[CopyEntry]
    launches: list[LaunchEntry]
    queues: list[QueueEntry]
    streams: list[StreamEntry]
    gaps: list[GapEntry]
    """These ten are empty where the recording holds none; reports of before they were introduced lack them."""
    findings: list[FindingEntry]
    shared: NotRequired[SharedEntry]
    """Of a report for others to read: what was replaced in it."""


class Report(Diagnosis):
    """The whole document."""

    suggestions: list[SuggestionEntry]
    advice: AdviceEntry
    problems: list[ProblemEntry]
    analyzers: list[AnalyzerEntry]
