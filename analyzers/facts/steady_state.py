"""The steady state of a run: the role of each step, and which steps of each lane are judged (definitions: «Steps»)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any

import numpy as np

from gpuscope.analyzers.base.evidence import MIN_STEADY, Role, StepFacts, leading_fast, roles, usual
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.matching import Matched
from gpuscope.schema.document import StepTime
from gpuscope.trace.intervals import Breakdown
from gpuscope.trace.schema import NA, RolePlace
from gpuscope.trace.steps import FEW_ANNOTATED, is_annotated
from gpuscope.trace.table import Mask, Table, Times, distinct_values
from gpuscope.trace.trace import Trace
from gpuscope.welch import lower_median, quantile
from gpuscope.when_used import dataclass
from gpuscope.words import units


@dataclass(frozen=True)
class SteadyState:
    """Roles by step number, the same for all ranks, and what follows from them."""

    steps: Mapping[int, StepFacts]
    """By step number in order; durations are the largest over the ranks, ns."""
    roles: Mapping[int, Role]
    asked: bool
    """Whether the user asked for these steps: then they are judged whatever they are."""
    of_run: Mapping[int, int] | None = None
    """By step number, ns from its earliest begin on any rank to the next one's, where these tell «the step»: ranks take
    turns being late, and the durations add up to more than was recorded."""
    joined: bool = False
    """Whether collectives join all ranks in every judged step, so that `of_run` may tell «the step»."""
    half_of_two: int | None = None
    """Of two annotated steps in all, half of what they last together, ns."""
    broken: int | None = None
    """The step in which a rank failed: neither it nor what follows is judged."""

    @cached_property
    def whole_window(self) -> bool:
        """Whether all of the recording but its set-up is judged, for want of steady steps."""
        return not self.asked and list(self.roles.values()).count(Role.STEADY) < MIN_STEADY

    @property
    def why_whole(self) -> str:
        """Why the whole window is judged; empty where the steady state is."""
        if not self.whole_window:
            return ""
        if not self.steps:
            return "no steps were found, so the whole window is judged"
        steady = list(self.roles.values()).count(Role.STEADY)
        return f"only {units.plural(steady, 'steady step')}, so the whole window except set-up is judged"

    def role(self, step: int) -> Role:
        """The role of a step number; of NA, what ran before the first one."""
        return Role.SETUP if step == NA else self.roles[step]

    def judged(self, step: int) -> bool:
        """Whether a step number counts for the verdict."""
        if self.broken is not None and step >= self.broken and not self.asked:
            return False
        return self.asked or (step != NA and (self.whole_window or self.roles[step] == Role.STEADY))

    def places(self, lane: LaneSummary) -> Mask:
        """Which of a lane's steps are judged, shape (steps,)."""
        return np.array([self.judged(step.step) for step in lane.steps], np.bool_)

    def breakdown(self, lane: LaneSummary) -> Breakdown:
        """The judged part of a lane, its steps summed; without steps its whole window."""
        if not lane.steps:
            return lane.breakdown
        return total(lane.step_breakdowns[place] for place in np.flatnonzero(self.places(lane)).tolist())

    def measure(self, lane: LaneSummary, spent: int, per_step: Times) -> int:
        """ns of the judged part of a lane, from ns in all and per step."""
        return int(per_step[self.places(lane)].sum()) if lane.steps else spent

    def count(self, lane: LaneSummary) -> int:
        """Judged steps of a lane; what ran before the first one is none."""
        return sum(self.judged(step.step) for step in lane.steps if step.step != NA)

    def of_role(self, role: Role) -> dict[int, int]:
        """Durations (ns) of the steps of a role, by step number."""
        return {step: self.duration(step) for step, own in self.roles.items() if own == role}

    def duration(self, step: int) -> int:
        """How long a step takes the run, ns."""
        return self.steps[step].duration if self.of_run is None else self.of_run[step]

    @cached_property
    def durations(self) -> list[int]:
        """Durations of the judged steps, ns."""
        return [self.duration(step) for step in self.steps if self.judged(step)]

    @cached_property
    def step_ns(self) -> int | None:
        """«The step»: the median duration of the judged steps, of an even number the lower one; None without steps."""
        if self.half_of_two is not None:
            return self.half_of_two
        return lower_median(self.durations) if self.durations else None

    @property
    def largest_ns(self) -> int | None:
        """The median over the judged steps of what the slowest rank's lasts, ns; None without steps."""
        return lower_median([own.duration for step, own in self.steps.items() if self.judged(step)] or [0]) or None

    @property
    def step_time(self) -> StepTime | None:
        """«The step» and its spread; None without steps."""
        if self.step_ns is None:
            return None
        found: StepTime = {
            "median_ns": self.step_ns,
            "p90_ns": round(quantile(self.durations, 0.9)),
            "min_ns": min(self.durations),
            "max_ns": max(self.durations),
            "steps": len(self.durations),
        }
        if self.of_run is not None:
            found["of_run_ns"] = {str(step): ns for step, ns in self.of_run.items()}
        return found

    def of_the_step(self, lane: LaneSummary) -> float:
        """By what a mean per judged step of a lane is multiplied for its share of the time times «the step», which is
        what sentences call «per step»; 1 without steps."""
        window = self.breakdown(lane).window
        return self.step_ns * self.count(lane) / window if self.step_ns is not None and window else 1.0

    @cached_property
    def usual_ns(self) -> float | None:
        """What a step usually takes, the reference for long ones; None without whole steps."""
        typical = usual([self.steps[step] for step in self.since_shift])
        return typical.median if typical is not None else None

    @cached_property
    def since_shift(self) -> list[int]:
        """The steps since the step time shifted for good; all of them where it did not."""
        earlier = [step for step, role in self.roles.items() if role == Role.BEFORE_SHIFT]
        return [step for step in self.steps if not earlier or step > earlier[-1]]

    @cached_property
    def leading_fast(self) -> list[int]:
        """Durations (ns) of the steady steps at the beginning that are faster than the later ones."""
        steps = [self.steps[step] for step in self.since_shift]
        own = [self.roles[step] for step in self.since_shift]
        steady = [step.duration for step, role in zip(steps, own, strict=True) if role == Role.STEADY]
        return steady[: leading_fast(steps, own)]


