"""The report: one JSON document, the same for the terminal, HTML, `--json` and the Python API.

Keys are stable; more may be added. Times and sizes are integers (ns, bytes), `*_frac` is 0..1, bandwidths
are 1e9 B/s. What the numbers mean stands in docs/definitions.md.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired

from gpuscope.schema.call_tree_section import (
    CompilationSection,
    ComputeEntry,
    DeviceCounterEntry,
    EventId,
    HostCallsEntry,
    IdealEntry,
    OperatorWorkEntry,
    PlaceEntry,
    PowerEntry,
    ServingSection,
)
from gpuscope.schema.job_log_section import JobLogSection
from gpuscope.schema.memory_section import Hang, MemoryEntry
from gpuscope.schema.nccl_sections import (
    ApiCallEntry,
    BandwidthEntry,
    CopyEntry,
    CrossoverEntry,
    FitEntry,
    GapEntry,
    KernelRankEntry,
    LaunchEntry,
    LinkCounterEntry,
    Nccl,
    OperatorEntry,
    PhaseEntry,
    QueueEntry,
    RangeEntry,
    StreamEntry,
    TopologyEntry,
    TrafficEntry,
)
from gpuscope.schema.provenance import ExpertsSection, Pipeline, Prediction, Provenance, Replay, RolesSection
from gpuscope.trace.frameworks import Phase, Program
from gpuscope.when_used import TypedDict

SCHEMA_VERSION = 3

Class = Literal["cpu", "communication", "memory", "compute"]
AbstainReason = Literal[
    "contradiction",
    "hung",
    "cut_off",
    "no_device_events",
    "events_dropped",
    "thinned",
    "kernels_lost",
    "no_host_events",
    "idle_unexplained",
    "little_work",
    "totals_contradict",
]


class SourceEntry(TypedDict):
    """A file that was read."""

    path: str
    """As it was found."""
    format: str
    """`kineto`, `ascend`, `nsys`…"""
    format_version: str
    """The format's version as recorded in the file; empty where it is not."""
    rank: int | None
    """The rank it holds; None where it holds several (they are then in `ranks`)."""
    ranks: list[int]
    """All ranks it holds."""
    events: int
    """Events in the file, those without use for an analysis included."""


class SetupEntry(TypedDict):
    """What is recorded of the software and the hosts of a job, beside its events."""

    versions: dict[str, str]
    """By package: torch, deepspeed, nccl…; from the run's `environment/`, or a compile log."""
    variables: dict[str, str]
    """Environment variables that change how fast the job runs, from the run's `environment/`."""
    cores_per_rank: int | None
    """CPU cores for each rank, the fewest of all; null where they are not recorded."""
    stacks: bool
    """Whether Python stacks were recorded."""
    settings: NotRequired[dict[str, list[str]]]
    """By setting, as the recorder calls it (`ddp.bucket_cap_mb`), the values that it saw in effect on any rank;
    `default` and `none` where the script gives none."""


class ClockEntry(TypedDict):
    """The run's clock. A rank's own time t is (t − o) − drift · (t − o) after the origin, where o = origin + offset."""

    origin_ns: int
    """When the first window of any rank starts: every place (`+12.3 ms`) on a page or in a report counts from here."""
    offset_ns: dict[str, int]
    """By rank: what its clock shows beyond the run's at the origin; ranks without are left out. Where nothing ties the
    clocks, the windows of each host start together."""
    drift_frac: dict[str, float]
    """By rank: how much faster its clock runs; ranks without are left out."""


