"""What `gpuscope advise` says, as one JSON document (docs/planning.md). Sizes are bytes, times ns."""

from __future__ import annotations

from typing import Literal

from gpuscope.when_used import TypedDict

# What `gpuscope tune` found, as one JSON document (docs/tuning.md).
#
# Times are integer ns, of steps without a profiler.

TUNE_VERSION = 1
RESULT = "result.json"
"""Its name in the folder."""

Outcome = Literal[
    "faster",
    "no_gain",
    "not_beyond_chance",
    "losses_moved",
    "losses_not_seen",
    "not_applied",
    "hung",
    "failed",
    "no_steps",
    "budget",
    "not_confirmed",
]
Ended = Literal["done", "nothing_applicable", "no_advice", "budget", "interrupted"]
Compared = Literal["equal", "within_noise", "seen_once", "not_seen"]


class Setting(TypedDict):
    """What a run was started with: `gpuscope record --set NAME=VALUE`."""

    name: str
    """The knob."""
    value: str
    """What it is set to."""


class TriedChange(TypedDict):
    """One suggestion that was followed, measured, and kept or not."""

    code: str
    """The suggestion's code."""
    action: str
    """What it says."""
    setting: str
    """Name and value as the report has them."""
    changes: list[Setting]
    """What the trial was started with for it."""
    before_ns: int
    """The step it was judged against: that of the best so far."""
    predicted_ns: int | None
    """The step it should lead to: `before_ns` times the predicted ratio; null where the trace gives no figure."""
    low_ns: int | None
    """Lower end of the range predicted for what is measured, nine chances in ten: what runs differ by is in it."""
    high_ns: int | None
    """Its upper end."""
    measured_ns: int | None
    """The step measured; null where the trial ended before."""
    ratio_low: float | None
    """Lower end of the 95 % interval of measured / before."""
    ratio_high: float | None
    """Its upper end: below 0.99 where the change is kept."""
    kept: bool
    """Whether it is part of the best."""
    outcome: Outcome
    """Why, in one word."""
    why: str
    """Why, in a sentence."""
    runs: int
    """Recordings it took, those of the best that were repeated for it included."""


class ByHand(TypedDict):
    """A suggestion that can't be tried from outside the script, or work of the script's own."""

    code: str
    """The suggestion's code; of the script's own work that none answers the finding's, `host_other`."""
    action: str
    """What to do."""
    setting: str
    """Name and value."""
    why: str
    """Why it was not tried."""


class TuneDocument(TypedDict):
    """The whole result."""

    tune_version: int
    """Version of this document: 1."""
    gpuscope_version: str
    """Version that tuned."""
    command: list[str]
    """What was tuned."""
    folder: str
    """Where the recordings are."""
    ended: Ended
    """`done` where nothing was left to try, `no_advice` where the profiled run or its analysis failed."""
    now: str
    """What goes on; empty once it has ended."""
    baseline_step_ns: int
    """The step as the command stands."""
    best_step_ns: int
    """The step with the changes kept."""
    ratio_low: float | None
    """Lower end of the 95 % interval of best / baseline; null where nothing is kept."""
    ratio_high: float | None
    """Its upper end."""
    noise_frac: float | None
    """How much one run's step differs from the next one's with the same settings, standard deviation; null where none
    ran twice."""
    losses: Compared
    """How the first losses of runs with the same settings compare with each other."""
    changes: list[TriedChange]
    """What was tried, in order."""
    by_hand: list[ByHand]
    """What was not, because it needs a change of the script or a permission."""
    runs: int
    """Recordings made."""
    seconds: float
    """Time it took."""
    seconds_of_runs: float
    """Of it, runs of the command."""
    seconds_of_analysis: float
    """Of it, the analysis of profiled ones."""
    budget: str
    """As given."""
    take: list[str]
    """What to take along for the changes kept: variables, arguments, lines of the script; as in the file `take.txt`."""
    written: list[str]
    """Files of the working directory that changed meanwhile: the script's own output."""


# What `gpuscope query --json` prints.


class QueryDocument(TypedDict):
    """The answer to one `SELECT`."""

    columns: list[str]
    """Names of the columns."""
    rows: list[list[int | float | str | None]]
    """The rows, a value for each column."""
    more: bool
    """Whether there were more rows than asked for."""


PLAN_VERSION = 3


class PlanModel(TypedDict):
    """The model by its shape."""

    name: str
    """As it was named."""
    parameters: int
    """Its parameters."""
    active_parameters: int
    """Those that a token meets."""
    flops_per_step: float
    """Forward and backward of the global batch."""
    states_bytes: int
    """Weights, gradients and optimizer, undivided: 18 bytes per parameter."""


