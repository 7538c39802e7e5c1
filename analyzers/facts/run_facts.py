"""What the analyses of a run rest on, found once per run and handed to each of them and to the replay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from gpuscope.analyzers.base.analyzer import Analyzer, Attributed, LaneKey, Result
from gpuscope.analyzers.base.lanes import LaneSummary
from gpuscope.analyzers.facts import clocks, matching
from gpuscope.analyzers.facts.call_order import Host, Placement, against_whole_job, clock_of, hosts
from gpuscope.analyzers.facts.clocks import Clocks, Waits, waits
from gpuscope.analyzers.facts.matching import Instances, Matched
from gpuscope.analyzers.facts.pipeline_facts import Flush, Key, StageMap, assembled, flushes, is_timed, stage_map
from gpuscope.analyzers.facts.steady_state import (
    RoleSteps,
    SteadyState,
    is_of_roles,
    role_state,
    role_steps,
    steady_state,
    taking_turns,
    timed_state,
)
from gpuscope.analyzers.what_if_changes import Change, EvenStages, Predicted, Refused
from gpuscope.catalogue.findings.device import CLOCK_HOLDERS
from gpuscope.schema.document import StepTime
from gpuscope.trace.table import Mask, Table, Times, distinct_values
from gpuscope.trace.trace import NOT_RECORDED, Trace, World, recorded_world
from gpuscope.when_used import dataclass
from gpuscope.words import units

# The world size of a run: as recorded, or assumed from devices and collectives (definitions: «World size»).

ENDS_AGREE_NS = 50_000
"""Matched collectives whose ranks end within this of each other are one operation (definitions: «World size»)."""
_MOST = 0.9
"""The part of the matched collectives whose ends must agree: a rank may leave a few of them late."""


def world(trace: Trace, matched: Matched, clocks: Clocks) -> World:
    """The world size of a merged trace, with where it comes from.

    As recorded; else the number of ranks at hand, if all devices of every host are there and the ends of the matched
    collectives tie all ranks to each other. `why` says what speaks for it, or what is missing.
    """
    recorded = recorded_world(trace)
    if recorded.size is not None or not trace.ranks:
        return recorded
    against = against_whole_job(trace)
    if against:
        return World(None, None, f"{NOT_RECORDED.why}, and {against}")
    if matched.varying:
        return World(
            None,
            None,
            f"{NOT_RECORDED.why}, and equal transfers take so unequal times that somebody who is "
            "in none of the files may be waited for",
        )
    if matched.unmatched.get("ranks_missing"):
        return World(None, None, f"{NOT_RECORDED.why}, and ranks of the collectives' groups are in none of the files")
    spread = _ends_apart(trace, matched, clocks)
    if not len(spread):
        return World(None, None, f"{NOT_RECORDED.why}, and no matched collective ties the ranks at hand to each other")
    far = int(np.sort(spread)[int(_MOST * (len(spread) - 1))])
    if far > ENDS_AGREE_NS:
        return World(
            None,
            None,
            f"{NOT_RECORDED.why}, and the ends of matched collectives are {far / 1e3:.0f} µs apart: "
            "the ranks at hand may not be of one job",
        )
    if not _tied(trace, matched):
        return World(None, None, f"{NOT_RECORDED.why}, and some of the ranks at hand meet no other in a collective")
    count = len(trace.ranks)
    hosts = len(set(clock_of(trace).values()))
    return World(
        count,
        "assumed",
        f"{NOT_RECORDED.why}; the {count} ranks at hand are assumed to be all of them: every device of "
        f"{'the host' if hosts == 1 else f'the {hosts} hosts'} is there, and {len(spread)} matched collectives end "
        f"within {max(far, 1_000) / 1e3:.0f} µs of each other",
    )


def _ends_apart(trace: Trace, matched: Matched, clocks: Clocks) -> Times:
    """Per matched collective of several ranks, how far its ends lie apart on the common clock, ns."""
    table = trace["collectives"]
    parts: list[Times] = []
    for found in (matched.instances, matched.partial):
        own = found.select((found.sizes > 1) & ~_one_way(trace, found))
        ends = clocks.common(table["rank"][own.rows], table["end"][own.rows])
        parts.append(own.reduce(np.maximum, ends) - own.reduce(np.minimum, ends))
    return np.concatenate(parts)


def _one_way(trace: Trace, found: Instances) -> Mask:
    """Messages from one rank to another: the sender may leave before the receiver."""
    if not len(found):
        return found.p2p
    exchange = trace["collectives"]["op"][found.rows[found.bounds[:-1]]] == trace.names.find("send_recv")
    return np.asarray(found.p2p & ~exchange)


def _tied(trace: Trace, matched: Matched) -> bool:
    """Whether every rank at hand meets every other in matched operations, directly or through others."""
    rank = trace["collectives"]["rank"]
    label = {own: own for own in trace.ranks}

    def root(own: int) -> int:
        while label[own] != own:
            own = label[own]
        return own

    for found in (matched.instances, matched.partial):
        head = np.repeat(rank[found.rows[found.bounds[:-1]]], found.sizes)
        for first, second in set(zip(head.tolist(), rank[found.rows].tolist(), strict=True)):
            low, high = sorted((root(first), root(second)))
            label[high] = low
    return len({root(own) for own in trace.ranks}) == 1


# What gpuscope's recorder counted in each step of a rank, from the metadata of its trace.


def recorded_steps(trace: Trace, rank: int, key: str) -> dict[int, dict[str, int | None]]:
    """By step, the values of the table under `key` by column; what is no integer is None. Empty where there is none."""
    return next((found for counted in _counted(trace, rank, key) if (found := _by_step(counted))), {})


def recorded_number(trace: Trace, rank: int, key: str, name: str) -> int | None:
    """What stands beside the table under `key` by that name; None where there is no such integer."""
    return next((found for one in _counted(trace, rank, key) if (found := _integer(one.get(name))) is not None), None)


def _counted(trace: Trace, rank: int, key: str) -> Iterator[dict[str, Any]]:
    own = np.flatnonzero(trace["ranks"]["rank"] == rank)
    for source in distinct_values(trace["ranks"]["source"][own]).tolist():
        header = trace.sources[source].facts.get("header")
        counted = header.get(key) if isinstance(header, dict) else None
        if isinstance(counted, dict):
            yield counted


def _by_step(counted: dict[str, Any]) -> dict[int, dict[str, int | None]]:
    columns, rows = counted.get("columns"), counted.get("steps")
    if not isinstance(columns, list) or not isinstance(rows, list) or not all(isinstance(one, str) for one in columns):
        return {}
    found = {}
    for row in rows:
        if isinstance(row, list) and len(row) == len(columns):
            values = {name: _integer(value) for name, value in zip(columns, row, strict=True)}
            if (step := values.pop("step", None)) is not None:
                found[step] = values
    return found


def _integer(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# How long each rank's training thread ran, and was ready to run without a core, as gpuscope's recorder counts it.

KEY = "gpuscope_cores"


class CoreTimes(NamedTuple):
    """Of a step: ns on a core (None in older recordings), and ns ready to run without one."""

    ran: int | None
    waited: int


def core_times(trace: Trace, rank: int) -> dict[int, CoreTimes]:
    """A rank's times by step; empty where they are not recorded."""
    found = {}
    for step, row in recorded_steps(trace, rank, KEY).items():
        waited, ran = row.get("waited_ns"), row.get("ran_ns")
        if waited is not None and waited >= 0:
            found[step] = CoreTimes(ran if ran is not None and ran > 0 else None, waited)
    return found