class TraceEntry(TypedDict):
    """What was analysed."""

    sources: list[SourceEntry]
    """The files that were read."""
    world_size: int | None
    """Ranks of the job."""
    world_basis: str | None
    """Where world_size comes from: distributed_info, communicators, environment, manifest, or assumed."""
    ranks_present: list[int]
    """Ranks in these files."""
    clock_error_ns: int | None
    """Bound on the error of cross-rank times; None where nothing ties the ranks' clocks."""
    clock_provenance: Provenance | None
    """`measured` by collectives that end together; `assumed` where the slowdown assumes one clock, as the recorder
    states; None where times of different ranks are not compared."""
    clock: NotRequired[ClockEntry | None]
    """On which times of all ranks are shown; None without windows. Reports of gpuscope 0.2 and before lack it."""
    frameworks: list[str]
    """Frameworks recognised in the trace: deepspeed, megatron, lightning, fsdp2, ddp…"""
    program: Program | None
    """What kind of program was recorded; None where only records without events were read."""
    parallelism: dict[str, int]
    """Ranks per kind of parallelism (dp, tp, pp, cp, ep), from the process groups."""
    setup: NotRequired[SetupEntry]
    """What is recorded of the software and the hosts; reports of gpuscope 0.2 and before lack it."""


class Verdict(TypedDict):
    """What bounds the run, and how sure that is."""

    bound_by: Class | None
    """`cpu`, `communication`, `memory` or `compute`; null if it abstains."""
    cause: str | None
    """Largest cause of that class; null with `compute`, where the cause alone abstains, or where the whole verdict
    does."""
    share_frac: float
    """Share of the judged time: the class's; with `compute`, the compute part's; where only operations are known, 1 −
    1/S; 0 if the verdict abstains."""
    confidence: float
    """0 if it abstains, else 0.05 to 0.95."""
    abstained: bool
    """Whether the trace can't support a verdict."""
    cause_abstained: bool
    """The class is certain, its cause is not: `why` says what to record."""
    why: str
    """The reason in words; what to record if it abstains."""
    limits: list[str]
    """What lowers the confidence by a tenth or more, the most first."""
    abstain_reason: NotRequired[AbstainReason | None]
    """Why there is no verdict; reports of version 2 lack it."""
    record: NotRequired[str]
    """What to record or add to have the verdict, or its cause; empty where that is no short matter."""
    reason: NotRequired[str]
    """Of a verdict that abstains `why` without what to record."""


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
    """Idle time that no host event explains."""


class RankEntry(TypedDict):
    """One rank on one device. `window_ns`, `breakdown_ns`, the communication times and `stall_ns` are sums over the
    [judged steps](definitions.md#what-is-judged); `recorded_ns` and `recorded_breakdown_ns` cover the whole
    recording."""

    rank: int
    device: int | None
    """Device ordinal; null where the training thread is the device."""
    device_name: str | None
    """Model."""
    window_ns: int
    """Of what is judged: the steady steps, else the whole window."""
    start_ns: int
    """Start of the first judged step, else of the window, on the run's clock."""
    steps: int
    """Judged steps."""
    recorded_ns: int
    """From its first device event to the end of its last one."""
    recorded_breakdown_ns: BreakdownEntry
    """The four parts of that, which sum to `recorded_ns`; equal to the sums over all of its `steps[]`."""
    breakdown_ns: BreakdownEntry
    """The four parts, which sum to `window_ns`."""
    communication_ns: int
    """All communication, exposed or not."""
    overlapped_communication_ns: int
    """Communication beside compute."""
    overlap_frac: float | None
    """Overlapped / communication; null without communication."""
    stall_ns: Stalls
    """Time that is not compute, by class and cause."""


class BatchEntry(TypedDict):
    """What a step of an inference server worked on; null what is not told."""

    prefill_requests: int | None
    """Prompts…"""
    prefill_tokens: int | None
    """… and their tokens in this step."""
    decode_requests: int | None
    """Requests that get their next token…"""
    decode_tokens: int | None
    """… and tokens of these; of a capture, the size that is captured."""


