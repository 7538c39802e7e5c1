"""The roles of a run's steps run again in another order or at other speeds: how long its steps would take.

Each step is a small graph: the trainer's roles in their order, and the rollout, which waits for new weights. What a
role takes stays as measured unless a change says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.facts.steady_state import RoleStep
from gpuscope.catalogue.findings.roles import FIGURES
from gpuscope.schema.provenance import RoleGrowthEntry
from gpuscope.trace.table import Array
from gpuscope.welch import median
from gpuscope.when_used import dataclass
from gpuscope.words.vocabulary import FORWARD, ORDER

# What takes ever longer in the course of a run by roles, and what grows with it.

FEWEST = 8
"""Steps of which a trend is told apart from chance."""
LEAST_TIMES = 1.25
LEAST_SHARE = 0.1
"""Of the step: what a smaller role adds to it is within what steps differ by."""
LEAST_RANKED = 0.6
LEAST_T = 4.0
"""Of the rank correlation with the step's number, and of its t: chance gives that once in a thousand roles."""
GOES_WITH = 0.8
"""The correlation from which one quantity explains another."""
BINS = 64
"""Steps are put together to so many: the line goes through the medians of all pairs."""


def growth_of(steps: Sequence[RoleStep]) -> list[RoleGrowthEntry]:
    """What grows over these steps, by what it adds to the step, the role that adds most first; where no role that is
    timed grows, the step itself."""
    if len(steps) < FEWEST:
        return []
    whole = np.array([step.duration for step in steps], np.float64)
    roles = dict.fromkeys(role for step in steps for role in step.parts)
    times = {role: np.array([step.parts.get(role, 0) for step in steps], np.float64) for role in roles}
    grown = [entry for role, spent in times.items() if (entry := _grown(role, spent, whole, steps)) is not None]
    if not grown and (entry := _grown("step", whole, whole, steps)) is not None:
        grown = [entry]
    return sorted(grown, key=lambda one: one["first_ns"] - one["last_ns"])


def _grown(role: str, spent: Array, whole: Array, steps: Sequence[RoleStep]) -> RoleGrowthEntry | None:
    if spent.sum() < LEAST_SHARE * whole.sum() or not rises(spent):
        return None
    first, last = ends_of_line(spent)
    if last < LEAST_TIMES * first:
        return None
    figure, times = _goes_with(spent, steps)
    return {
        "role": role,
        "steps": len(steps),
        "first_ns": round(first),
        "last_ns": round(last),
        "figure": figure,
        "figure_times": times,
        "slower_times": last / first / times if figure and times else None,
    }


def rises(values: Array) -> bool:
    """Whether values rise steadily, by the rank correlation with their order."""
    ranks = np.argsort(np.argsort(values, kind="stable"), kind="stable").astype(np.float64)
    ranked = correlation(ranks, np.arange(len(values), dtype=np.float64))
    if ranked < LEAST_RANKED:
        return False
    return ranked >= 1 or ranked * np.sqrt((len(values) - 2) / (1 - ranked**2)) >= LEAST_T


def correlation(one: Array, other: Array) -> float:
    """Pearson's correlation; 0 where one of them does not vary."""
    if not one.std() or not other.std():
        return 0.0
    return float(np.clip(np.corrcoef(one, other)[0, 1], -1, 1))


def ends_of_line(values: Array) -> tuple[float, float]:
    """Where the line through the steps begins and ends (Theil and Sen's, which single long steps do not turn), within
    what was measured."""
    parts = np.array_split(np.arange(len(values)), min(BINS, len(values)))
    at = np.array([part.mean() for part in parts])
    medians = np.array([np.median(values[part]) for part in parts])
    before, after = np.triu_indices(len(at), 1)
    slope = np.median((medians[after] - medians[before]) / (at[after] - at[before]))
    offset = np.median(medians - slope * at)
    low, high = float(values.min()), float(values.max())
    first, last = (min(max(float(offset + slope * place), low), high) for place in (0, len(values) - 1))
    return max(first, 1.0), max(last, 1.0)


def _goes_with(spent: Array, steps: Sequence[RoleStep]) -> tuple[str | None, float | None]:
    """The figure that explains the growth best, and how many times it grows; where none does, the mean response."""
    logged = {
        name: np.array([step.figures[name] for step in steps])
        for name in FIGURES
        if all(step.figures.get(name, 0) > 0 for step in steps)
    }
    times = {name: last / first for name, values in logged.items() for first, last in [ends_of_line(values)]}
    alike = {name: correlation(spent, values) for name, values in logged.items() if times[name] > 1}
    best = max(alike, key=lambda name: alike[name], default=None)
    if best is not None and alike[best] >= GOES_WITH:
        return best, times[best]
    return None, times.get("response_length_mean")


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
