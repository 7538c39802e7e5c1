"""The steps of a job made of roles: what each role takes of a step, every instant once (docs/rl.md)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

from gpuscope.analyzers.base.step_roles import StepFacts, roles
from gpuscope.analyzers.facts.steady_state import SteadyState
from gpuscope.trace.schema import RolePlace
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

SLACK = 0.01
"""By what part of a step timers that follow each other may add up to more than it: they are rounded, and nested."""
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Interval:
    """A role at work on a rank, ns on the recorder's clock."""

    role: str
    timer: str
    rank: int | None
    start: int
    end: int


@dataclass(frozen=True)
class RoleStep:
    """One step, ns."""

    number: int
    duration: int
    parts: Mapping[str, int]
    """By role, what of the step's own thread of control it takes; with `other` they sum to the duration."""
    beside: Mapping[str, int] = field(default_factory=dict)
    """By role, what ran beside those parts."""
    outside: Mapping[str, int] = field(default_factory=dict)
    """By role, what followed the step and delays the next one."""
    figures: Mapping[str, float] = field(default_factory=dict)
    intervals: tuple[Interval, ...] = ()

    @property
    def other(self) -> int:
        """What no part covers."""
        return self.duration - sum(self.parts.values())

    def whole(self) -> dict[str, int]:
        """The parts and what is left, in ns that sum to the duration."""
        return {**self.parts, "other": self.other} if self.other else dict(self.parts)


@dataclass(frozen=True)
class RoleSteps:
    """All steps of a run, and what holds for all of them."""

    steps: tuple[RoleStep, ...]
    contradictory: int = 0
    """Steps left out because their timers add up to more than the step."""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def asynchronous(self) -> bool:
        """Whether rollouts run beside the training of another batch."""
        waits = sum("waiting" in step.parts for step in self.steps)
        return bool(self.steps) and waits + sum(bool(step.beside) for step in self.steps) > len(self.steps) / 2


def is_of_roles(trace: Trace) -> bool:
    """Whether nothing but a job's timers by role is known."""
    return len(trace["role_times"]) > 0


def role_steps(trace: Trace) -> RoleSteps:
    """The steps of a run in order; those of intervals alone are told apart by what begins again."""
    by_step: dict[int, list[Row]] = defaultdict(list)
    placed: list[Row] = []
    for row in trace.rows("role_times"):
        if row["step"] is None:
            placed.append(row)
        else:
            by_step[row["step"]].append(row)
    figures: dict[int | None, dict[str, float]] = defaultdict(dict)
    for row in trace.rows("role_figures"):
        figures[row["step"]][row["figure"]] = row["value"] / 1e6
    if placed and not by_step:
        return RoleSteps(tuple(_of_intervals(placed)), figures=figures[None])
    steps = [_of_timers(number, rows, figures[number]) for number, rows in sorted(by_step.items())]
    over = [step for step in steps if step.other < -SLACK * step.duration]
    if 2 * len(over) > len(steps):
        steps = [_with_rollout_beside(step) for step in steps]
        over = [step for step in steps if step.other < -SLACK * step.duration]
    whole = tuple(_fitting(step) for step in steps if step not in over)
    return RoleSteps(whole, len(over), figures[None])


def role_state(found: RoleSteps, *, asked: bool) -> SteadyState:
    """The roles of these steps in the steady state; a logged step is whole, the last one too. Checkpoints and
    validations make a step long."""
    facts = [StepFacts(step.duration + sum(step.outside.values())) for step in found.steps]
    own = roles([*facts, StepFacts(0, cut=True)])[:-1]
    numbers = [step.number for step in found.steps]
    bare = [StepFacts(step.duration) for step in found.steps]
    return SteadyState(dict(zip(numbers, bare, strict=True)), dict(zip(numbers, own, strict=True)), asked)


def _of_timers(number: int, rows: Iterable[Row], figures: Mapping[str, float]) -> RoleStep:
    spent: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        spent[row["place"]][row["role"]] += row["dur"]
    duration = sum(spent[RolePlace.STEP].values())
    parts, beside, outside = (dict(spent[place]) for place in (RolePlace.PART, RolePlace.BESIDE, RolePlace.OUTSIDE))
    outside.pop("other", None)
    return RoleStep(number, duration, parts, beside, outside, figures)


def _with_rollout_beside(step: RoleStep) -> RoleStep:
    """Timers that add up to more than the step: the rollout is that of another batch, and what is left of the step
    waits for it."""
    parts = {role: ns for role, ns in step.parts.items() if role != "rollout"}
    waiting = step.duration - sum(parts.values())
    if waiting > 0 and step.parts.get("rollout"):
        parts["waiting"] = parts.get("waiting", 0) + waiting
    return RoleStep(
        step.number, step.duration, parts, {"rollout": step.parts.get("rollout", 0)}, step.outside, step.figures
    )


def _fitting(step: RoleStep) -> RoleStep:
    """A step whose parts sum to no more than it: what rounding leaves over is taken from the largest."""
    if step.other >= 0:
        return step
    largest = max(step.parts, key=lambda role: step.parts[role])
    parts = {**step.parts, largest: step.parts[largest] + step.other}
    return RoleStep(step.number, step.duration, parts, step.beside, step.outside, step.figures)


def _of_intervals(rows: Iterable[Row]) -> Iterable[RoleStep]:
    own = [Interval(row["role"], row["timer"], row["rank"], row["began"], row["began"] + row["dur"]) for row in rows]
    own.sort(key=lambda one: (one.start, one.end))
    groups = _rounds(own)
    for number, group in enumerate(groups):
        start = group[0].start
        following = groups[number + 1][0].start if number + 1 < len(groups) else max(one.end for one in group)
        yield RoleStep(number, following - start, _covered(group, start, following), intervals=tuple(group))


def _rounds(own: Sequence[Interval]) -> list[list[Interval]]:
    """A round begins where the role of the first interval comes again after another one."""
    first, groups = own[0].role, list[list[Interval]]()
    before = ""
    for one in own:
        if not groups or (one.role == first and before != first):
            groups.append([])
        groups[-1].append(one)
        before = one.role
    return groups


def _covered(group: Sequence[Interval], start: int, end: int) -> dict[str, int]:
    """ns by role, every instant once: it is of the role that started last, as of nested ranges the inner one."""
    edges = sorted({start, end, *(min(max(at, start), end) for one in group for at in (one.start, one.end))})
    spent: dict[str, int] = defaultdict(int)
    active: list[tuple[int, int, str]] = []
    coming = 0
    for low, high in pairwise(edges):
        while coming < len(group) and group[coming].start <= low:
            one = group[coming]
            heappush(active, (-one.start, one.end, one.role))
            coming += 1
        while active and active[0][1] <= low:
            heappop(active)
        if active:
            spent[active[0][2]] += high - low
    return dict(spent)