class StepEntry(TypedDict):
    """One step of one rank; `step` is None for what ran before the first step. All that was recorded, judged or not:
    see `role`."""

    step: int | None
    """Number; null for what ran before the first step (role `setup`)."""
    rank: int
    device: int | None
    role: Literal["setup", "partial", "warmup", "outlier", "steady", "before_shift"]
    """`setup`, `partial`, `warmup`, `outlier`, `steady` or `before_shift`
    ([roles](definitions.md#what-is-judged)), the same for all ranks."""
    start_ns: int
    """Start on the device."""
    dur_ns: int
    """Length; the steps of a rank tile its recording."""
    breakdown_ns: BreakdownEntry
    """As in `ranks[]`; sums to `dur_ns`."""
    bound_by: Class
    """Class, by the rule of the verdict, for this step and rank alone."""
    cause: str | None
    phase: NotRequired[Phase | None]
    """Of an inference server: `prefill`, `decode`, `mixed` or `capture`; null where the trace does not tell, or of
    training. Older reports lack it."""
    batch: NotRequired[BatchEntry | None]
    """What an inference server worked on; null where it is not told."""


class StepTime(TypedDict):
    """«The step» and its spread over the judged steps; each step's duration is the largest over ranks, or where
    `of_run_ns` is there, what that says."""

    median_ns: int
    """«the step»: what predictions start from."""
    p90_ns: int
    """90th percentile, interpolated linearly."""
    min_ns: int
    max_ns: int
    steps: int
    """Judged steps."""
    of_run_ns: NotRequired[dict[str, int]]
    """By step number, from its earliest begin on any rank to the next step's; **absent** where «the step» is the
    median of the largest durations over ranks. Where ranks take turns being late, those exceed what was recorded."""


class CollectiveEntry(TypedDict):
    """One operation of one group: count, bytes and transfer over instances, wait and dur over ranks too. All that was
    recorded, judged or not."""

    op: str
    """`all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, `send_recv`…"""
    group: str | None
    """The group's description, else its name."""
    count: int
    """Instances."""
    bytes: int | None
    """Sum over instances, size of the whole array each; null if one is not recorded."""
    size_basis: str | None
    """What sizes among them are estimated from; None where all are recorded, or none is known."""
    dur_ns: int
    """Sum over instances and ranks."""
    wait_ns: int | None
    """Sum over instances and ranks; null where not matched."""
    transfer_ns: int | None
    """Sum over instances; null where not matched."""
    algbw_gbps: float | None
    """Bytes / transfer (or / duration where not matched: a lower bound)."""
    busbw_gbps: float | None
    """algbw × nccl-tests' factor."""
    lower_bound: bool
    """Whether bandwidth is at least this: some instances are not matched, and their time may hold waiting."""


class LateGroupEntry(TypedDict):
    """Ranks that are late alike, and what they share."""

    ranks: list[int]
    by: Literal["host", "stage", "reason"]
    name: str
    """The host, the stage's number, or the reason."""


class StragglerEntry(TypedDict):
    """Ranks that others waited for, over the judged steps."""

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
    """The part of the step that made it late: `forward`, `backward`, `optimizer`, `data`, `checkpoint`, or `before …`
    one of them; null where that is not known."""
    operation: str | None
    """The operation, or what its host did while the device was `idle`, that made it late; null where no single one did.
    """
    recurrent: bool
    """It is late again and again, by itself and not for others, beyond what chance would give
    ([how](definitions.md#waiting-and-transferring))."""
    period: NotRequired[int]
    """Late in every how-manieth step; absent where it is late in all of them."""
    last_in_steps: NotRequired[int]
    """Of a rank that is not recurrent: in how many whole steps it came last of those that do the same…"""
    of_steps: NotRequired[int]
    """… and how many there are."""
    group: NotRequired[LateGroupEntry]
    """The recurrent ranks that are late with it; absent where it is late alone."""
    reason: Literal["device", "data", "host", "cores"] | None
    """Its device is slower at equal work, it has more work, its host is late, or other threads held its cores; None
    where the trace can't show it."""
    reason_why: str
    """A sentence for people; may change."""
    host_cause: NotRequired[str]
    """With the reason `host`: the cause for which its device idles longer than its peers' by most."""
    more_work: NotRequired[str]
    """With the reason `data`: how much more it computes, and what."""
    own_operation: NotRequired[str]
    """With the reason `data`: the operation that makes it late, where no other rank runs it at all."""


