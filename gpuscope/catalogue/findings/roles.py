"""Jobs for reinforcement learning, made of roles."""

from __future__ import annotations

from gpuscope.catalogue.finding import Finding
from gpuscope.when_used import dataclass
from gpuscope.words import units
from gpuscope.words.vocabulary import LABELS

AS_FAST = 1.15
"""Times as long per token as in the first steps: up to that a role is as fast as before."""
FIGURES = {
    "tokens": "the tokens of a step",
    "response_length_mean": "the mean response length",
    "response_length_max": "the longest response",
    "prompt_length_mean": "the mean prompt length",
}


@dataclass(frozen=True)
class RoleBound(Finding):
    """One role of a job for reinforcement learning takes most of what decides how long a step is."""

    code = "role_bound"
    recognised = """in the [replay of the roles](rl.md), the step gets shortest where this role takes half as long. The
    share is what the role itself takes of the step."""
    helps = """for a rollout: more GPUs, a limit on the response, rollouts beside the training. For a reward: compute it
    beside the log-probs. For the training: record that role with a profiler and analyse its trace."""
    misleads = "`other`, where the job does something that it does not time: data loading, balancing, logging."

    role: str
    share: float
    half_gains_ns: int
    asynchronous: bool = False

    def message(self) -> str:
        beside = ", beside the training" if self.asynchronous and self.role == "rollout" else ""
        return (
            f"{self.headline()}: it takes {units.share(self.share)} of it{beside}, and half of that would save "
            f"{units.duration(self.half_gains_ns)}"
        )

    def headline(self) -> str:
        label = "What no timer covers" if self.role == "other" else LABELS.get(self.role, self.role).capitalize()
        return f"{label} bounds the step"


@dataclass(frozen=True)
class RolloutTail(Finding):
    """The rollout waits for a few long responses, while the GPUs run ever fewer of them."""

    code = "rollout_tail"
    recognised = """the longest request, or response, is longer than the mean; the cost is what the rollout would save
    were none longer than that, by the part of its time that goes with the longest response."""
    helps = """a limit on the response, rollouts that need not wait for the last ones (partial or asynchronous
    rollouts), more samples in flight per GPU."""
    misleads = """without the times of requests and with too few steps it is an upper bound: more tokens than the engine
    holds at once are queued, and then the longest response matters less."""

    longest: float
    mean: float
    unit: str
    cost_ns: int
    at_most: bool

    def message(self) -> str:
        each = "request" if self.unit == "s" else "response"
        limit = "at most " if self.at_most else ""
        return (
            f"The longest {each} takes {self.longest / max(self.mean, 1e-9):.1f} times the mean "
            f"({self.longest:,.0f} {self.unit}, mean {self.mean:,.0f}): {limit}{units.duration(self.cost_ns)} of a step"
        )


@dataclass(frozen=True)
class RoleGrowth(Finding):
    """A role takes ever longer in the course of the run. Where the tokens or the responses grow as much, the job has
    more work; where they do not, it gets slower at the same work."""

    code = "role_growth"
    recognised = """over eight logged steps or more a role that takes a tenth of the step grows by a quarter or more,
    steadily; of what the log has of each step (tokens, lengths of responses), what goes with it."""
    helps = """for more work: a limit on the response, batches by tokens instead of samples. For slower work: memory
    that grows (fragmentation, tensors that are kept), caches that fill, logs or checkpoints that grow."""
    misleads = """attention costs more per token in longer sequences, so that a part of slower tokens is more work."""

    role: str
    steps: int
    first_ns: int
    last_ns: int
    figure: str | None
    figure_times: float | None
    slower_times: float | None

    def message(self) -> str:
        label = "The step" if self.role == "step" else LABELS.get(self.role, self.role).capitalize()
        times = self.last_ns / max(self.first_ns, 1)
        span = units.span(self.first_ns, self.last_ns, " → ")
        return f"{label} grows {times:.1f} times over {self.steps} steps ({span}){self._with_what()}"

    def _with_what(self) -> str:
        named = FIGURES.get(self.figure or "response_length_mean", "")
        if self.figure is None:
            if self.figure_times is None:
                return "; the log has neither tokens nor lengths of responses that could tell why"
            return f", but {named} does not grow with it ({self.figure_times:.1f} times): the same work takes longer"
        grown = f" with {named} ({self.figure_times or 1:.1f} times)"
        slower = self.slower_times or 1.0
        if slower <= AS_FAST:
            return f"{grown}: more work at the same tokens/s, not a leak"
        return f"{grown}, and takes {slower:.1f} times as long per token at the end"


@dataclass(frozen=True)
class IdleRoles(Finding):
    """GPUs that belong to one role wait while another one runs."""

    code = "idle_roles"
    recognised = "rollout and training have GPUs of their own, as the job's settings say, and run in turns."
    helps = "rollouts beside the training (one step off-policy), or fewer GPUs for the side that waits."
    misleads = "a reward model that runs on the rollout's GPUs: its time counts as idle."

    pool: str
    gpus: int | None
    idle: float

    def message(self) -> str:
        whose = f"{self.gpus} GPUs" if self.gpus else "GPUs"
        return f"The {whose} of the {self.pool} idle {units.share(self.idle)} of each step"


@dataclass(frozen=True)
class SlowWeightSync(Finding):
    """Bringing new weights to the rollout takes a noticeable part of the step."""

    code = "weight_sync"
    recognised = "the timer of the weight update, where it takes 3 % of the step or more."
    helps = "a collective transfer (NCCL, NIXL) in place of the default, larger buckets, fewer updates."
    misleads = "waiting for running requests is part of the timer in asynchronous trainers."

    per_step_ns: int

    def message(self) -> str:
        return f"Bringing the weights to the rollout takes {units.duration(self.per_step_ns)} of a step"
