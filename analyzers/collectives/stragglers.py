"""The ranks that others waited for, steadily or in turns, and a table of rank by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, log1p

import numpy as np

from gpuscope.analyzers.collectives.root_cause import Blame, Doing
from gpuscope.analyzers.facts.matching import Matched
from gpuscope.analyzers.facts.waits import Waits, rows_by_lane
from gpuscope.analyzers.frame.lanes import LaneSummary
from gpuscope.report.schema.document import RankStepEntry, StragglerEntry
from gpuscope.trace.columns.distinct import distinct
from gpuscope.trace.columns.table import Array, Mask, Table, Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

MAX_CHANCE = 0.05
"""Probability by chance, over all ranks tested, below which a rank that comes last so often does so recurrently."""


@dataclass(frozen=True)
class Stragglers:
    """The entries, the costliest first, and whether there were enough collectives to tell a steady rank."""

    entries: list[StragglerEntry]
    could_tell: bool


def stragglers(
    trace: Trace, matched: Matched, measured: Waits, blame: Blame, counted: Mask, doing: dict[int, Doing],
    lanes: Sequence[LaneSummary],
) -> Stragglers:  # fmt: skip
    """Everyone who came last or to whom waits are traced back. `counted` says which instances are claimed."""
    table = trace["collectives"]
    ranks = int(table["rank"].max(initial=0)) + 1
    caused = np.bincount(table["rank"], weights=blame.direct, minlength=ranks)
    root = np.bincount(table["rank"], weights=blame.own, minlength=ranks)
    steps = _steps_of(trace, lanes)
    late = np.flatnonzero(((blame.direct > 0) | (blame.own > 0)) & (steps != NA))
    touched = np.unique(np.stack((table["rank"][late], steps[late])), axis=1)[0]
    often = np.bincount(touched, minlength=ranks) >= 2
    tests = [_by_collective(trace, matched, counted, measured.last[counted], ranks)]
    if len(np.unique(matched.instances.sizes[counted])) > 1 or len(trace.ranks) > matched.instances.sizes.max(
        initial=0
    ):
        tests.append(_by_step(table, blame, steps, ranks, len(trace.ranks)))
    chance = np.minimum.reduce([test.chance for test in tests]) * len(tests)
    entries: list[StragglerEntry] = []
    for rank in np.flatnonzero((caused > 0) | (root >= 1)).tolist():
        told = doing.get(rank)
        entries.append({
            "rank": rank, "caused_wait_ns": round(caused[rank]), "root_wait_ns": round(root[rank]),
            "phase": told.phase() if told else None, "operation": told.operation() if told else None,
            "recurrent": bool(chance[rank] < MAX_CHANCE and often[rank]),
        })  # fmt: skip
    entries.sort(key=lambda entry: (-entry["caused_wait_ns"], -entry["root_wait_ns"], entry["rank"]))
    return Stragglers(entries, min(test.least for test in tests) * len(tests) < MAX_CHANCE)


@dataclass(frozen=True)
class _Test:
    """Per rank, the probability that it comes last so often by chance, Bonferroni-corrected over ranks; and the
    least that a rank which always comes last could have got."""

    chance: Array
    least: float


def _by_collective(trace: Trace, matched: Matched, counted: Mask, last: Times, ranks: int) -> _Test:
    """In a group of n each comes last with probability 1/n. Groups of different size are tested apart, and every
    rank that took part in a size is one test."""
    found, table = matched.instances, trace["collectives"]
    size = found.sizes[counted]
    row_size = np.repeat(np.where(counted, found.sizes, 0), found.sizes)
    rank = table["rank"][found.rows]
    best, least, tests = np.ones(ranks), 1.0, 0
    for members in np.unique(size).tolist():
        trials = np.bincount(rank[row_size == members], minlength=ranks)
        hits = np.bincount(table["rank"][last[size == members]], minlength=ranks)
        tests += int((trials > 0).sum())
        least = min(least, probability(int(trials.max()), int(trials.max()), 1 / members))
        for one in np.flatnonzero(hits).tolist():
            best[one] = min(best[one], probability(int(hits[one]), int(trials[one]), 1 / members))
    return _Test(np.minimum(best * max(tests, 1), 1), min(least * max(tests, 1), 1.0))


def _by_step(table: Table, blame: Blame, steps: Times, ranks: int, present: int) -> _Test:
    """With several groups: the rank to which most waiting of a step goes back is each with probability 1/ranks."""
    rows = np.flatnonzero((blame.own > 0) & (steps != NA))
    pairs, pair = distinct(steps[rows] * ranks + table["rank"][rows])
    spent = np.bincount(pair, weights=blame.own[rows], minlength=len(pairs))
    order = np.lexsort((-spent, pairs // ranks))
    step = pairs[order] // ranks
    worst = pairs[order][np.flatnonzero(np.diff(step, prepend=-1))] % ranks
    hits = np.bincount(worst, minlength=ranks)
    chance = np.ones(ranks)
    for rank in np.flatnonzero(hits).tolist():
        chance[rank] = min(1.0, present * probability(int(hits[rank]), len(worst), 1 / present))
    return _Test(chance, min(1.0, present * probability(len(worst), len(worst), 1 / present)))


def probability(hits: int, trials: int, chance: float) -> float:
    """Probability of at least so many hits by chance (binomial); in logarithms, since thousands of trials
    overflow."""
    if hits <= 0 or chance >= 1:
        return 1.0
    k = np.arange(hits, trials + 1)
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    ways = factorial[trials] - factorial[k] - factorial[trials - k]
    return float(min(1.0, np.exp(ways + k * log(chance) + (trials - k) * log1p(-chance)).sum()))


def step_places(table: Table, own: Times, lane: LaneSummary) -> Times:
    """For each row of a lane, which of the lane's steps it began in; NA outside all."""
    starts = np.array([step.start for step in lane.steps], np.int64)
    place = np.searchsorted(starts, table["start"][own], "right") - 1
    end = lane.steps[-1].end if lane.steps else 0
    return np.where((place >= 0) & (table["start"][own] < end), place, NA)


def _steps_of(trace: Trace, lanes: Sequence[LaneSummary]) -> Times:
    """Per row of `collectives`, the number of its rank's step in which it began; NA outside all."""
    table = trace["collectives"]
    found = np.full(len(table), NA, np.int64)
    for lane, own in rows_by_lane(trace, lanes):
        number = np.array([*(step.step for step in lane.steps), NA], np.int64)
        place = step_places(table, own, lane)
        found[own] = number[np.where(place == NA, -1, place)]
    return found


def rank_steps(trace: Trace, measured: Waits, blame: Blame, lanes: Sequence[LaneSummary]) -> list[RankStepEntry]:
    """One entry per rank and step, in this order: how long it took, what it made others wait, what it waited."""
    table = trace["collectives"]
    entries: list[RankStepEntry] = []
    for lane, own in rows_by_lane(trace, lanes):
        place = step_places(table, own, lane)
        known, place = own[place != NA], place[place != NA]
        caused, suffered = (
            np.bincount(place, weights=values[known], minlength=len(lane.steps))
            for values in (blame.direct, measured.exposed)
        )
        for index, step in enumerate(lane.steps):
            if step.step != NA:
                entries.append({
                    "rank": lane.rank, "step": step.step, "step_ns": step.end - step.start,
                    "wait_caused_ns": round(caused[index]), "wait_suffered_ns": round(suffered[index]),
                })  # fmt: skip
    return sorted(entries, key=lambda entry: (entry["rank"], entry["step"]))