class RankStepEntry(TypedDict):
    """One rank in one step: a cell of the rank × step table."""

    rank: int
    step: int
    step_ns: int
    """Length of the step on this rank."""
    wait_caused_ns: int
    """The others' waits in collectives of this step where this rank came last, overlapped waiting included."""
    wait_suffered_ns: int
    """Its own exposed waits in this step."""


class Evidence(TypedDict):
    """A span of the trace that shows a finding."""

    rank: int
    start_ns: int
    """On its rank's own clock."""
    dur_ns: int
    name: str
    """What ran there."""
    note: str
    """Why it is evidence."""
    event: NotRequired[EventId]
    """The recorded event of that name, which may last longer than the span; absent where none is meant: a step, a gap
    in which nothing is recorded, several events together."""
    covered_frac: NotRequired[float]
    """Share of an idle span that the named host event covers; absent where there is none."""
    between: NotRequired[bool]
    """Whether the name is of what lies on both sides of an idle span, in which nothing is recorded; else absent."""
    sampled: NotRequired[bool]
    """Whether the name is a function in which samples of the CPU found the thread; else absent."""
    awaits: NotRequired[bool]
    """Whether the thread may wait there for work from another process: nothing is recorded behind a blocking call, and
    no range lies around it; else absent."""
    holds_step: NotRequired[bool]
    """Whether the named range holds parts of a step (forward, backward, the optimizer, matrix products); else
    absent."""


class FindingEntry(TypedDict):
    """What costs time, the costliest first. The codes: [findings](findings.md)."""

    code: str
    """See [findings.md](findings.md)."""
    severity: Literal["high", "medium", "low"]
    """`high`, `medium` or `low`."""
    message: str
    """A sentence for people; may change."""
    facts: NotRequired[dict[str, Any]]
    """What the message is made of; reports of version 2 lack them."""
    ranks: list[int]
    """Ranks that lose the time; for `straggler`, `slow_worker` and `slow_stage` those at fault."""
    cost_ns_per_step: int | None
    """The mean over the judged steps, which no page shows: see `per_step_ns`. None of what is paid once."""
    per_step_ns: NotRequired[int | None]
    """`share_frac` times «the step»: what pages call «per step»; added when the report is made. None of what is paid
    once, and without steps."""
    cost_ns: int | None
    """In all: of a stall over the judged steps; of what is paid once, in the whole recording."""
    share_frac: float
    """`cost_ns` of a stall by the judged windows of all ranks; of the replayed step for findings of the what-if; 0 for
    what is paid once, but for a `startup` that is most of a recording without steady steps: then its share."""
    worst_share_frac: NotRequired[float]
    """Of what is looked for rank by rank: the largest share that it costs a rank of its own judged windows."""
    evidence: list[Evidence]
    """The longest spans that show it."""


class Setting(TypedDict):
    """What to set."""

    kind: Literal["env", "python", "config"]
    """`env`, `python` or `config`."""
    name: str
    value: str
    now: NotRequired[str]
    """What it is in this run, where the trace shows it."""
    besides: NotRequired[str]
    """Other arguments that belong to the same call."""


class BeyondEntry(TypedDict):
    """What of a predicted gain is more than the finding costs that it answers, and where that comes from; ns per step,
    of findings the largest over the ranks."""

    ns: int
    cost_ns: int
    """What the finding costs."""
    saved_ns: dict[str, int]
    """By other part of the breakdown, what the replay saves there too."""
    causes: list[str]
    """Codes of the other causes in the finding's own part of the breakdown, the largest first."""


class SuggestionEntry(TypedDict):
    """Changes that gain at least 1 % of the step, the largest certain gain first; `advice.why` says why there are none.
    Gains do not add up, since findings overlap: `advice.plan` replays changes together."""

    code: str
    finding: str
    """Code of the finding it answers."""
    action: str
    """What to do."""
    why: str
    setting: Setting
    """What to set."""
    predicted: Prediction
    """The step time it leads to."""
    if_unused: NotRequired[Prediction]
    """The same where the work behind a blocking call does not need the value that it brings, so that nothing waits for
    it; `predicted` is careful: the value is read, and what follows it done, behind the step's last launch."""
    beyond: NotRequired[BeyondEntry]
    """Where the gain is larger than what its finding costs."""
    certain: NotRequired[bool]
    """Whether the whole range is a gain; else it is the expected outcome alone."""
    grounds: NotRequired[str]
    """What in the trace calls for it, and that it is inferred where it is; absent where its finding says so."""
    risk: str
    verify: str
    """How to see whether it worked."""
    facts: NotRequired[dict[str, Any]]
    """What its words are made of, by the names of its record; reports of older versions lack it."""


