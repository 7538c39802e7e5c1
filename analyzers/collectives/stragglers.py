"""The ranks that others waited for, steadily or in turns, and a table of rank by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from gpuscope.analyzers.base.lanes import LaneSummary, bounds, step_at
from gpuscope.analyzers.collectives.lateness import Late, late_instances, lateness, roles_of
from gpuscope.analyzers.collectives.root_cause import Doing, TracedWaits
from gpuscope.analyzers.collectives.straggler_reasons import Reasoned, reasons
from gpuscope.analyzers.facts.counted_by_step.core_waits import CoreTimes
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.facts.waits import Waits, rows_by_lane
from gpuscope.catalogue.cause_table import BY_CODE
from gpuscope.report.view.per_step import per_step_ns
from gpuscope.schema.document import RankStepEntry, StragglerEntry
from gpuscope.trace.columns.distinct import distinct, distinct_values
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass


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
    measured = lateness(facts, steps)
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