class PlanCluster(TypedDict):
    """The cluster by its figures."""

    name: str
    """Hosts x GPUs."""
    gpus: int
    """All GPUs."""
    hosts: int
    """Hosts."""
    memory_bytes: int
    """Of a GPU."""
    usable_bytes: int
    """Of it that a job can fill."""
    peak_flops_per_s: float
    """Of a GPU, dense bf16."""
    inside: str
    """Link between GPUs of a host."""
    inside_gbps: float
    """Its usable GB/s per GPU and direction."""
    network: str | None
    """Link of a host's network port."""
    network_gbps: float
    """Per GPU; 0 with one host."""


class PlanEntry(TypedDict):
    """One way to spread the model."""

    name: str
    """In words."""
    data: int
    """Size of data parallelism."""
    tensor: int
    """Of tensor parallelism."""
    pipeline: int
    """Of the pipeline."""
    chunks: int
    """Model chunks of a stage; more than one is the interleaved schedule."""
    context: int
    """Of context parallelism."""
    exchange: str | None
    """`ring` or `ulysses`; null without context parallelism."""
    expert: int
    """Of expert parallelism, over the ranks of a stage."""
    zero: int
    """Stage of ZeRO; 0: none."""
    shard: int
    """Ranks over which it divides."""
    secondary: int
    """Ranks that divide ZeRO++'s second copy of the weights; 0 without it."""
    offload: str
    """Where the optimizer is, if not on the GPU: `none`, `cpu`, `nvme`."""
    micro_batch: int
    """Sequences of a micro-batch."""
    micro_batches: int
    """Of a step and replica."""
    recompute: str
    """`none`, `selective` (norms and activation functions), `full` (layers) or `sqrt` (groups of √n of n layers)."""
    repeated: float
    """Share of the layers that `full` recomputation repeats; 1 otherwise."""
    overlap: bool
    """Whether all-to-alls of experts run beside another micro-batch's compute."""
    gradients: int
    """Bytes of a gradient, kept and sent."""
    layers: list[int]
    """Of each pipeline stage."""
    memory_bytes: dict[str, int]
    """By `parameters`, `gradients`, `optimizer`, `activations`."""
    memory_frac: float
    """Sum of the parts by the GPU's memory."""
    lacks_bytes: int
    """Missing per GPU; 0 where the layout fits."""
    volume_bytes: dict[str, int]
    """Sent per GPU and step, by `data`, `tensor`, `pipeline`, `context`, `expert`."""
    communication_ns: dict[str, int]
    """Time of it, hidden or not."""
    exposed_ns: dict[str, int]
    """What of it nothing hides."""
    compute_ns: int
    """Of the slowest stage."""
    host_ns: int
    """What the GPU waits for its host's launches."""
    bubble_ns: int
    """Idle time of the pipeline."""
    bubble_frac: float
    """Idle share of the pipeline."""
    estimate_ns: int
    """The step."""
    low_ns: int
    """Lower end of its range: a run's error, else 15 % of the compute."""
    high_ns: int
    """Upper end; with links as slow as fabrics can be where none was measured."""
    tokens_per_s_per_gpu: float
    """Tokens of a GPU per second."""
    mfu_frac: float
    """Model FLOPs by the GPUs' dense peak at the plan's precision; recomputed FLOPs don't count."""
    slower_frac: float
    """Than the first candidate; below 0 for one that is quicker by less than the estimate can tell."""
    place: int | None
    """1, and one for each candidate quicker by more than the estimate can tell; null where it does not fit."""
    why: list[str]
    """Reasons, in words."""


class PlanRule(TypedDict):
    """A row of the decision table, with what it says of this model and cluster."""

    rule: str
    """The rule."""
    applies: bool
    """Whether this model on this cluster calls for it."""
    why: str
    """The figures."""
    source: str
    """Where it is from."""
    host: bool
    """Whether it is about the hosts: then `applies` says that they have less."""


class PlanChange(TypedDict):
    """What another batch, sequence, link or memory would change."""

    change: str
    """What."""
    name: str | None
    """The best layout then; null where nothing fits."""
    same: bool
    """Whether the best layout stays the same but for its micro-batches."""
    tokens_per_s: float
    """Of it."""
    factor: float
    """Tokens per second of the quickest layout then, by those of the quickest now."""