class MemoryBound(TypedDict):
    """What a change can save at most of the memory in use at the peak."""

    peak_bytes_before: int
    peak_bytes_low: int
    basis: str
    """Under what assumption."""


class BoundParts(TypedDict):
    """Of exposed transfers «the step» at best, each by a replay; None where the sizes of messages are missing, or the
    replay refuses."""

    no_fixed_cost_ns: int | None
    """Without the fixed cost of messages: what fewer and larger ones can give at most."""
    half_bytes_ns: int | None
    """With half the bytes: 16 bits in place of 32, sharding."""
    double_bandwidth_ns: int | None
    """At twice the bandwidth: another algorithm, protocol or link."""
    hidden_ns: int | None
    """Hidden behind compute, as far as the links carry them in a step."""


class StepBound(TypedDict):
    """What a change can save at most of «the step», of the window without steps."""

    step_ns_before: int
    step_ns_low: int
    """Less the largest over the ranks of what the finding costs there in a step; never below what a device computes."""
    basis: str
    """Under what assumption."""
    parts: NotRequired[BoundParts]
    """Of exposed transfers; `step_ns_low` is the smallest of them."""


class TransferBound(TypedDict):
    """What can be gained at most of transfers that are not hidden."""

    finding: str
    """Its code."""
    bound: StepBound


class UnpredictedEntry(TypedDict):
    """A change that may help, but whose gain no replay tells."""

    code: str
    finding: str
    """Code of the finding it answers."""
    action: str
    """What to do."""
    setting: Setting
    """As in `suggestions[].setting`."""
    why_not: str
    """Why its gain is not estimated, and what to record."""
    risk: NotRequired[str]
    """What may go wrong."""
    verify: NotRequired[str]
    """How to try it; reports of older versions lack both."""
    grounds: NotRequired[str]
    """As a suggestion's."""
    bound: NotRequired[StepBound]
    """Absent where the finding costs no time of a step."""
    memory_bound: NotRequired[MemoryBound]
    """Of a change that saves memory, where an allocator snapshot shows how much at most."""
    path: NotRequired[str]
    """The snapshot that it is for, where several are of different jobs."""
    facts: NotRequired[dict[str, Any]]
    """As a suggestion's."""


class TriedEntry(TypedDict):
    """A change that was replayed and gains nothing."""

    code: str
    action: str
    setting: Setting
    """As in `suggestions[].setting`."""
    step_ns_after: int
    """The step it leads to."""


class NothingGainsEntry(TypedDict):
    """A cause that costs more than 5 % of the time, and what was tried against it in vain."""

    finding: str
    """Code of the finding."""
    share_frac: float
    """Its share of the time."""
    tried: list[TriedEntry]
    """What was replayed in vain."""
    bound: NotRequired[StepBound]
    """What any other change gains at most."""


class PlanStep(TypedDict):
    """One change of a plan."""

    code: str
    finding: str
    """Code of the finding it answers."""
    action: str
    setting: Setting
    """As in `suggestions[].setting`."""
    step_ns_after: int
    """Of this and all before it together."""
    risk: str
    verify: str
    facts: NotRequired[dict[str, Any]]
    """As a suggestion's."""


class PlanEntry(TypedDict):
    """The best combination of changes that was found, in the order of what each adds."""

    predicted: Prediction
    """Of all of them together, by one replay."""
    steps: list[PlanStep]
    """Its changes in the order of what each adds."""


