"""The ranks that others waited for, steadily or in turns, and a table of rank by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from gpuscope.analyzers.base.lanes import LaneSummary, bounds, step_at
from gpuscope.analyzers.collectives.lateness import (
    MOST,
    SAME_WORK,
    Late,
    Longer,
    WorkOfRanks,
    beyond_peers,
    late_instances,
    medians_of_others,
    more_to_run,
    roles_of,
)
from gpuscope.analyzers.collectives.lateness import lateness as lateness_lateness
from gpuscope.analyzers.collectives.recurrence import Doing, TracedWaits
from gpuscope.analyzers.facts.clocks import Waits, rows_by_lane
from gpuscope.analyzers.facts.run_facts import CoreTimes, GpuClocks, RunFacts, lower_clock
from gpuscope.catalogue.suggestion import BY_CODE, cause_label
from gpuscope.report.view.report_rows import per_step_ns
from gpuscope.schema.document import RankStepEntry, StragglerEntry
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Table, Times, distinct, distinct_values
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

# Why a rank is late: its device is slower at equal work, it has more work, or its host is late.
#
# A late rank is compared with the median of its peers over the steady steps. Time that it computes longer is `device`
# where the same operations on the same shapes take longer, `data` where shapes are larger or operations more; time
# that its host makes its device idle longer is `host`, with the cause of that. Time that its training thread had no
# core,
# beyond its peers' rate, is `cores`: other threads held them, and neither the rank's device nor its host is slow.

Reason = Literal["device", "data", "host", "cores"]


@dataclass(frozen=True)
class Reasoned:
    """Why a rank is late, and a clause that says what shows it."""

    reason: Reason | None
    why: str
    alone: str = ""
    """The operation that makes it late, where no peer does it at all."""
    more_work: str = ""
    """How much more it computes, and what, where that is the reason."""
    host_cause: str = ""
    """For which its device idles longer than its peers' by most, where its host is the reason."""


def reasons(
    trace: Trace,
    role: Sequence[int],
    late: Mapping[int, int],
    host: Mapping[int, Mapping[str, float]],
    cores: Mapping[int, CoreTimes],
    clocks: Mapping[int, GpuClocks],
    of_the_step: Mapping[int, float],
) -> dict[int, Reasoned]:
    """Why each late rank of a `role` is late: ranks that do the same work, such as those of a pipeline's stage. `late`
    is by how much, ns per step; `host` the time per step (ns) that each
    rank's device idles for each cause of class cpu; `cores` what its training thread had of a core, and `clocks` those
    of its GPU, where recorded. `of_the_step` is by what its means per step are multiplied where sentences name them."""
    late = {rank: ns for rank, ns in late.items() if rank in role}
    cores = {rank: times for rank, times in cores.items() if rank in role}
    if len(role) < min(len(trace.ranks), 2):
        return dict.fromkeys(late, Reasoned(None, "no other rank has its stage of the pipeline"))
    table = trace["work"]
    work = WorkOfRanks(table.take(np.flatnonzero(np.isin(table["rank"], role))))
    if cores:  # waits for cores delay all ranks in turns: what the peers are late too is nobody's own lateness
        late = _beyond_median(late, role)
    alone = Reasoned(None, "no other rank's work is recorded to compare with")
    if len(work.ranks) < 2:
        return dict.fromkeys(late, alone)
    idle, without_core, more = _IdleLonger(host, work), beyond_peers(cores), more_to_run(cores)
    found: dict[int, Reasoned] = {}
    for rank, lateness in late.items():
        place = work.place(rank)
        # What a thread runs longer, it runs longer on free cores too: no waits for them are to be thought of.
        waited = cores[rank].waited if rank in cores and more[rank] < MOST * lateness else 0
        found[rank] = (
            alone
            if place is None
            else _reason(
                trace, work, place, lateness, idle, waited, without_core.get(rank, 0.0), of_the_step.get(rank, 1.0)
            )
        )
        if found[rank].reason == "device" and (clock := lower_clock(rank, clocks)):
            found[rank] = replace(found[rank], why=f"{found[rank].why}; {clock}")
    return found


def _beyond_median(late: Mapping[int, int], ranks: Sequence[int]) -> dict[int, int]:
    """By how much each rank is later than the median of the others, ns."""
    if len(ranks) < 2:
        return dict(late)
    usual = dict(zip(ranks, medians_of_others(np.array([late.get(rank, 0) for rank in ranks], np.int64)), strict=True))
    return {rank: max(ns - round(float(usual.get(rank, 0))), 0) for rank, ns in late.items()}


