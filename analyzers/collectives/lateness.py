"""By how much each rank was late in each judged step, and whether one is late more often than by chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log, log1p

import numpy as np

from gpuscope.analyzers.collectives.root_cause import TracedWaits
from gpuscope.analyzers.collectives.work_of_ranks import medians_of_others
from gpuscope.analyzers.facts.counted_by_step.core_waits import CoreTimes
from gpuscope.analyzers.facts.run_facts import RunFacts
from gpuscope.analyzers.verdict.cause_findings import MIN_SHARE
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.schema import NA

MIN_STEPS = 2
"""Steps over which a rank must cause the largest wait to be recurrent."""
MIN_RANKS = 2
MAX_CHANCE = 0.05
"""Probability by chance below which a rank that causes the largest wait of so many steps is recurrent."""
SECOND_TEST = 2
"""Factor on the probability from the steps with the longest waits alone (Bonferroni: the second look at one run)."""


@dataclass(frozen=True)
class Lateness:
    """Per judged step and rank, shape (steps, ranks), ns per waiting rank."""

    caused: Array
    """Exposed waiting where the rank came last; collectives that wait for one lateness together wait once."""
    traced: Array
    """The part of all of it that goes back to the rank."""
    without_core: Array
    """By how much longer than at its median peer's rate its training thread had no core; 0 where not counted."""
    least: Times
    """What counts as late in a step, ns; shape (steps,)."""
    roles: Sequence[Sequence[int]]
    """The ranks present, by what they do: those of a pipeline's stage, or all. Stages differ in when they are done."""

    def chance(self) -> tuple[Array, float]:
        """Per rank, the probability of causing the largest wait of its role in so many steps by chance, for as many
        tries as there are ranks to compare with; and the least that a rank which always does could get. Alone in its
        role a rank has nobody to be compared with.

        Waits caused directly and waits traced to it are tested each for itself, over all steps and over those that
        wait longer than the mean one: a rank that is slow in every third step is lost among all of them, and which
        steps wait long says nothing of who is late in them. Time without a core is no lateness of the rank's own.
        """
        chance, least = np.ones(self.caused.shape[1]), 1.0
        roles = [np.array(role, np.int64) for role in self.roles if len(role) >= MIN_RANKS]
        tries = sum(len(role) - 1 for role in roles)
        for role in roles:
            for weight in (self.caused, self.traced):
                for found, lowest in _binomial(weight[:, role], self.without_core[:, role], self.least, tries):
                    chance[role] = np.minimum(chance[role], found)
                    least = min(least, lowest)
        return chance, least


def lateness(facts: RunFacts, traced: TracedWaits, steps: Times, judged: Mask) -> Lateness:
    """The lateness of a run; `steps` and `judged` are per row of `collectives`."""
    table, found, measured = facts.trace["collectives"], facts.matched.instances, facts.waits
    ranks = int(table["rank"].max(initial=0)) + 1
    present = len(facts.trace.ranks)
    numbers = np.unique(steps[judged & (steps != NA)])
    inside = judged & np.isin(steps, numbers)
    place = np.searchsorted(numbers, steps)

    def by_step(rows: Times, weight: Array) -> Array:
        kept = inside[rows] & (weight > 0)
        key = place[rows[kept]] * ranks + table["rank"][rows[kept]]
        return np.bincount(key, weights=weight[kept], minlength=len(numbers) * ranks).reshape(len(numbers), ranks)

    every = np.arange(len(table))
    exposed = (
        by_step(measured.last, late_instances(facts, traced, judged)) if len(found) else by_step(every, every * 0.0)
    )
    waited = by_step(every, np.where(inside, traced.direct, 0))
    once = exposed.sum(1) / np.maximum(waited.sum(1), 1)
    own = by_step(every, np.where(inside, traced.own, 0)) * once[:, None]
    waiting = max(present - 1, 1)
    roles = [[rank for rank in role if rank < ranks] for role in roles_of(facts).values()]
    without, counted = _without_core(facts, numbers, ranks)
    durations = np.array([facts.steady.steps[int(step)].duration for step in numbers.tolist()], np.float64)
    least = np.where(counted, MIN_SHARE * durations, 1.0)
    return Lateness(exposed / waiting, own / waiting, without, least.astype(np.int64), roles)