class AdviceEntry(TypedDict):
    """What stands beside the suggestions: changes whose gain can't be estimated, causes that nothing helps against, and
    the best combination of changes."""

    why: str
    """Why there are none; empty where there are."""
    asked: NotRequired[bool]
    """False where advice was not asked for; else absent."""
    unpredicted: list[UnpredictedEntry]
    """Changes that may help, but whose gain can't be estimated from this trace."""
    at_best: NotRequired[list[TransferBound]]
    """By finding of exposed transfers the bounds of «the step»; **absent** where none are exposed."""
    nothing_gains: NotRequired[list[NothingGainsEntry]]
    """Causes of more than 5 % of the time that no change tried helps against."""
    plan: NotRequired[PlanEntry]
    """Where two changes or more together gain more than any alone."""
    no_plan: NotRequired[str]
    """Why several changes that gain can't be replayed together, where that is the recording's fault."""


class KernelEntry(TypedDict):
    """All device events of one name and category, over the ranks analysed."""

    name: str
    category: str
    """`gemm`, `attention`, `convolution`, `normalisation`, `softmax`, `embedding`, `moe`, `optimizer`, `reduction`,
    `indexing`, `copy`, `elementwise`, `triton_fused`, `communication`, `memory`, `other`."""
    operator: str | None
    """The operator or range that launches it, innermost first; of several, the one with most of its time."""
    known_by: Literal["name", "namespace", "launcher"] | None
    """Of communication, the rule that knew it: its own name, its library's namespace, or what launched it."""
    count: int
    dur_ns: int
    """Sum over ranks."""
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
    """Over its steps."""
    peak_flops_per_s: float | None
    """The device's dense peak at it."""


class StepEfficiency(TypedDict):
    """One step of one rank; `step` is None for the whole window where no steps were found."""

    step: int | None
    """Number; null for the window where no steps were found."""
    dur_ns: int
    flops: int
    """Of operators whose shapes were recorded."""
    mfu: float | None


class EfficiencyEntry(TypedDict):
    """How much of its device's peak one rank uses, over its steps."""

    rank: int
    device: int
    device_name: str | None
    """Model, whose peak is taken."""
    mfu: float | None
    """Over its steps, or over the window where no steps were found; null where shapes, model or precision are missing,
    or where it can't be told what activation checkpointing computes again."""
    hfu: NotRequired[float | None]
    """The same with what was computed again."""
    checkpointed: NotRequired[bool]
    """Whether operators of the forward pass were seen to run again in the backward pass."""
    flops_per_step: float | None
    """Mean of the operators whose shapes were recorded; null without steps."""
    flops_per_s: float | None
    """These over the time of the steps."""
    precisions: list[PrecisionEntry]
    """FLOPs by precision, the most first."""
    coverage_frac: float | None
    """Share of the time of matrix products, convolutions and attention that `mfu` counts."""
    why: str
    """Why there is no MFU, or what it leaves out; empty where it counts all."""
    steps: list[StepEfficiency]
    """One entry per step."""


class ProblemEntry(TypedDict):
    """What was lost or is uncertain in the input. The codes: [problems](findings.md#problems)."""

    severity: Literal["info", "data_loss", "error"]
    """`info`, `data_loss` or `error`."""
    code: str
    """See [findings.md](findings.md#problems)."""
    count: int
    """Occurrences."""
    message: str
    """A sentence for people; may change."""


class AnalyzerEntry(TypedDict):
    """What became of each analysis. `self_check` checks the report against the definitions: per rank and step the
    breakdown sums to the window, steps tile it, and the causes of each part sum to that part. Where they don't it
    has `failed`, with the ranks and the numbers in `why`; the causes of those ranks are left out and the verdict
    abstains."""

    name: str
    status: Literal["ok", "skipped", "failed"]
    """`ok`, `skipped` (something it needs is not recorded) or `failed` (exit code 4)."""
    why: str
    """What is missing and how to record it, or what broke."""
    applicable: bool
    """False where it is skipped because the run holds nothing that it analyses: no loss."""