def _reason(
    trace: Trace,
    work: WorkOfRanks,
    place: int,
    lateness: int,
    host: _IdleLonger,
    waited: int,
    longer: float,
    of_the_step: float,
) -> Reasoned:
    """`waited` ns per step its training thread had no core, `longer` of it beyond its peers' rate."""
    compared = work.longer
    slower, more = float(compared.slower[place]), float(compared.more[place])
    cause, idle = host.of(place)
    if lateness <= 0:
        return Reasoned(None, "its peers are as late")
    # Of two parts of which one is negative, the other explains no more than both together.
    both = max(slower + more, 0.0)
    slower, more = min(slower, both), min(more, both)
    candidates: dict[Reason, float] = {"device": slower - longer, "data": more, "host": idle, "cores": longer}
    reason = max(candidates, key=lambda name: candidates[name])
    explained = candidates[reason]
    if explained < MOST * lateness:
        if waited >= MOST * lateness:
            return _without_core(waited * of_the_step)
        return Reasoned(None, "neither its compute nor its host differs enough from its peers'")
    spent = units.duration(round(explained * of_the_step))
    if reason == "cores":
        return Reasoned("cores", f"its training thread had no core for {spent} per step longer")
    if reason != "data" and explained - waited < MOST * lateness:
        return _without_core(waited * of_the_step)
    if reason == "host":
        why = f"its host keeps its device idle {spent} per step longer ({cause_label(cause)})"
        return Reasoned("host", why, host_cause=cause)
    if not compared.told_apart(place):
        return _without_shapes(work.beside_optimizer(trace.names, place), spent)
    if reason == "device":
        return Reasoned("device", f"the same operations on the same shapes take {spent} per step longer")
    larger = _larger(trace, work, compared, place)
    worst = int(compared.worst[place])
    # Only of an operator: for other sizes the same operator may choose another kernel.
    only_here = compared.alone[place] and work.elements(worst, int(work.ranks[place]))[0] > 0
    alone = units.clean(trace.names[worst]) if only_here else ""
    more_work = f"{spent} per step more: {larger}"
    return Reasoned("data", f"it computes {more_work}", alone, more_work)


def _without_shapes(longer: tuple[float, float] | None, spent: str) -> Reasoned:
    """What an optimizer does, no batch changes: a slower device slows it as it slows what is done on batches, larger
    data does not."""
    on_batches, optimizer = longer or (0.0, 0.0)
    if on_batches <= SAME_WORK:
        return Reasoned(
            None,
            f"it computes {spent} per step longer; whether its device is slower or its data larger needs shapes "
            "(record_shapes=True)",
        )
    both = f"elementwise kernels take {units.whole_share(on_batches)} longer, its optimizer's, which no batch changes, "
    both += units.whole_share(optimizer)
    if optimizer >= MOST * on_batches:
        return Reasoned("device", f"it computes {spent} per step longer: its {both}")
    more_work = f"{spent} per step more: its {both}"
    return Reasoned("data", f"it computes {more_work}", more_work=more_work)


def _without_core(waited: float) -> Reasoned:
    """The pace of a thread that waits for cores shows nothing of its device or host."""
    spent = units.duration(round(waited))
    return Reasoned(
        "cores",
        f"its training thread had no core for {spent} per step, which may explain it: record where nothing else runs",
    )


class _IdleLonger:
    """Time per step that each rank's device idles beyond its median peer for causes of class cpu, ns."""

    def __init__(self, host: Mapping[int, Mapping[str, float]], work: WorkOfRanks) -> None:
        self._causes = sorted({cause for own in host.values() for cause in own})
        own = [host.get(rank, {}) for rank in work.ranks.tolist()]
        self._excess: list[Array] = []
        for cause in self._causes:
            spent = np.array([causes.get(cause, 0.0) for causes in own])
            self._excess.append(spent - medians_of_others(spent))

    def of(self, place: int) -> tuple[str, float]:
        """The cause for which the rank at a place idles longest beyond its median peer, and by how much over all."""
        excess = [float(of_cause[place]) for of_cause in self._excess]
        return (self._causes[excess.index(max(excess))], sum(excess)) if excess else ("", 0.0)


def _larger(trace: Trace, work: WorkOfRanks, longer: Longer, place: int) -> str:
    """The costliest operation of which a rank has more, with what differs."""
    count, usual = longer.count[place], longer.usual[place]
    worst = int(longer.worst[place])
    name = units.clean(trace.names[worst])
    if longer.alone[place]:
        return f"{count:.0f} {name} that only it runs"
    if abs(count - usual) > SAME_WORK * max(count, usual):
        return f"{count:.0f} {name} per step vs. {usual:.0f} on its peers"
    mine, others = work.elements(worst, int(work.ranks[place]))
    if mine and others:
        return f"{name} on inputs {mine / max(others, 1):.1f} times as large as its peers'"
    return name


