"""The report's section `roles`: the steps of a job for reinforcement learning by role, and what bounds them."""

from __future__ import annotations

from typing import Literal, NotRequired

from gpuscope.schema.replay_section import Prediction
from gpuscope.when_used import TypedDict


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