class Explained(TypedDict):
    """M: the share of the slowdown that goes away if only these operations were as fast as their peers."""

    by_operation: dict[str, float]
    by_rank: dict[str, float]
    by_stage: dict[str, float]


class Slowdown(TypedDict):
    """What-if slowdowns ([what these mean](definitions.md#slowdown))."""

    total: float
    """S: how many times slower than with each operation at the mean of its peers."""
    provenance: Provenance
    """`measured` by timers of the job, `inferred` where operations are found from ranges."""
    by_operation: dict[str, float]
    """S of one type of operation: only these are slower than their like."""
    by_rank: dict[str, float]
    """S of one rank; of more than 256 ranks, the most suspicious."""
    by_stage: dict[str, float]
    """S of one pipeline stage."""
    explained: NotRequired[Explained]
    """M: the share of the slowdown that goes away if only these are ideal; may exceed 1."""
    steps: NotRequired[int]
    """Steps replayed."""
    recorded_step_ns: NotRequired[int]
    """Mean step as recorded."""
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


class SetApartPart(TypedDict):
    """The steps of one role that are not judged, on the rank where they last longest."""

    role: Literal["setup", "warmup", "outlier", "before_shift"]
    steps: int
    """How many; 0 of set-up."""
    dur_ns: int
    holds: Literal["compute", "exposed_communication", "exposed_memory", "idle"]
    """The largest part of their breakdown…"""
    holds_ns: int
    """… and how long it is."""
    host: str | None
    """What the host did longest while the device was idle, where `holds` is that."""
    op: str | None
    """The collective that waited longest for a late rank, where that is most of what the part holds…"""
    late_rank: int | None
    """… for which rank…"""
    wait_ns: int | None
    """… and for how long in all."""


class SetApart(TypedDict):
    """What of the recording is not judged, where that is much."""

    judged_ns: int
    """What is judged, the longest over ranks."""
    covered_frac: float
    """Share of steady and partial steps in the recorded device window after set-up."""
    startup: bool
    """Whether set-up and warm-up are longer than all that is judged."""
    parts: list[SetApartPart]