@dataclass(frozen=True)
class Stragglers:
    """The entries, the costliest first, and whether there were enough steps to test for recurrent ones."""

    entries: list[StragglerEntry]
    testable: bool


def stragglers(facts: RunFacts, traced: TracedWaits, doing: dict[int, Doing]) -> Stragglers:
    """Everyone who came last or to whom waits are traced back, over the judged steps."""
    table = facts.trace["collectives"]
    ranks = int(table["rank"].max(initial=0)) + 1
    steps, judged = judged_rows(facts)
    direct, own = np.where(judged, traced.direct, 0), np.where(judged, traced.own, 0)
    caused = np.bincount(table["rank"], weights=direct, minlength=ranks)
    root = np.bincount(table["rank"], weights=own, minlength=ranks)
    measured = lateness_lateness(facts, steps)
    recurrent = measured.recurrent()
    exposed = _exposed(facts, traced, judged, ranks)
    waiting, waited_in = _waiting_ranks(facts, judged, ranks)
    shared = waiting * max(len(facts.steady.durations), 1)
    late, idle, cores = _per_step(facts, exposed, recurrent), _host_idle(facts), judged_core_times(facts)
    of_the_step = {lane.rank: facts.steady.of_the_step(lane) for lane in facts.lanes}
    why: dict[int, Reasoned] = {}
    for role in roles_of(facts).values():
        why |= reasons(facts.trace, role, late, idle, cores, facts.gpu_clocks, of_the_step)
    reason_of = {rank: one.reason for rank, one in why.items() if one.reason is not None}
    groups = late_groups(recurrent, Places(facts.placement.hosts, _stages(facts), reason_of))
    entries: list[StragglerEntry] = []
    named = np.isin(np.arange(ranks), list(recurrent))
    for rank in np.flatnonzero((caused > 0) | (root >= 1) | named).tolist():
        most = doing.get(rank)
        entries.append(
            {
                "rank": rank,
                "caused_wait_ns": round(caused[rank]),
                "caused_wait_ns_per_step": round(exposed[rank] / shared[rank]) if shared[rank] else None,
                "per_step_ns": per_step_ns(exposed[rank] / waited_in[rank] if waited_in[rank] else 0.0, facts.step_ns),
                "root_wait_ns": round(root[rank]),
                "phase": most.phase() if most else None,
                "operation": most.operation() if most else None,
                "recurrent": rank in recurrent,
                "reason": why[rank].reason if rank in why else None,
                "reason_why": why[rank].why if rank in why else "",
            }
        )
        if rank not in recurrent:
            entries[-1]["last_in_steps"], entries[-1]["of_steps"] = measured.last_in(rank)
        if rank in recurrent and recurrent[rank].period > 1:
            entries[-1]["period"] = recurrent[rank].period
        if rank in groups:
            group = groups[rank]
            entries[-1]["group"] = {"ranks": list(group.ranks), "by": group.by, "name": group.name}
        if rank in why and why[rank].host_cause:
            entries[-1]["host_cause"] = why[rank].host_cause
        if rank in why and why[rank].more_work:
            entries[-1]["more_work"] = why[rank].more_work
        if rank in why and why[rank].alone:
            entries[-1]["own_operation"] = why[rank].alone
    entries.sort(key=lambda entry: (-entry["caused_wait_ns"], -entry["root_wait_ns"], entry["rank"]))
    return Stragglers(entries, measured.testable)


def _stages(facts: RunFacts) -> dict[int, int]:
    """The stage of each rank of a pipeline."""
    return {rank: place[1] for rank, place in facts.stages.places.items()} if facts.stages is not None else {}


