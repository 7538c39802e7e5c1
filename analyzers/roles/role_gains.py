"""What other schedules, placements and limits would make of a step: the roles replayed, or a bound and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from gpuscope.analyzers.replay.prediction_bounds import bounds, median_by_chance
from gpuscope.analyzers.roles.role_replay import Schedule, Times, durations, step_ns
from gpuscope.analyzers.roles.rollout_model import UNKNOWN, Lengths, RolloutModel, Shares
from gpuscope.averages import median
from gpuscope.schema.roles_section import RoleChange, RoleGain
from gpuscope.when_used import dataclass
from gpuscope.words.role_names import FORWARD, TRAINER

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