class PlanGoodput(TypedDict):
    """Failures and what they leave."""

    mtbf_ns: int
    """Between failures of the job."""
    checkpoint_ns: int
    """To write weights and optimizer."""
    checkpoint_interval_ns: int
    """That loses least."""
    goodput_frac: float
    """Of the time that is then useful."""


class PlanCost(TypedDict):
    """Of a million tokens, failures included."""

    gpu_hours: float
    """GPU hours."""
    joules: float | None
    """Energy, with PUE where given; null where the power is not known."""
    price: float | None
    """By `gpu_hour_price`."""


class PlanScaled(TypedDict):
    """The run replayed on a larger cluster, which more data parallelism fills."""

    ranks_before: int
    """Of the run."""
    ranks_after: int
    """Of the cluster."""
    scaling: Literal["weak"]
    """`weak`: each rank's batch as recorded."""
    global_batch: int
    """Sequences per step then."""
    data_before: int
    """Size of data parallelism."""
    data_after: int
    """And then."""
    step_ns_before: int | None
    """As measured."""
    step_ns_after: int | None
    """As replayed; null where that can't be told."""
    low_ns: int | None
    """Lower end of its range."""
    high_ns: int | None
    """Upper end."""
    efficiency_frac: float | None
    """Throughput per rank, by that of the run."""
    basis: str
    """What the replay rests on."""
    why: str
    """Why it can't be told; else empty."""
    untold: list[str]
    """What stays as recorded, and why it can't be replayed otherwise."""


class PlanCalibration(TypedDict):
    """What a recorded run gave."""

    run: str
    """Its path."""
    layout: str
    """How it was spread."""
    measured_step_ns: int
    """Its median step."""
    estimated_step_ns: int
    """The same layout by the calibrated model."""
    compute_frac: float
    """Of the peak, in matrix multiplications with what runs between them."""
    attention_frac: float
    """Of the peak, in attention; the same where its kernels are not known."""
    links: list[str]
    """What its links gave, in words."""
    notes: list[str]
    """What limits it."""
    scaled: PlanScaled | None
    """The run itself on the cluster, replayed; null where the cluster has as many ranks."""


class PlanRemark(TypedDict):
    """What is to be said of a setting of a framework's configuration."""

    key: str
    """The setting."""
    kind: str
    """`contradiction` (the framework refuses it, or takes another value), `no_effect`, `slow`, `renamed`, `unknown`, or
    `assumed` for what the file leaves open."""
    message: str
    """In words."""


class PlanGiven(TypedDict):
    """A framework's configuration beside the candidates."""

    path: str
    """Its file."""
    framework: str
    """`deepspeed`, `torchtitan` or `accelerate`."""
    fits: bool
    """Whether it fits the GPUs' memory."""
    place: int | None
    """Among the candidates, by its estimate; null where it does not fit."""
    entry: PlanEntry | None
    """Its layout; null where it makes none on this cluster."""
    remarks: list[PlanRemark]
    """What is wrong with it, and what was assumed."""


class Plan(TypedDict):
    """The whole document."""

    plan_version: int
    """Version of this document: 3."""
    gpuscope_version: str
    """Version that made it."""
    model: PlanModel
    """The model."""
    cluster: PlanCluster
    """The cluster."""
    global_batch: int
    """Sequences per step."""
    sequence: int
    """Tokens of a sequence."""
    tokens: int
    """Tokens of a step."""
    precision: str
    """Of the matrix multiplications."""
    considered: int
    """Layouts looked at."""
    feasible: int
    """Of which fit."""
    candidates: list[PlanEntry]
    """The best of each combination of sizes, the one with the shortest step first."""
    given: PlanGiven | None
    """What `--config` gave, beside them."""
    nearest: list[PlanEntry]
    """Where nothing fits: the layouts that lack least memory."""
    rules: list[PlanRule]
    """The literature's decision table."""
    placement: list[str]
    """Which ranks are neighbours, for the first candidate."""
    sensitivity: list[PlanChange]
    """The plan again with one thing changed."""
    settling: str | None
    """The measurement that would narrow the first candidate's range most; null where none would by much."""
    measured: list[str]
    """What `--bench` gave, in words."""
    goodput: PlanGoodput | None
    """Failures and what they leave; null for a run on a CPU."""
    cost: PlanCost | None
    """Of a million tokens, failures included."""
    commands: dict[str, str]
    """The first candidate for `torchtitan`, `megatron`, `deepspeed` and `accelerate`; only those that can do it."""
    calibration: PlanCalibration | None
    """What a run gave."""
    assumptions: list[str]
    """What the estimate rests on."""
