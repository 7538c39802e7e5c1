"""A lane (one rank on one device) cut to the window asked for: its parts as spans, its steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from gpuscope.analyzers.base.step_facts import step_facts
from gpuscope.analyzers.base.step_roles import Role, StepFacts, roles
from gpuscope.errors import UsageError
from gpuscope.trace.breakdown import Breakdown, Parts, split
from gpuscope.trace.columns.sorted_search import places
from gpuscope.trace.columns.table import Times, blocks
from gpuscope.trace.intervals import Spans, union
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.steps import device_steps
from gpuscope.trace.trace import Lane, Trace
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class StepWindow:
    """A step on the device's clock; `step` is `NA` for what ran before the first one, or behind a single one."""

    step: int
    start: int
    end: int


@dataclass(frozen=True)
class LaneView:
    """A lane, its window, the exact parts of that window, and the steps that tile it."""

    lane: Lane
    window: tuple[int, int]
    parts: Parts
    breakdown: Breakdown
    steps: tuple[StepWindow, ...]
    basis: str | None
    """What the steps were found from."""
    facts: tuple[StepFacts, ...]
    """Of each of `steps`, what decides its role."""
    roles: tuple[Role, ...]
    """Of each of `steps`, by this rank's own durations; the run's roles come from all ranks."""
    cut: bool = False
    """Whether the window is that of the steps asked for, rather than the whole recording."""

    @property
    def key(self) -> tuple[int, int]:
        """(rank, device)."""
        return self.lane.rank, self.lane.device

    @property
    def judged_steps(self) -> list[StepWindow]:
        """The steady steps by this rank's own durations, else all; its window as one where it has no steps."""
        steady = [step for step, role in zip(self.steps, self.roles, strict=True) if role == Role.STEADY]
        proper = [step for step in self.steps if step.step != NA]
        return steady or proper or [StepWindow(NA, *self.window)]

    @property
    def judged(self) -> tuple[int, int]:
        """From the first steady step's begin to the last one's end; the window where there is none."""
        steady = [step for step, role in zip(self.steps, self.roles, strict=True) if role == Role.STEADY]
        return (steady[0].start, steady[-1].end) if steady else self.window

    @property
    def judged_spans(self) -> Spans:
        """The same without the long steps between them."""
        return union(*bounds(self.judged_steps))

    @property
    def rows(self) -> Times:
        """Rows of its device events, also of those outside the window."""
        return self.lane.rows


def views(trace: Trace, steps: tuple[int, int] | None = None) -> list[LaneView]:
    """Every lane of the trace over its whole window, or over the steps first..last asked for.

    Raises `UsageError` where steps are asked for that no lane has.
    """
    found = [_view(trace, lane, steps) for lane in trace.lanes()]
    if steps is not None and found and all(view is None for view in found):
        raise no_such_steps(steps)
    return [view for view in found if view is not None]


def computing(trace: Trace, view: LaneView) -> Times:
    """Rows of a lane's compute kernels that begin in its judged steps, in order."""
    device, steps = trace["device_events"], view.judged_steps
    begins, ends = bounds(steps)
    found: list[Times] = [view.rows[:0]]
    for block in blocks(0, len(view.rows)):
        rows = view.rows[block]
        inside = step_at(begins, ends, device["start"][rows]) != NA
        found.append(rows[inside & (device["kind"][rows] == Kind.COMPUTE)])
    return np.concatenate(found)


def step_at(begins: Times, ends: Times, at: Times) -> Times:
    """Which of several steps, ascending and apart, each instant lies in, shape as `at`; NA outside all."""
    if not len(begins):
        return np.full(np.shape(at), NA)
    place = places(begins, at, "right") - 1
    inside = (place >= 0) & (at < ends[np.maximum(place, 0)])
    return np.where(inside, place, NA)


def bounds(steps: Sequence[StepWindow]) -> tuple[Times, Times]:
    """Starts and ends of steps, ns; shape (steps,) each."""
    return np.array([step.start for step in steps], np.int64), np.array([step.end for step in steps], np.int64)


def no_such_steps(steps: tuple[int, int]) -> UsageError:
    """The error where steps are asked for that nothing has."""
    return UsageError(f"no rank has a step between {steps[0]} and {steps[1]}", hint="gpuscope info lists the steps")


