"""The roles of a run's steps run again in another order or at other speeds: how long its steps would take.

Each step is a small graph: the trainer's roles in their order, and the rollout, which waits for new weights. What a
role takes stays as measured unless a change says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.analyzers.facts.role_steps import RoleStep
from gpuscope.averages import median
from gpuscope.when_used import dataclass
from gpuscope.words.role_names import FORWARD, ORDER

Times = Mapping[str, int]
"""ns by role of one step; of rollouts that run beside the training, what they take themselves."""


@dataclass(frozen=True)
class Schedule:
    """What waits for what."""

    beside: bool = False
    """Whether the rollout of the next batch runs while this one is trained on: one step off-policy."""
    reward_beside: bool = False
    """Whether rewards are computed while the log-probs are."""


def times_of(steps: Sequence[RoleStep], *, beside: bool) -> list[dict[str, int]]:
    """What each role takes itself in each step. A rollout beside the training whose time is not logged took as long as
    the training before it and the wait for it; without a wait it was over before, and takes no time here."""
    found: list[dict[str, int]] = []
    trained = 0
    for step in steps:
        own = step.whole()
        if beside:
            waited = own.pop("waiting", 0)
            logged = step.beside.get("rollout") or own.pop("rollout", 0)
            own.pop("rollout", None)
            chain = sum(ns for role, ns in own.items() if role != "weight_sync")
            own["rollout"] = logged or (waited and waited + (trained or chain))
            trained = chain
        found.append(own)
    return found


def durations(steps: Sequence[Times], schedule: Schedule) -> list[int]:
    """How long each step takes, ns. Of rollouts beside the training the first step has no other to run beside: a step
    that is recorded alone follows one like it."""
    if schedule.beside and len(steps) == 1:
        steps = [*steps, *steps]
    ends: list[int] = []
    rolled = now = 0
    for number, step in enumerate(steps):
        if not schedule.beside:
            now = _trained(step, now, schedule, first=step.get("rollout", 0))
        else:
            if not number:
                rolled = step.get("rollout", 0)
            synced = max(now, rolled) + step.get("weight_sync", 0)
            following = steps[number + 1] if number + 1 < len(steps) else step
            rolled = synced + following.get("rollout", 0)
            now = _trained({**step, "weight_sync": 0}, synced, schedule, first=0)
        ends.append(now)
    spans = [end - begin for begin, end in zip([0, *ends], ends, strict=False)]
    return spans[1:] if schedule.beside else spans


def _trained(step: Times, start: int, schedule: Schedule, first: int) -> int:
    """When the roles of a step end that follow each other; the rollout takes `first` ns of it."""
    at = start + first
    rewarded = at + step.get("reward", 0) if schedule.reward_beside else 0
    for role in sorted(step, key=lambda role: ORDER.get(role, len(ORDER))):
        if role == "rollout" or (role == "reward" and schedule.reward_beside):
            continue
        if role not in (*FORWARD, "data"):
            at = max(at, rewarded)
        at += step[role]
    return max(at, rewarded)


def step_ns(steps: Sequence[Times], schedule: Schedule) -> int:
    """The median step."""
    return round(median(durations(steps, schedule)))


def bounding(steps: Sequence[Times], schedule: Schedule) -> dict[str, int]:
    """By role, by how many ns the step gets shorter where that role takes half as long, the most first."""
    before = step_ns(steps, schedule)
    gains = {
        role: before - step_ns([{**step, role: step.get(role, 0) // 2} for step in steps], schedule)
        for role in dict.fromkeys(role for step in steps for role in step)
    }
    return dict(sorted(gains.items(), key=lambda one: -one[1]))
