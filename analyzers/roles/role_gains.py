"""What other schedules, placements and limits would make of a step: the roles replayed, or a bound and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.analyzers.replay.engine import bounds, median_by_chance
from gpuscope.analyzers.roles.role_replay import Schedule, Times, durations, step_ns
from gpuscope.schema.provenance import RoleChange, RoleGain
from gpuscope.trace.table import Array
from gpuscope.welch import median, student
from gpuscope.when_used import dataclass
from gpuscope.words.vocabulary import FORWARD, TRAINER

if TYPE_CHECKING:
    from statistics import NormalDist


# What a rollout takes, from the lengths of its responses: one part that only the longest response sets, and one that
# all tokens share and more GPUs divide.
#
# A decoding step costs a fixed time and a time per response that still runs. Summed over a rollout the first goes with
# the longest response, the second with all tokens: `rollout = a · longest + b · mean + c`, fitted to the steps. What is
# the same in all of them, as a reward's own time, no GPU shortens.

FEWEST = 8
"""Steps from which the three can be told apart, and how well."""
MISSED = 0.05
"""Probability on either side of a range that holds nine times in ten."""
POOR_FIT = 0.10
"""Median residual, of the rollout, from which the model does not describe it."""
USUAL_SAMPLES = 512
"""Responses of a step where their number is not logged; its logarithm matters."""


@cache
def _normal() -> NormalDist:
    from statistics import NormalDist

    return NormalDist()


@dataclass(frozen=True)
class Lengths:
    """Tokens of the responses of one step."""

    mean: float
    longest: float
    clipped: float = 0.0
    """The share of them that a limit cut off."""
    samples: int = USUAL_SAMPLES

    def capped(self, cap: float) -> float:
        """The mean with every response cut at `cap`, of lengths spread log-normally with this mean and maximum."""
        if cap >= self.longest:
            return self.mean
        beyond = self.clipped or 1 / (self.samples + 1)
        place = _normal().inv_cdf(1 - min(beyond, 0.99))
        low, high = 0.01, 5.0
        for _ in range(40):  # the wider they spread, the lower lies the mean under the same maximum
            spread = (low + high) / 2
            if _mean_below(self.longest, log(self.longest) - place * spread, spread) > self.mean:
                low = spread
            else:
                high = spread
        return min(self.mean, _mean_below(cap, log(self.longest) - place * low, low))


def _mean_below(cap: float, middle: float, spread: float) -> float:
    """The mean of a log-normal variable that is cut at `cap`."""
    at = (log(cap) - middle) / spread
    whole = exp(min(middle + spread**2 / 2, 700.0))
    return whole * _normal().cdf(at - spread) + cap * (1 - _normal().cdf(at))


@dataclass(frozen=True)
class Shares:
    """Of a rollout: what all tokens share, and what goes with the longest response; the rest is the same always."""

    tokens: float
    longest: float

    def moved(self, by: float) -> Shares:
        """With `by` more for the tokens, at the cost of the longest response."""
        tokens = min(max(self.tokens + by, 0.0), 1.0)
        return Shares(tokens, min(max(self.longest + self.tokens - tokens, 0.0), 1 - tokens))

    def on(self, rollout: int, gpus: float, divided: float) -> int:
        """A rollout at `gpus` times the GPUs, ns, that divide `divided` of what tokens share."""
        return round(rollout * (1 - self.tokens + self.tokens * (divided / gpus + 1 - divided)))

    def cut(self, rollout: int, lengths: Lengths, cap: float) -> int:
        """A rollout with responses of at most `cap` tokens, ns."""
        fewer = self.tokens * (1 - lengths.capped(cap) / lengths.mean)
        return round(rollout * (1 - fewer - self.longest * (1 - min(cap / lengths.longest, 1.0))))


@dataclass(frozen=True)
class RolloutModel:
    """A fit to the steady steps, and what else fits them nearly as well."""

    shares: Shares
    cases: tuple[Shares, ...]


UNKNOWN = RolloutModel(Shares(0.5, 0.5), (Shares(0.0, 1.0), Shares(1.0, 0.0)))
"""Where nothing tells."""


def fitted(rollouts: Sequence[int], lengths: Sequence[Lengths]) -> RolloutModel | None:
    """The model of these steps; None where there are too few, or where it does not describe them.

    The part that is always the same counts where it stands out beyond chance; the range holds both.
    """
    if len(rollouts) < FEWEST or len(lengths) != len(rollouts):
        return None
    took = np.array(rollouts, float) / float(median(rollouts))
    design = np.array([(one.mean, one.longest, 1.0) for one in lengths])
    design /= np.median(design, axis=0)
    fits = [_fit(design[:, :2], took), _fit(design, took)]
    if median(np.abs(took - design @ fits[1].factors)) > POOR_FIT:
        return None
    chosen = fits[int(fits[1].stands_out)]
    cases = (fit.shares.moved(by) for fit in fits for by in (-fit.off, fit.off))
    return RolloutModel(chosen.shares, tuple(cases))


@dataclass(frozen=True)
class _Fit:
    factors: Array
    off: float
    """How far the tokens' part may lie off, nine times in ten."""
    stands_out: bool
    """Whether the last column's factor is larger than chance makes it."""

    @property
    def shares(self) -> Shares:
        tokens, longest = (min(float(one), 1.0) for one in self.factors[:2])
        return Shares(tokens, min(longest, 1 - tokens))


