"""What the analyses of a run rest on, found once per run and handed to each of them and to the replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Protocol

import numpy as np

from gpuscope.analyzers.base.analyzer import Analyzer, Attributed, LaneKey, Result
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.changes import Change, EvenStages, Predicted, Refused
from gpuscope.analyzers.facts import assumed_world, clocks, matching
from gpuscope.analyzers.facts.clocks import Clocks
from gpuscope.analyzers.facts.counted_by_step.core_waits import CoreTimes, core_times
from gpuscope.analyzers.facts.counted_by_step.gpu_clocks import GpuClocks, gpu_clocks
from gpuscope.analyzers.facts.host_links import Host, hosts
from gpuscope.analyzers.facts.matching import Matched
from gpuscope.analyzers.facts.pipeline_facts.assembled import assembled
from gpuscope.analyzers.facts.pipeline_facts.flushes import Flush, Key, flushes
from gpuscope.analyzers.facts.pipeline_facts.stages import StageMap, is_timed, stage_map
from gpuscope.analyzers.facts.placement import Placement
from gpuscope.analyzers.facts.role_steps import RoleSteps, is_of_roles, role_state, role_steps
from gpuscope.analyzers.facts.steady_state import SteadyState, steady_state, taking_turns, timed_state
from gpuscope.analyzers.facts.waits import Waits, waits
from gpuscope.schema.document import StepTime
from gpuscope.trace.columns.table import Table
from gpuscope.trace.trace import Trace
from gpuscope.trace.world import World
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class RunFacts:
    """One run: its merged trace without the events that `Trace.reduced` drops, its lanes, and what follows from them.

    Nothing here changes; a property is computed when it is first asked for and then kept, so that an analysis that
    breaks on one takes no other with it.
    """

    trace: Trace
    lanes: Sequence[LaneSummary]
    causes: Mapping[LaneKey, Mapping[str, Attributed]] = field(default_factory=dict)
    """What the analyses of single files attributed to causes, per lane."""
    steps_asked: bool = False
    """Whether the user named the steps to judge."""
    completed: bool = False
    """Whether a manifest says that the run came to its own end."""
    over: bool = False
    """Whether it says that it ended, well or badly: what only a running job can tell is lost."""
    killed: frozenset[int] = frozenset()
    """Ranks that were killed, so that they left nothing at their end."""

    @cached_property
    def steady(self) -> SteadyState:
        """The role of each step, and what is judged."""
        if not self.lanes and is_timed(self.trace):
            return timed_state(self.trace["operations"])
        if not self.lanes and is_of_roles(self.trace):
            return role_state(self.role_steps, asked=self.steps_asked)
        found = steady_state(self.lanes, self.steps_asked)
        if len(self.lanes) < 2 or not found.steps:
            return found
        return taking_turns(found, self.lanes, self.trace["collectives"], self.matched, self.clocks)

    @cached_property
    def role_steps(self) -> RoleSteps:
        """The steps of a job made of roles, by its own timers; none of any other."""
        return role_steps(self.trace)

    @property
    def step_time(self) -> StepTime | None:
        """«The step» and its spread; None where no steps were found."""
        return self.steady.step_time

    @property
    def step_ns(self) -> int | None:
        """«The step»; None where no steps were found."""
        return None if self.step_time is None else self.step_time["median_ns"]

    @cached_property
    def world(self) -> World:
        """Ranks of the job, with where that is from: as recorded, else assumed where all that is there agrees."""
        return assumed_world.world(self.trace, self.matched, self.clocks)

    @property
    def world_size(self) -> int | None:
        """Ranks of the job; None where it is neither recorded nor can be assumed."""
        return self.world.size

    @cached_property
    def matched(self) -> Matched:
        """Which rows of `collectives` are one operation."""
        return matching.match(self.trace)

    @cached_property
    def clocks(self) -> Clocks:
        """Offsets and drifts of the ranks' clocks, from the ends of matched collectives."""
        return clocks.estimate(self.trace, self.matched)

    @cached_property
    def waits(self) -> Waits:
        """Wait and transfer of each row of `collectives`."""
        return waits(self.trace, self.matched, self.clocks, self.lanes)

    @cached_property
    def core_times(self) -> Mapping[int, Mapping[int, CoreTimes]]:
        """What each rank's training thread had of a core, by rank and step; only ranks of which it was counted."""
        counted = {rank: core_times(self.trace, rank) for rank in self.trace.ranks}
        return {rank: steps for rank, steps in counted.items() if steps}

    @cached_property
    def gpu_clocks(self) -> Mapping[int, GpuClocks]:
        """Clocks and power of each rank's GPU in the judged steps; only ranks of which they were sampled."""
        steps = [step for step in self.steady.steps if self.steady.judged(step)]
        found = {rank: gpu_clocks(self.trace, rank, steps) for rank in self.trace.ranks}
        return {rank: own for rank, own in found.items() if own is not None}

    @cached_property
    def stages(self) -> StageMap | None:
        """The stages of a pipeline; None where nothing looks like one."""
        return stage_map(self.trace, self.world_size, self.matched.exchanged)

    @cached_property
    def operations(self) -> Table:
        """The table `operations` on the run's clock, each row with its stage where ranks are stages; of a job's own
        timers the judged steps."""
        table = self.trace["operations"] if self.stages is None else assembled(self.trace, self.stages, self.clocks)
        if self.lanes or not is_timed(self.trace):
            return table
        judged = [step for step in self.steady.steps if self.steady.judged(step)]
        return table.take(np.flatnonzero(np.isin(table["step"], judged)))

    @cached_property
    def flushes(self) -> tuple[tuple[Flush, ...], int]:
        """(flushes of the pipelines with all their computations, how many lack some)."""
        if self.stages is None or self.stages.incomplete:
            return (), 0
        whole, lacking = flushes(self.operations, self.trace.names, self.stages)
        return tuple(whole), lacking

    @cached_property
    def placement(self) -> Placement:
        """On which hosts and devices groups of ranks lie."""
        return Placement(self.trace)

    @cached_property
    def hosts(self) -> tuple[Host, ...]:
        """The links inside each host whose topology was read."""
        return hosts(self.trace)


class WhatIf(Protocol):
    """What an analysis may ask the replay of its run (`gpuscope.analyzers.replay.replayer.Replayer`)."""

    def predict(self, change: Change | Sequence[Change], /) -> Predicted | Refused:
        """The step time with a change, or with several made one after the other."""

    def estimate(self, change: Change | Sequence[Change], /) -> int | Refused:
        """The same without its range, which is much quicker: the step in ns."""

    def pipeline_places(self, flush: Flush, change: EvenStages, /) -> Mapping[Key, tuple[int, int]]:
        """Start and end of each computation with a change, ns after the pipeline began to fill; empty if refused."""


@dataclass(frozen=True)
class WhatIfAnalyzer(Analyzer):
    """An analysis of all ranks of a run that asks its replay what a change would bring: nothing else predicts."""

    run: Callable[[RunFacts, WhatIf], Result]


@dataclass(frozen=True)
class RunAnalyzer(Analyzer):
    """An analysis of all ranks of a run together."""

    run: Callable[[RunFacts], Result]