def core_waits(trace: Trace, rank: int) -> dict[int, int]:
    """ns that a rank's training thread was runnable without a core, by step; empty where that is not recorded."""
    return {step: times.waited for step, times in core_times(trace, rank).items()}


def threads_and_cores(trace: Trace, rank: int) -> tuple[int, int]:
    """In how many threads a rank's operators run, and on how many cores its process may; 0 where not recorded."""
    return recorded_number(trace, rank, KEY, "threads") or 0, recorded_number(trace, rank, KEY, "cores") or 0


# Clocks and power of each rank's GPU in the judged steps, and what held the clocks down, as NVML told the recorder.

GPU_CLOCKS_KEY = "gpuscope_gpu"
HELD = 0.1
"""Share of the samples from which on a clock is said to be held down."""
LOWER = 0.03
"""By which a clock must lie below the median of the peers' to be called lower."""


@dataclass(frozen=True)
class GpuClocks:
    """Of one rank's GPU over some steps."""

    samples: int
    mhz: float | None
    """Mean clock of the multiprocessors."""
    watts: float | None
    """Mean board power."""
    held: Mapping[str, float]
    """Share of the samples in which each of `CLOCK_HOLDERS` held the clock down; those that never did are left out."""

    @property
    def holder(self) -> str | None:
        """What held the clock down most often, if that is often."""
        most = max(self.held, key=lambda name: self.held[name], default=None)
        return most if most is not None and self.held[most] >= HELD else None

    def told(self) -> str:
        """«held down by its power cap in 92 % of the samples», or nothing."""
        if self.holder is None:
            return ""
        return f"held down by {CLOCK_HOLDERS[self.holder]} in {units.share(self.held[self.holder])} of the samples"