def _fit(design: Array, took: Array) -> _Fit:
    """Least squares without negative factors; what is uncertain is that of the fit with all of them."""
    free = np.linalg.lstsq(design, took, rcond=None)[0]
    freedom = len(took) - design.shape[1]
    residual = took - design @ free
    errors = np.sqrt(np.diag(np.linalg.pinv(design.T @ design)) * float(residual @ residual) / freedom)
    limit = student(MISSED, freedom)
    kept = list(range(design.shape[1]))
    found = free
    while len(kept) > 1 and found.min() < 0:
        kept.pop(int(np.argmin(found)))
        found = np.linalg.lstsq(design[:, kept], took, rcond=None)[0]
    factors = np.zeros(design.shape[1])
    factors[kept] = np.maximum(found, 0.0)
    # Where every longest response is as long as the limit, nothing tells it from what is always the same.
    apart = np.linalg.matrix_rank(design) == design.shape[1]
    return _Fit(factors, float(limit * errors[0]), bool(apart and free[-1] > limit * errors[-1]))


LARGEST_ERROR = 0.05
"""The error of the unchanged replay above which nothing is predicted, as in any replay."""
WIDEST = 0.25
"""Of the step: the range of what is unknown above which a figure would be a guess."""
UNDIVIDED = 0.1
"""Of the work on more or fewer GPUs, what may not divide among them."""
LEAST_SYNC = 0.03
"""Of the step: the time of the weights' way from which another way decides what a split gains."""
FARTHEST = 4
"""Times the GPUs that a role has, or a part of them: other splits are too far from what was measured."""
CAPS = (0.75, 0.5)
"""Of the longest response, the limits that are tried."""
PARTS = 8
"""Into how many parts the GPUs are divided at most when another split is sought."""


@dataclass(frozen=True)
class Job:
    """A run's judged steps and what is known beside them."""

    steps: Sequence[Times]
    schedule: Schedule
    before: int
    """«The step», ns."""
    error: float
    """Of the unchanged replay, relative."""
    lengths: Sequence[Lengths]
    """Of each step; empty where they are not logged."""
    model: RolloutModel | None
    prompt: float
    """Mean tokens of a prompt; 0 where not logged."""
    gpus_rollout: int | None
    gpus_trainer: int | None
    colocated: bool | None
    """Whether rollout and training run on the same GPUs; None where nothing tells."""

    @property
    def gpus(self) -> int | None:
        """All of them."""
        if self.colocated:
            return self.gpus_trainer or self.gpus_rollout
        known = self.gpus_rollout is not None and self.gpus_trainer is not None
        return (self.gpus_rollout or 0) + (self.gpus_trainer or 0) if known else None


Changed = Callable[[Shares, float], Sequence[Times]]
"""The steps with a change, by what a rollout goes with and the part of the work that GPUs divide."""


def gains(job: Job) -> Iterator[RoleGain]:
    """Every change that fits the job."""
    if not any("rollout" in step for step in job.steps):
        return
    if not job.schedule.beside:
        if job.colocated is None:
            at_best = step_ns(job.steps, Schedule(beside=True))
            yield _bound("overlap", at_best, "whether rollout and training share their GPUs is not logged")
        elif not job.colocated:
            yield _predicted(job, "overlap", lambda _, __: job.steps, Schedule(beside=True))
        yield from _reward_beside(job)
    yield from _divided(job)
    yield from _capped(job)
    if any(step.get("weight_sync") for step in job.steps):
        free = [{**step, "weight_sync": 0} for step in job.steps]
        yield _bound("weight_sync", step_ns(free, job.schedule), "what remains of it on another way is unknown")
    if any(step.get("rollout") for step in job.steps):
        yield _asynchronous(job)


def _reward_beside(job: Job) -> Iterator[RoleGain]:
    has = [role for role in ("reward", *FORWARD) if any(step.get(role) for step in job.steps)]
    if "reward" in has and len(has) > 1:
        yield _predicted(job, "reward_beside", lambda _, __: job.steps, Schedule(reward_beside=True))