def _waiting_ranks(facts: RunFacts, judged: Mask, ranks: int) -> tuple[Times, Times]:
    """How many ranks ever waited for each rank in a judged step, and their judged time in all, ns."""
    found, rank, measured = facts.matched.instances, facts.trace["collectives"]["rank"], facts.waits
    waited = ~found.staged[found.owner] & judged[found.rows] & (measured.wait[found.rows] > 0)
    late, waiting = rank[measured.last[found.owner[waited]]], rank[found.rows[waited]]
    pairs, _ = distinct(late * ranks + waiting)
    windows = np.zeros(ranks, np.int64)
    for lane in (lane for lane in facts.lanes if lane.rank < ranks):
        windows[lane.rank] = facts.steady.breakdown(lane).window
    judged_time = np.bincount(pairs // ranks, windows[pairs % ranks], ranks).astype(np.int64)
    return np.bincount(pairs // ranks, minlength=ranks), judged_time


def _exposed(facts: RunFacts, traced: TracedWaits, judged: Mask, ranks: int) -> Array:
    """ns of exposed waiting for each rank where it came last, summed over those that waited. Exposed, for collectives
    that overlap wait for one lateness together."""
    rank, last = facts.trace["collectives"]["rank"], facts.waits.last
    return np.bincount(rank[last], weights=late_instances(facts, traced, judged), minlength=ranks)


def _per_step(facts: RunFacts, exposed: Array, recurrent: Mapping[int, Late]) -> dict[int, int]:
    """By how much each rank is late in a judged step, ns: the exposed waiting for it, per rank that could wait; of one
    that others hide, late as they are, its own delay."""
    waiting = max(len(facts.trace.ranks) - 1, 1)
    steps = max(len(facts.steady.durations), 1)
    waited = {one: round(exposed[one] / waiting / steps) for one in np.flatnonzero(exposed).tolist()}
    own = {rank: late.usual // late.period for rank, late in recurrent.items()}
    return {rank: max(waited.get(rank, 0), own.get(rank, 0)) for rank in {*waited, *own}}


def waits_without_core(facts: RunFacts) -> float:
    """Share of the exposed waiting for late ranks that the others' time without a core in the same step is long enough
    to explain, beyond what one of them ran longer; 0 where nobody waits."""
    steps, judged = judged_rows(facts)
    table, measured = facts.trace["collectives"], facts.waits
    message = np.zeros(len(table), np.bool_)
    found = facts.matched.instances
    message[found.rows] = found.staged[found.owner]
    rows = np.flatnonzero(judged & ~message & (measured.exposed > 0) & (steps != NA))
    ranks = int(table["rank"].max(initial=0)) + 1
    pairs, pair = distinct(steps[rows] * ranks + table["rank"][rows])
    waited = np.bincount(pair, weights=measured.exposed[rows], minlength=len(pairs))
    without = []
    for step, waiting, ns in zip((pairs // ranks).tolist(), (pairs % ranks).tolist(), waited.tolist(), strict=True):
        others = [own[step] for rank, own in facts.core_times.items() if rank != waiting and step in own]
        mine = facts.core_times.get(waiting, {}).get(step)
        ran = mine.ran if mine is not None else None
        # With a core for everyone a step still lasts as long as any of its threads runs.
        longer = max([0, *(one.ran - ran for one in others if one.ran is not None and ran is not None)])
        without.append(min(sum(one.waited for one in others), max(ns - longer, 0)))
    return float(np.minimum(waited, without).sum() / waited.sum()) if len(pairs) else 0.0


def judged_core_times(facts: RunFacts) -> dict[int, CoreTimes]:
    """What each rank's training thread had of a core, per judged step; empty where that was not counted."""
    found = {}
    for rank, steps in facts.core_times.items():
        own = [times for step, times in steps.items() if step in facts.steady.steps and facts.steady.judged(step)]
        if own:
            ran = [times.ran for times in own if times.ran is not None]
            found[rank] = CoreTimes(
                round(sum(ran) / len(ran)) if ran else None, round(sum(times.waited for times in own) / len(own))
            )
    return found


def _host_idle(facts: RunFacts) -> dict[int, dict[str, float]]:
    """Time per judged step (ns) that each rank's device idles for each cause of class cpu."""
    found: dict[int, dict[str, float]] = {}
    for lane in facts.lanes:
        steps = max(facts.steady.count(lane), 1)
        own = found.setdefault(lane.rank, {})
        for cause, one in facts.causes.get(lane.key, {}).items():
            if BY_CODE[cause].class_name == "cpu":
                own[cause] = own.get(cause, 0.0) + facts.steady.measure(lane, one.total, one.per_step) / steps
    return found


def judged_rows(facts: RunFacts) -> tuple[Times, Mask]:
    """Per row of `collectives`, the step number in which it began (NA outside all), and whether that is judged."""
    steps = _steps_of(facts.trace, facts.lanes)
    numbers = distinct_values(steps)
    judged = np.array([step != NA and facts.steady.judged(step) for step in numbers.tolist()], np.bool_)
    stepless = [lane.rank for lane in facts.lanes if not lane.steps]
    mask = judged[np.searchsorted(numbers, steps)] if len(steps) else np.zeros(0, np.bool_)
    return steps, mask | np.isin(facts.trace["collectives"]["rank"], stepless)


def step_places(table: Table, own: Times, lane: LaneSummary) -> Times:
    """For each row of a lane, which of the lane's steps it began in; NA outside all."""
    return step_at(*bounds(lane.steps), table["start"][own])


def _steps_of(trace: Trace, lanes: Sequence[LaneSummary]) -> Times:
    """Per row of `collectives`, the number of its rank's step in which it began; NA outside all."""
    table = trace["collectives"]
    found = np.full(len(table), NA, np.int64)
    for lane, own in rows_by_lane(trace, lanes):
        number = np.array([*(step.step for step in lane.steps), NA], np.int64)
        place = step_places(table, own, lane)
        found[own] = number[np.where(place == NA, -1, place)]
    return found


def rank_steps(trace: Trace, measured: Waits, traced: TracedWaits, lanes: Sequence[LaneSummary]) -> list[RankStepEntry]:
    """One entry per rank and step, in this order: how long it took, what it made others wait, what it waited."""
    table = trace["collectives"]
    entries: list[RankStepEntry] = []
    for lane, own in rows_by_lane(trace, lanes):
        place = step_places(table, own, lane)
        known, place = own[place != NA], place[place != NA]
        caused, suffered = (
            np.bincount(place, weights=values[known], minlength=len(lane.steps))
            for values in (traced.direct, measured.exposed)
        )
        for index, step in enumerate(lane.steps):
            if step.step != NA:
                entries.append(
                    {
                        "rank": lane.rank,
                        "step": step.step,
                        "step_ns": step.end - step.start,
                        "wait_caused_ns": round(caused[index]),
                        "wait_suffered_ns": round(suffered[index]),
                    }
                )
    return sorted(entries, key=lambda entry: (entry["rank"], entry["step"]))


ALIKE = 0.5
"""Lateness of at least this share of the largest is like it."""


@dataclass(frozen=True)
class LateGroup:
    """Several ranks, ascending, and what they share. `name` is the host's or the reason's."""

    ranks: tuple[int, ...]
    by: Literal["host", "stage", "reason"]
    name: str


@dataclass(frozen=True)
class Places:
    """What ranks may share: host and stage of all that are present, as far as they are known, and why some are late."""

    hosts: Mapping[int, str]
    stages: Mapping[int, int]
    reasons: Mapping[int, str]


def late_groups(late: Mapping[int, Late], places: Places) -> dict[int, LateGroup]:
    """The groups of the ranks that are `late`, by rank; without those that are late alone."""
    found: dict[int, LateGroup] = {}
    for alike in _alike(late):
        left = set(alike)
        for group in (*_of_hosts(alike, places.hosts), *_of_stages(alike, places.stages)):
            if left.issuperset(group.ranks):
                found |= dict.fromkeys(group.ranks, group)
                left -= set(group.ranks)
        for reason, ranks in _by(left, places.reasons.get).items():
            if reason and len(ranks) > 1:
                found |= dict.fromkeys(ranks, LateGroup(ranks, "reason", str(reason)))
    return found


def _alike(late: Mapping[int, Late]) -> list[list[int]]:
    """Ranks of one period, each late by at least `ALIKE` of the first."""
    found: list[list[int]] = []
    for rank in sorted(late, key=lambda one: (late[one].period, -late[one].usual)):
        first = late[found[-1][0]] if found else None
        if first and first.period == late[rank].period and late[rank].usual >= ALIKE * first.usual:
            found[-1].append(rank)
        else:
            found.append([rank])
    return found


def _of_hosts(alike: Sequence[int], hosts: Mapping[int, str]) -> list[LateGroup]:
    """Hosts of which all ranks are late, or one that all that are late share; where there are others."""
    present = _by(hosts, hosts.get)
    groups = _by(alike, hosts.get)
    return [
        LateGroup(ranks, "host", str(host))
        for host, ranks in groups.items()
        if host and len(ranks) > 1 and len(present) > 1 and (len(groups) == 1 or ranks == present[host])
    ]


def _of_stages(alike: Sequence[int], stages: Mapping[int, int]) -> list[LateGroup]:
    """The stage that all that are late share, where there are others."""
    groups = _by(alike, stages.get)
    if len(set(stages.values())) < 2 or len(groups) > 1 or len(alike) < 2:
        return []
    return [LateGroup(ranks, "stage", str(stage)) for stage, ranks in groups.items() if stage is not None]


def _by(ranks: Iterable[int], of: Callable[[int], Hashable]) -> dict[Hashable, tuple[int, ...]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(ranks):
        found[of(rank)].append(rank)
    return {key: tuple(own) for key, own in found.items()}