class Diagnosis(TypedDict):
    """The diagnosis of a run: the document as far as advice rests on it."""

    schema_version: int
    """Version of this document."""
    gpuscope_version: str
    """Version of gpuscope that wrote it."""
    trace: TraceEntry
    """What was analysed."""
    verdict: Verdict
    """What bounds the run."""
    ranks: list[RankEntry]
    """One entry per rank and device."""
    steps: list[StepEntry]
    """One entry per step and rank; set-up included, so they tile the recording."""
    step_time: StepTime | None
    """«the step» and its spread; null where no steps were found."""
    steps_basis: str | None
    """What the steps were found from; null where there are none."""
    steps_provenance: Provenance | None
    """`measured` from ranges that name steps, `inferred` from what repeats ([provenance](#provenance))."""
    set_apart: NotRequired[SetApart]
    """What of the recording is not judged; **absent** unless set-up and warm-up are longer than what is, or steady and
    partial steps are less than 80 % of what follows set-up."""
    collectives: list[CollectiveEntry]
    """One entry per operation and group, the costliest first."""
    stragglers: list[StragglerEntry]
    """Ranks that others waited for, the costliest first."""
    rank_steps: list[RankStepEntry]
    """Who waited for whom: one entry per rank and step; empty where no collective is matched."""
    slowdown: NotRequired[Slowdown]
    """What-if slowdowns; **absent** where they can't be computed."""
    replay: NotRequired[Replay]
    """The baseline replay, without changes; what predictions rest on."""
    pipeline: NotRequired[Pipeline]
    """Stages, schedule and bubbles; **absent** where ranks are no stages."""
    compilation: NotRequired[CompilationSection]
    """What torch.compile did and cost; **absent** without its logs."""
    experts: NotRequired[ExpertsSection]
    """What uneven routing costs a mixture of experts; **absent** without sizes of its all-to-alls."""
    serving: NotRequired[ServingSection]
    """The steps of an inference server by phase; **absent** of other programs."""
    roles: NotRequired[RolesSection]
    """A step of a job for reinforcement learning by role; **absent** without its timers."""
    job_log: NotRequired[JobLogSection]
    """What the job's log tells of its steps and of the time it loses; **absent** without one."""
    hang: NotRequired[Hang]
    """Where a job hung; **absent** without Flight Recorder dumps."""
    nccl: NotRequired[Nccl]
    """What NCCL logged of itself; **absent** without its logs."""
    topology: NotRequired[list[TopologyEntry]]
    """Links of a host; **absent** without a topology file."""
    bandwidth: NotRequired[list[BandwidthEntry]]
    """Bandwidth by operation, group and size against the link's peak; **absent** without sizes."""
    fits: NotRequired[list[FitEntry]]
    """Fixed cost and bandwidth fitted to the sizes; **absent** without sizes."""
    link_counters: NotRequired[list[LinkCounterEntry]]
    """Counters of network ports, NVLink and PCIe; **absent** without them."""
    device_counters: NotRequired[list[DeviceCounterEntry]]
    """Counters of GPUs: SMs, memory, power, clocks; **absent** without them."""
    crossovers: NotRequired[list[CrossoverEntry]]
    """Sizes at which measured times show that another choice of NCCL is faster; **absent** where there is none."""
    traffic: NotRequired[list[TrafficEntry]]
    """Messages from rank to rank; **absent** where their other end is not recorded."""
    memory: NotRequired[list[MemoryEntry]]
    """What the caching allocator held; **absent** without allocator snapshots and memory events."""
    host_calls: NotRequired[list[HostCallsEntry]]
    """What launching threads call per step: blocking calls by place, allocations; **absent** without a device."""
    kernels: list[KernelEntry]
    """One entry per name and category of device event, the costliest first."""
    efficiency: NotRequired[list[EfficiencyEntry]]
    """MFU by rank and step; **absent** without device kernels."""
    compute: NotRequired[list[ComputeEntry]]
    """What each rank's kernels are, and which another setting would shorten; **absent** without device kernels."""
    operator_work: NotRequired[list[OperatorWorkEntry]]
    """Compute time and work by module, operator and shapes, the costliest first; **absent** without device kernels."""
    ideal: NotRequired[list[IdealEntry]]
    """What an ideal step of each rank would take; **absent** without device kernels."""
    power: NotRequired[list[PowerEntry]]
    """Clocks and power of each rank's GPU; **absent** unless recorded with `--nvml-interval`."""
    kernel_ranks: list[KernelRankEntry]
    """The kernels that take longest, rank by rank; empty, like the nine below, where the recording holds none."""
    operators: list[OperatorEntry]
    """Operators of the framework on host and device, the one with most device time of its own first."""
    ranges: list[RangeEntry]
    """NVTX ranges, annotations and modules on host and device, by rank."""
    phases: list[PhaseEntry]
    """Forward, backward, optimizer… on host and device, by rank."""
    api_calls: list[ApiCallEntry]
    """Calls of the CUDA, HIP or CANN runtime, by rank."""
    copies: list[CopyEntry]
    """Copies and memsets by kind and size, by rank and device."""
    launches: list[LaunchEntry]
    """Launching calls and delays, by rank and device."""
    queues: list[QueueEntry]
    """Length of the launch queue over time, by stream."""
    streams: list[StreamEntry]
    """Busy and idle time, by stream."""
    gaps: list[GapEntry]
    call_tree: list[PlaceEntry]
    """Device time, exposed communication and idle time by the place of the program that they go back to."""
    findings: list[FindingEntry]
    """What costs time, the costliest first."""
    shared: NotRequired[SharedEntry]
    """Of a report for others to read: what was replaced in it."""


class Report(Diagnosis):
    """The whole document."""

    suggestions: list[SuggestionEntry]
    """What to change."""
    advice: AdviceEntry
    """What stands beside the suggestions."""
    problems: list[ProblemEntry]
    """What was lost or is uncertain in the input."""
    analyzers: list[AnalyzerEntry]
    """What became of each analysis."""