def _divided(job: Job) -> Iterator[RoleGain]:
    """Another split of the GPUs: the best one by the middle of what is assumed."""
    total = job.gpus
    if total is None or total < 2 or job.colocated is None:
        return
    change: RoleChange = "split" if job.colocated else "move"
    schedule = Schedule(beside=True) if job.colocated else job.schedule
    apart = max(total // PARTS, 1)
    tried = [own for own in range(apart, total, apart) if _near(job, own, total - own)]
    shares = (job.model or UNKNOWN).shares
    synced = median(step.get("weight_sync", 0) for step in job.steps)
    if job.colocated and synced >= LEAST_SYNC * job.before:
        why = "on GPUs of their own the weights go another way, and what that takes is not known"
        yield _bound(change, None, why)
    elif tried:
        best = min(tried, key=lambda own: step_ns(_on(job, own, total - own)(shares, 1.0), schedule))
        found = _predicted(job, change, _on(job, best, total - best), schedule)
        yield {**found, "gpus_rollout": best, "gpus_trainer": total - best}


def _near(job: Job, rollout: int, trainer: int) -> bool:
    """Whether a split is another one, and no further from what was measured than a fit reaches."""
    had = (job.gpus, job.gpus) if job.colocated else (job.gpus_rollout, job.gpus_trainer)
    factors = [now / before for now, before in zip((rollout, trainer), had, strict=True) if before]
    return rollout != had[0] and all(1 / FARTHEST <= factor <= FARTHEST for factor in factors)


def _on(job: Job, rollout: int, trainer: int) -> Changed:
    """The steps on so many GPUs of their own."""
    had_rollout, had_trainer = (job.gpus, job.gpus) if job.colocated else (job.gpus_rollout, job.gpus_trainer)
    more, faster = rollout / (had_rollout or 1), trainer / (had_trainer or 1)

    def changed(shares: Shares, divided: float) -> Sequence[Times]:
        return [
            {
                role: shares.on(ns, more, divided)
                if role == "rollout"
                else round(ns * (divided / faster + 1 - divided))
                if role in TRAINER
                else ns
                for role, ns in step.items()
            }
            for step in job.steps
        ]

    return changed


def _capped(job: Job) -> Iterator[RoleGain]:
    if not job.lengths:
        return
    longest = median(one.longest for one in job.lengths)
    for part in CAPS:
        tokens = round(longest * part)
        if tokens <= median(one.mean for one in job.lengths):
            continue  # most responses would be cut

        def changed(shares: Shares, divided: float, tokens: int = tokens) -> Sequence[Times]:
            del divided
            both = zip(job.steps, job.lengths, strict=True)
            return [_cut(step, own, shares, tokens, job.prompt) for step, own in both]

        yield {**_predicted(job, "cap", changed, job.schedule), "tokens": tokens}


def _cut(step: Times, lengths: Lengths, shares: Shares, tokens: int, prompt: float) -> dict[str, int]:
    """A step whose responses end at so many tokens: the training has fewer tokens too."""
    left = (prompt + lengths.capped(tokens)) / (prompt + lengths.mean)
    return {
        role: shares.cut(ns, lengths, tokens) if role == "rollout" else round(ns * left) if role in TRAINER else ns
        for role, ns in step.items()
    }


def _asynchronous(job: Job) -> RoleGain:
    """No rollout waits for its longest response, none for the training: what is left is the work of the busier side."""
    lengths = [one.mean / one.longest for one in job.lengths]
    least = median(lengths) if lengths else 0.0
    if job.model is not None:
        least = min(case.tokens for case in job.model.cases)
    floors = []
    for step in job.steps:
        training = sum(ns for role, ns in step.items() if role not in ("rollout", "reward", "other"))
        rolling = round(step.get("rollout", 0) * least)
        floors.append(training + rolling if job.colocated else max(training, rolling))  # shared GPUs do both
    why = "how many samples in flight hide the longest ones, and how stale they may get, is for you to choose"
    return _bound("asynchronous", min(round(median(floors)), job.before), why)


def _predicted(job: Job, change: RoleChange, changed: Changed, schedule: Schedule) -> RoleGain:
    """The step with a change, at the middle of what is assumed and at both ends of it."""
    if job.error > LARGEST_ERROR:
        why = f"the replay of the steps as they are is off by {100 * job.error:.1f} %"
        return _bound(change, None, why)
    model = job.model or UNKNOWN
    cases = [step_ns(changed(one, divided), schedule) for one in model.cases for divided in (1.0, 1 - UNDIVIDED)]
    if max(cases) - min(cases) > WIDEST * job.before:
        why = "how much of a rollout more GPUs would divide is not known"
        why += ": the lengths of its responses are not logged" if not job.lengths else " from these steps"
        return _bound(change, min(cases), why)
    after_steps = changed(model.shares, 1 - UNDIVIDED / 2)
    after = step_ns(after_steps, schedule)
    chance = median_by_chance(np.array(durations(after_steps, schedule), float)) or 0.0
    least, most = bounds([after, *cases], [after * chance, job.before * job.error])
    basis = f"{len(job.steps)} steps replayed role by role"
    return {
        "change": change,
        "gpus_rollout": None,
        "gpus_trainer": None,
        "tokens": None,
        "at_least_ns": None,
        "why_not": "",
        "predicted": {
            "step_ns_before": job.before,
            "step_ns_after": after,
            "low_ns": least,
            "high_ns": most,
            "basis": basis,
            "provenance": "inferred",
        },
    }


def _bound(change: RoleChange, at_least: int | None, why: str) -> RoleGain:
    return {
        "change": change,
        "gpus_rollout": None,
        "gpus_trainer": None,
        "tokens": None,
        "predicted": None,
        "at_least_ns": at_least,
        "why_not": why,
    }