def _view(trace: Trace, lane: Lane, asked: tuple[int, int] | None) -> LaneView | None:
    window = trace.window(lane.rows)
    steps, basis = _steps(trace, lane, window)
    if steps:  # a single annotated step may begin before its first device event
        window = (steps[0].start, steps[-1].end)
    if asked is not None:
        steps = [step for step in steps if step.step != NA and asked[0] <= step.step <= asked[1]]
        if not steps:
            return None
        window = (steps[0].start, steps[-1].end)
    compute, communication, memory = (trace.spans(lane.rows, kind) for kind in Kind)
    parts = split(compute, communication, memory, window)
    facts = step_facts(trace, lane, [step.step for step in steps], *bounds(steps))
    roles = tuple(_own_roles(steps, facts))
    breakdown = trace.breakdown(lane.rows, window)
    return LaneView(lane, window, parts, breakdown, tuple(steps), basis, facts, roles, cut=asked is not None)


def _own_roles(steps: Sequence[StepWindow], facts: Sequence[StepFacts]) -> list[Role]:
    """The role of each step of one rank, what ran before the first included."""
    found = iter(roles([own for step, own in zip(steps, facts, strict=True) if step.step != NA]))
    return [Role.SETUP if step.step == NA else next(found) for step in steps]


def _steps(trace: Trace, lane: Lane, window: tuple[int, int]) -> tuple[list[StepWindow], str | None]:
    table = trace["steps"]
    own = table.take(np.flatnonzero(table["rank"] == lane.rank))
    if not len(own):
        return [], None
    basis = trace.names[int(own["basis"][0])]
    tiles = device_steps(
        own,
        trace["device_events"],
        trace["host_events"],
        lane.rows,
        window,
        basis,
    )
    return [StepWindow(*tile) for tile in tiles], basis


def count_steps(steps: Sequence[StepWindow]) -> int:
    """Steps proper: what ran before the first one is none."""
    return sum(step.step != NA for step in steps)


@dataclass(frozen=True)
class HostWork:
    """Something that the launching threads did while the device was idle, by name, and for how long in all, ns."""

    name: str
    spent: int
    first_use: bool
    """Whether it is compiling, loading, or the first use of something."""


RECORDING = -1
"""Stands for all that is judged of a lane where `LaneSummary.once` has places of steps."""


@dataclass(frozen=True)
class LaneSummary:
    """A lane's window, exact parts (whole and per step), and where its communication was exposed."""

    rank: int
    device: int
    window: tuple[int, int]
    breakdown: Breakdown
    steps: tuple[StepWindow, ...]
    step_breakdowns: tuple[Breakdown, ...]
    basis: str | None
    facts: tuple[StepFacts, ...]
    """Of each of `steps`, what decides its role."""
    thinned: str
    """What shows that events were dropped from the recording; empty where nothing does."""
    exposed_communication: Spans
    events: int
    """Device events of the lane."""
    once: Mapping[int, tuple[HostWork, ...]] = field(default_factory=dict)
    """What the host did longest where no steady step is, by place in `steps`; `RECORDING` for all that is judged
    where too few steps are steady."""
    lost_work: int | None = None
    """Of a thinned lane: how long the kernels that the recording lacks may have run, ns; None where that is not
    known."""

    def check(self) -> None:
        """Raise `ValueError` where what is said of each step is not said of so many steps."""
        if not len(self.steps) == len(self.step_breakdowns) == len(self.facts):
            raise ValueError(f"{len(self.steps)} steps with {len(self.step_breakdowns)} breakdowns")
        if len(self.exposed_communication.start) != len(self.exposed_communication.end):
            raise ValueError("spans that begin and do not end")

    @property
    def key(self) -> tuple[int, int]:
        """(rank, device)."""
        return self.rank, self.device


def summarise(
    trace: Trace,
    view: LaneView,
    thinned: str = "",
    once: Mapping[int, tuple[HostWork, ...]] | None = None,
    lost_work: int | None = None,
) -> LaneSummary:
    """The summary of a lane; `thinned` says what shows that events were dropped, `lost_work` how long these may have
    run, `once` what is not done every step."""
    return LaneSummary(
        rank=view.lane.rank,
        device=view.lane.device,
        window=view.window,
        breakdown=view.breakdown,
        steps=view.steps,
        step_breakdowns=step_breakdowns(trace, view),
        basis=view.basis,
        facts=view.facts,
        thinned=thinned,
        lost_work=lost_work,
        exposed_communication=view.parts.exposed_communication,
        events=len(view.rows),
        once=once or {},
    )


def step_breakdowns(trace: Trace, view: LaneView) -> tuple[Breakdown, ...]:
    """The exact breakdown of each step, all steps at once."""
    return trace.breakdowns(view.rows, [(step.start, step.end) for step in view.steps])