def roles_of(facts: RunFacts) -> dict[int, list[int]]:
    """The ranks present that do the same work and can be compared, by their stage of a pipeline; else all of them."""
    places = facts.stages.places if facts.stages is not None else {}
    found: dict[int, list[int]] = {}
    for rank in facts.trace.ranks:
        found.setdefault(places[rank][1] if rank in places else NA, []).append(rank)
    return found


def late_instances(facts: RunFacts, traced: TracedWaits, judged: Mask) -> Array:
    """Per instance, the others' exposed waiting for the rank that came last, ns; 0 where that is not certain."""
    found, measured = facts.matched.instances, facts.waits
    suffered = found.reduce(np.add, np.where(judged, measured.exposed, 0)[found.rows])
    counted = ~found.p2p & (traced.direct[measured.last] > 0) if len(found) else found.p2p
    return np.where(counted, suffered, 0).astype(np.float64)


def _without_core(facts: RunFacts, numbers: Times, ranks: int) -> tuple[Array, bool]:
    """`Lateness.without_core`, and whether it is counted on all ranks."""
    found = np.zeros((len(numbers), ranks))
    if set(facts.core_times) != set(facts.trace.ranks) or len(facts.trace.ranks) < MIN_RANKS:
        return found, False
    for place, step in enumerate(numbers.tolist()):
        for rank, ns in beyond_peers(
            {rank: own[step] for rank, own in facts.core_times.items() if step in own}
        ).items():
            found[place, rank] = ns
    return found, True


def beyond_peers(times: Mapping[int, CoreTimes]) -> dict[int, float]:
    """By how much longer each rank had no core than at the rate of its median peer, ns: a rank with more to run
    also waits more often, which is its work's doing and not the machine's."""
    if len(times) < 2:
        return dict.fromkeys(times, 0.0)
    waited, ran = (np.array([getattr(one, name) for one in times.values()], np.float64) for name in ("waited", "ran"))
    usual = medians_of_others(waited)
    known = np.flatnonzero(ran > 0)
    if len(known) > 1:
        usual[known] = medians_of_others(waited[known] / ran[known]) * ran[known]
    return dict(zip(times, np.maximum(waited - usual, 0.0).tolist(), strict=True))


def _binomial(weight: Array, without_core: Array, least: Times, tries: int) -> list[tuple[Array, float]]:
    """(probability per rank, the least possible) over all steps, and over those that wait longer than the mean.

    `weight` and `without_core` have shape (steps, ranks of a role); `tries` multiplies the probability (Bonferroni). A
    rank is the last one of a step if it is with the time without a core and without it: else it would be for what is
    taken off its peers.
    """
    own = weight - without_core
    most = own.max(axis=1, initial=0)
    last = np.where(own.argmax(axis=1) == weight.argmax(axis=1), own.argmax(axis=1), NA)
    trial = most >= least
    long = trial & (most > most[trial].mean()) if trial.any() else trial
    ranks = weight.shape[1]
    return [_tested(last[trial], ranks, tries), _tested(last[long], ranks, SECOND_TEST * tries)]


def _tested(last: Times, ranks: int, factor: int) -> tuple[Array, float]:
    """`last` is the rank (its place) that came last in each step tried, NA where that is nobody."""
    trials, by_chance = len(last), 1 / max(ranks, 1)
    hits = np.bincount(last[last != NA], minlength=ranks)
    chance = np.ones(ranks)
    for one in np.flatnonzero(hits >= MIN_STEPS).tolist():
        chance[one] = min(1.0, factor * probability(int(hits[one]), trials, by_chance))
    return chance, min(1.0, factor * probability(trials, trials, by_chance)) if trials >= MIN_STEPS else 1.0


def probability(hits: int, trials: int, chance: float) -> float:
    """Probability of at least so many hits by chance (binomial); in logarithms, since thousands of trials
    overflow."""
    if hits <= 0 or chance >= 1:
        return 1.0
    k = np.arange(hits, trials + 1)
    factorial = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, trials + 1)))))
    ways = factorial[trials] - factorial[k] - factorial[trials - k]
    return float(min(1.0, np.exp(ways + k * log(chance) + (trials - k) * log1p(-chance)).sum()))