def gpu_clocks(trace: Trace, rank: int, steps: Sequence[int]) -> GpuClocks | None:
    """A rank's clocks over those of `steps` in which they were sampled; None where they were in none."""
    counted = recorded_steps(trace, rank, GPU_CLOCKS_KEY)
    rows = [row for step in steps if (row := counted.get(step)) is not None and (row.get("samples") or 0) > 0]
    samples = sum(row.get("samples") or 0 for row in rows)
    if not samples:
        return None
    held = {name: sum(row.get(name) or 0 for row in rows) / samples for name in CLOCK_HOLDERS}
    watts = _mean(rows, "power_mw")
    return GpuClocks(
        samples,
        _mean(rows, "sm_mhz"),
        watts / 1000 if watts is not None else None,
        {name: min(share, 1.0) for name, share in held.items() if share > 0},
    )


def _mean(rows: Sequence[Mapping[str, int | None]], column: str) -> float | None:
    known = [(value, row.get("samples") or 0) for row in rows if (value := row.get(column)) is not None]
    weight = sum(count for _, count in known)
    return sum(value * count for value, count in known) / weight if weight else None


def lower_clock(rank: int, clocks: Mapping[int, GpuClocks]) -> str:
    """A clause saying that a rank's clock is lower than its peers', and what holds it down; empty where it is not."""
    own = clocks.get(rank)
    peers = [one.mhz for other, one in clocks.items() if other != rank and one.mhz is not None]
    if own is None or own.mhz is None or not peers:
        return ""
    usual = float(np.median(peers))
    if own.mhz >= (1 - LOWER) * usual:
        return ""
    why = f", {own.told()}" if own.told() else ""
    return f"its SM clock is {own.mhz:,.0f} MHz, {usual:,.0f} MHz on its peers{why}"


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
    broken_step: int | None = None
    """Of a run that failed, the step in which a rank ended: from it on the others only wait, and nothing is judged."""

    @cached_property
    def steady(self) -> SteadyState:
        """The role of each step, and what is judged."""
        if not self.lanes and is_timed(self.trace):
            return timed_state(self.trace["operations"])
        if not self.lanes and is_of_roles(self.trace):
            return role_state(self.role_steps, asked=self.steps_asked)
        found = steady_state(self.lanes, self.steps_asked, self.broken_step)
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
        return world(self.trace, self.matched, self.clocks)

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