def steady_state(lanes: Sequence[LaneSummary], asked: bool = False, broken: int | None = None) -> SteadyState:
    """The roles of a run's steps from all its lanes; `asked` where the user named the steps, `broken` is the one in
    which a rank failed."""
    found: dict[int, StepFacts] = {}
    for lane in lanes:
        for step, facts in zip(lane.steps, lane.facts, strict=True):
            if step.step != NA:
                found[step.step] = found.get(step.step, StepFacts(0)).joined(facts)
    steps = dict(sorted(found.items()))
    own = roles(
        [replace(one, cut=True) if broken is not None and step >= broken else one for step, one in steps.items()]
    )
    if asked:
        own = [Role.STEADY] * len(own)
    half = None
    whole = broken is None or all(step < broken for step in steps)
    if (
        len(steps) == FEW_ANNOTATED
        and not asked
        and whole
        and all(lane.basis and is_annotated(lane.basis) for lane in lanes)
    ):
        half = max(sum(step.end - step.start for step in lane.steps if step.step != NA) for lane in lanes) // 2
    return SteadyState(steps, dict(zip(steps, own, strict=True)), asked, half_of_two=half, broken=broken)


def taking_turns(
    steady: SteadyState, lanes: Sequence[LaneSummary], table: Table, matched: Matched, clocks: Clocks
) -> SteadyState:
    """The same with each step from its earliest begin on any rank to the next one's, where that is less in the median
    and collectives join all ranks in every judged step; `table` is that of collectives."""
    numbers, ranks = list(steady.steps), sorted({lane.rank for lane in lanes})
    if len(ranks) < 2 or len(numbers) <= 2 or clocks.error is None:
        return steady
    joined = _joined(lanes, table, matched, ranks)
    if not all(step in joined for step in numbers if steady.judged(step)):
        return steady
    begun: dict[int, int] = {}
    for lane in lanes:
        rank = np.full(len(lane.steps), lane.rank)
        starts = clocks.common(rank, np.array([step.start for step in lane.steps], np.int64)).tolist()
        for step, start in zip(lane.steps, starts, strict=True):
            begun[step.step] = min(start, begun.get(step.step, start))
    lengths = {step: facts.duration for step, facts in steady.steps.items()}
    for number, following in pairwise(numbers):
        if number != numbers[0]:
            lengths[number] = max(begun[following] - begun[number], 0)
    found = replace(steady, of_run=lengths, joined=True)
    return found if (found.step_ns or 0) < (steady.step_ns or 0) else replace(steady, joined=True)


def _joined(lanes: Sequence[LaneSummary], table: Table, matched: Matched, ranks: Sequence[int]) -> set[int]:
    """The steps of the lowest rank in which collectives of all these ranks begin."""
    lane = next(lane for lane in lanes if lane.rank == ranks[0])
    starts = np.array([step.start for step in lane.steps], np.int64)
    found: set[int] = set()
    for instances in (matched.instances, matched.partial):
        whole = instances.select((instances.sizes == len(ranks)) & ~instances.p2p)
        own = whole.rows[table["rank"][whole.rows] == ranks[0]]
        place = np.searchsorted(starts, table["start"][own], "right") - 1
        found |= {lane.steps[k].step for k in distinct_values(place[place >= 0]).tolist()}
    return found


def timed_state(operations: Table) -> SteadyState:
    """The roles of steps of which only operations are known. A step lasts from its first operation, on any rank, to the
    next one's; the last one to the end of its last operation, and is whole."""
    steps, place = np.unique(operations["step"], return_inverse=True)
    begin = np.full(len(steps), np.iinfo(np.int64).max)
    np.minimum.at(begin, place, operations["start"])
    ends = [*begin[1:].tolist(), int(operations["end"].max(initial=0))]
    facts = [StepFacts(end - start) for start, end in zip(begin.tolist(), ends, strict=False)]
    own = roles([*facts, StepFacts(0, cut=True)])[:-1]
    found = dict(zip(steps.tolist(), facts, strict=True))
    return SteadyState(found, dict(zip(found, own, strict=True)), asked=False)


def total(breakdowns: Iterable[Breakdown]) -> Breakdown:
    """Breakdowns added up part by part."""
    columns = [
        (
            one.window,
            one.compute,
            one.exposed_communication,
            one.exposed_memory,
            one.idle,
            one.communication,
            one.overlapped_communication,
        )
        for one in breakdowns
    ]
    return Breakdown(*(sum(column) for column in zip(*columns, strict=True))) if columns else Breakdown(*[0] * 7)


# The steps of a job made of roles: what each role takes of a step, every instant once (docs/rl.md).

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
