"""Where a figure of the report comes from."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.when_used import TypedDict

Provenance = Literal["measured", "inferred", "assumed"]
"""`measured`: recorded, or computed from nothing but what was. `inferred`: follows from what was recorded by a rule or
a fit that can be wrong. `assumed`: rests on figures of the literature or a data sheet, or on a premise that nothing
recorded confirms."""


# The `replay` section of the report, how well the trace's own graph gives back its step time, and what it predicts.


class Replay(TypedDict):
    """The trace replayed without a change ([how](architecture.md#the-replay)); what predictions rest on. Times are
    means over ranks and replayed steps."""

    measured_step_ns: int | None
    """As recorded; null where nothing could be replayed."""
    replayed_step_ns: int | None
    """Of the baseline replay."""
    error_frac: float | None
    """|replayed − measured| / measured."""
    steps: int
    """Steps replayed."""
    inferred_waits: NotRequired[int | None]
    """Waits of a stream for another that were not recorded but inferred; None where nothing was replayed."""
    why: str
    """Why nothing is predicted; empty where changes can be."""


class Prediction(TypedDict):
    """The step time that a change leads to, in ns; `low_ns` and `high_ns` bound `step_ns_after`."""

    step_ns_before: int
    """«the step» (`step_time.median_ns`); without steps the window."""
    step_ns_after: int
    """Never below what the device must compute."""
    low_ns: int
    """Lower bound of `step_ns_after`; the two bounds are meant to hold in nine cases of ten."""
    high_ns: int
    """Upper bound of `step_ns_after`."""
    basis: str
    """What the prediction rests on."""
    provenance: Provenance
    """`inferred` by a replay; `assumed` where costs in it are a link's figures and not fitted to the trace, or the
    share of a micro-batch's time that does not shrink with it."""


# The report's section `pipeline`: stages, schedule, bubbles, and what would make them smaller.

ScheduleName = Literal["gpipe", "1f1b", "interleaved_1f1b", "looped_bfs", "interleaved_zero_bubble", "zbv", "unknown"]


class PipelineStage(TypedDict):
    """A rank's place."""

    pipeline: int
    """Number of the pipeline: its data-parallel replica."""
    stage: int
    """From 0."""
    rank: int
    model_chunks: list[int]
    """Chunks of the model that the rank holds, numbered in the order of the forward; empty where unknown."""


class PipelineSchedule(TypedDict):
    """The schedule, from the order of computations."""

    name: ScheduleName
    """`gpipe`, `1f1b`, `interleaved_1f1b`, `looped_bfs`, `interleaved_zero_bubble`, `zbv` or `unknown`."""
    stages: int
    """p."""
    micro_batches: int
    """m."""
    chunks_per_stage: int
    """v."""
    why: str
    """What it was recognised by, or where the order differs from those known."""
    ideal_bubble_frac: float | None
    """Bubble of that schedule where all computations of a kind take equal time; None where no formula is known."""
    ideal_basis: str
    """The formula and its source."""


class PipelineBubble(TypedDict):
    """Parts of a bubble; they sum to it."""

    warm_up: int
    steady: int
    drain: int
    imbalance: int


class PipelineRow(TypedDict):
    """One stage of one pipeline in one step."""

    pipeline: int
    stage: int
    rank: int
    step: int
    start_ns: int
    """First computation of any stage of the pipeline in the step."""
    dur_ns: int
    """From there to the last one's end: what the stage computes and its bubble."""
    compute_ns: int
    """The stage's own computing."""
    bubble_ns: PipelineBubble
    """The parts of its bubble."""


class PipelineComputation(TypedDict):
    """One computation of the step shown."""

    stage: int
    rank: int
    kind: Literal["forward", "backward", "weight"]
    """`forward`, `backward` (of the inputs alone where weights are apart) or `weight`."""
    micro_batch: int
    model_chunk: int
    start_ns: int
    """On the run's clock."""
    dur_ns: int


class PipelineTimeline(TypedDict):
    """The computations of one step of one pipeline: the one whose bubble is the median."""

    pipeline: int
    step: int
    computations: list[PipelineComputation]
    """One entry per computation."""
    ideal: list[PipelineComputation]
    """The same with an even split, all of a kind equally long, as the replay lays it out; empty where it predicts
    nothing."""


class PipelineGain(TypedDict):
    """What the replay predicts for a change, or why it does not."""

    micro_batches: int
    """As recorded for `even_split`, twice that for `more_micro_batches`."""
    step_factor: float | None
    """Predicted step / step before; None where nothing is predicted."""
    predicted: Prediction | None
    """As in `suggestions[].predicted`."""
    why_not: str
    """Why nothing is predicted, and what to record; empty where it is."""


class Pipeline(TypedDict):
    """Pipeline parallelism of the job ([what these mean](definitions.md#pipeline)). Where only the stages are known,
    `schedule` and all that follows it is absent; `incomplete` says why, and what to record."""

    basis: str
    """What the map of stages rests on."""
    provenance: Provenance
    """`measured` where timers or ranges name the stage, `inferred` from groups or messages."""
    stages: list[PipelineStage]
    """One entry per rank."""
    incomplete: str
    """What is unknown and what to record; empty where nothing is."""
    schedule: NotRequired[PipelineSchedule]
    bubble_frac: NotRequired[float]
    """Sum of bubbles / sum of lengths."""
    steps_left_out: NotRequired[int]
    """Steps of a pipeline without all computations."""
    rows: NotRequired[list[PipelineRow]]
    """One entry per pipeline, step and stage."""
    even_split: NotRequired[PipelineGain]
    """What the replay predicts for an even split of the stages, or why it does not."""
    more_micro_batches: NotRequired[PipelineGain]
    """What the replay predicts for twice the micro-batches of the same batch, or why it does not."""
    timeline: NotRequired[PipelineTimeline]
    """The step and pipeline with the median bubble, to draw."""


# The report's section `roles`: the steps of a job for reinforcement learning by role, and what bounds them.


class RoleInterval(TypedDict):
    """A role at work on a rank."""

    role: str
    name: str
    """As the job calls it."""
    rank: int | None
    start_ns: int
    """On the recorder's clock."""
    dur_ns: int


class RoleStepEntry(TypedDict):
    """One step."""

    step: int
    role: Literal["warmup", "outlier", "steady", "partial"]
    """As of any step ([roles of steps](definitions.md#what-is-judged))."""
    dur_ns: int
    by_role_ns: dict[str, int]
    """Sums to `dur_ns`; `other` is what no timer covers, `waiting` the wait for a rollout that runs beside."""
    beside_ns: dict[str, int]
    """What ran beside these parts: the rollout of an asynchronous trainer."""
    intervals: NotRequired[list[RoleInterval]]
    """Where starts are recorded."""


class RoleEntry(TypedDict):
    """One role over the judged steps."""

    role: str
    per_step_ns: int
    """Median of what it takes itself."""
    share_frac: float
    """Of the judged steps' time; what runs beside others counts in full."""
    half_gains_ns: int
    """By what the step gets shorter where it takes half as long."""
    ranks: list[int]
    """Where intervals tell them."""


class RolePool(TypedDict):
    """GPUs that run the same roles."""

    pool: Literal["rollout", "trainer", "all"]
    """`all` where rollout and training share them."""
    gpus: int | None
    """None where nothing tells them."""
    idle_frac: float
    """Of the judged steps, in which none of their roles runs."""


class RolloutTail(TypedDict):
    """Medians over the judged steps."""

    mean: float
    longest: float
    unit: Literal["s", "tokens"]
    """Of requests where their times are logged, else of responses."""
    cost_ns: int | None
    """Of a step: what the rollout would save, were no response longer than the mean; at most this where
    `shared_frac` is None. None where the rollout's time is not logged."""
    shared_frac: float | None
    """The part of the rollout that all tokens share and more GPUs divide; None where the steps don't tell."""


class RoleGrowthEntry(TypedDict):
    """A role, or the whole step, that takes ever longer over the recorded steps."""

    role: str
    """`step` for the whole step."""
    steps: int
    first_ns: int
    last_ns: int
    """Both on the line through the steps."""
    figure: str | None
    """What grows with it: `tokens`, `response_length_mean`, `response_length_max` or `prompt_length_mean`; None where
    nothing that is logged does."""
    figure_times: float | None
    """How many times as large that is at the end; where nothing grows with it the mean response, if it is logged."""
    slower_times: float | None
    """How many times as long it takes per unit of that at the end: about 1 where there is more work, not a slower
    job."""


RoleChange = Literal["overlap", "split", "move", "cap", "reward_beside", "asynchronous", "weight_sync"]


class RoleGain(TypedDict):
    """What the replay of the roles predicts for a change, or what it gains at most."""

    change: RoleChange
    """The rollout beside the training of the last batch; the same on GPUs of their own; GPUs moved between rollout and
    trainer; responses cut at `tokens`; rewards beside the log-probs; no waiting for the longest responses; no time for
    the weights."""
    gpus_rollout: int | None
    gpus_trainer: int | None
    tokens: int | None
    predicted: Prediction | None
    at_least_ns: int | None
    """Where nothing is predicted: the step is no shorter than that."""
    why_not: str


class RolesSection(TypedDict):
    """Jobs for reinforcement learning, by their own timers."""

    framework: str
    """verl, openrlhf, nemo-rl, slime, trl, rl-insight or nsys."""
    steps: list[RoleStepEntry]
    roles: list[RoleEntry]
    bound_by: str
    """The role that shortens the step most where it takes half as long; empty where no role is timed."""
    asynchronous: bool
    """Whether rollouts run beside the training of another batch."""
    replay_error_frac: float | None
    """|replayed − measured| of the step as it is; above 5 % nothing is predicted."""
    pools: list[RolePool]
    tail: RolloutTail | None
    staleness: dict[str, float]
    """Medians of what the job logs of it: versions of the weights between rollout and use, samples dropped."""
    gains: list[RoleGain]
    growth: list[RoleGrowthEntry]
    """The costliest first."""
    averaged: int
    """Each logged step is the mean of so many; 1 where every step is logged."""


# The report's section `experts`: how unevenly tokens go to the ranks of their experts, and what that costs.


class ExpertPassEntry(TypedDict):
    """A pass through a layer of experts, forward or backward: means over the judged steps."""

    group: str
    number: int
    """Within the step, from 0: forwards in the order of the layers, then backwards."""
    bytes: int
    """Mean that a rank receives."""
    imbalance: float
    """What the busiest rank receives, times the mean."""
    busiest: int
    """The rank that receives most, most often."""
    ranks: list[int]
    loads: list[float]
    """What each of `ranks` receives, times the mean."""
    experts_ns: int
    """From the tokens' arrival to their return, on the slowest rank."""
    imbalance_ns: int
    """Of it and of both transfers, what even routing would save."""
    straggler_ns: int
    """Of it, what the slowest rank takes beyond what its tokens explain."""
    dispatch_ns: int
    combine_ns: int
    """Transfers, after the last rank has arrived."""
    exposed_ns: int
    """Of dispatch and combine, waiting included, what no other work of the rank covers: mean over the ranks."""
    tokens: NotRequired[list[list[float]]]
    """Of each of `ranks`, tokens of each of its experts; absent where no shapes tell them."""


class ExpertRankEntry(TypedDict):
    """What a rank receives for its experts."""

    rank: int
    load: float
    """Times the mean of its group."""
    bytes_per_step: int
    experts_ns_per_step: int


class ExpertCost(TypedDict):
    """ns per step, passes added up; what overlaps other computing is in it."""

    imbalance_ns: int
    straggler_ns: int
    network_ns: int
    """Both transfers, without what uneven loads add."""


GainKind = Literal["even", "placement", "redundant", "capacity"]


class ExpertGain(TypedDict):
    """What the replay predicts for another routing or placement, or why it does not."""

    kind: GainKind
    """Every rank receives the mean; experts placed anew by their tokens; so and one more per rank, copies of those
    with most tokens; tokens beyond `capacity_factor` times the mean dropped."""
    capacity_factor: float | None
    dropped_frac: float
    predicted: Prediction | None
    why_not: str


class ExpertsSection(TypedDict):
    """Mixtures of experts, from the sizes of their all-to-alls. Absent without sizes."""

    passes: list[ExpertPassEntry]
    ranks: list[ExpertRankEntry]
    cost: ExpertCost
    gains: list[ExpertGain]
    """Even routing first, then placements, then capacity factors."""
    overlapping: int
    """Passes that begin before the combine of another: micro-batches that overlap."""
    left_out: int
    """All-to-alls of tokens that are no dispatch with its combine: scales and weights of tokens, cut steps."""
    not_separable: NotRequired[str]
    """Kernels that wait, transfer and hold no sizes: what they take can't be divided."""
