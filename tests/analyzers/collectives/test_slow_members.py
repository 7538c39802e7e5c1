"""Slow ranks and links in streams of steps: how often healthy jobs are accused and slow ones found, by simulation.

A stream is judged again every ten steps, as `gpuscope watch` does, and what counts is whether it is ever accused.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gpuscope.analyzers.collectives import recurrence
from gpuscope.analyzers.collectives.recurrence import SlowLink, since, slow, slow_links

STEPS, LOOK, JOBS = 120, 10, 12
STEP_NS = 1e8
Rng = np.random.Generator
Taken = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def gaussian(chance: Rng, steps: int, ranks: int) -> Taken:
    return 0.01 * chance.standard_normal((steps, ranks))


def lognormal(chance: Rng, steps: int, ranks: int) -> Taken:
    return 0.02 * chance.lognormal(0, 1, (steps, ranks))


def periodic(chance: Rng, steps: int, ranks: int) -> Taken:
    """Each rank swings with a period of its own."""
    period, phase = chance.integers(5, 60, ranks), chance.uniform(0, 2 * np.pi, ranks)
    return gaussian(chance, steps, ranks) + 0.02 * np.sin(2 * np.pi * np.arange(steps)[:, None] / period + phase)


def drift(chance: Rng, steps: int, ranks: int) -> Taken:
    """Each rank's pace wanders by 1 %, for some hundred steps."""
    wander = 0.01 * chance.standard_normal((steps, ranks))
    for step in range(1, steps):
        wander[step] = 0.99 * wander[step - 1] + np.sqrt(1 - 0.99**2) * wander[step]
    return gaussian(chance, steps, ranks) + wander


def busy(chance: Rng, steps: int, ranks: int) -> Taken:
    """Other processes take a rank's cores for some steps."""
    taken = lognormal(chance, steps, ranks)
    for rank in np.flatnonzero(chance.random(ranks) < 0.3).tolist():
        first = int(chance.integers(steps))
        taken[first : first + int(chance.integers(1, 8)), rank] += chance.uniform(0.1, 0.6)
    return taken


NOISES = (gaussian, lognormal, periodic, drift, busy)


def named(taken: Taken) -> dict[int, int | None]:
    """Who is ever called slow in a stream, and since when by the last look."""
    found: dict[int, int | None] = {}
    for end in range(recurrence.WINDOW, len(taken) + 1, LOOK):
        numbers = np.arange(end)
        found |= {one.member: one.since for one in slow(numbers, STEP_NS * (1 + taken[:end]), STEP_NS)}
    return found


@pytest.mark.parametrize("ranks", [2, 8, 256])
@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__name__)
def test_nobody_healthy_is_accused_and_the_slow_rank_is_found(
    noise: Callable[[Rng, int, int], Taken], ranks: int
) -> None:
    """A rank that needs 12 % more from some step on; among so few jobs no more than one may go wrong."""
    chance = np.random.default_rng([ranks, len(noise.__name__)])
    accused = sum(bool(named(noise(chance, STEPS, ranks))) for _ in range(JOBS))
    assert accused == 0
    missed, off = 0, []
    for _ in range(JOBS):
        taken, first, rank = noise(chance, STEPS, ranks), int(chance.integers(30, 70)), int(chance.integers(ranks))
        taken[first:, rank] += 0.12
        found = named(taken)
        missed += set(found) != {rank}
        off.append(abs((found.get(rank) or 0) - first))
    assert missed <= 1
    assert np.median(off) <= 10


def bursts(chance: Rng, steps: int, ranks: int) -> Taken:
    """Up to ten steps long, on every host of eight twice and on every rank once."""
    taken = lognormal(chance, steps, ranks)
    hosts = [slice(first, first + 8) for first in range(0, ranks, 8)] * 2
    for where in (*hosts, *range(ranks)):
        first = int(chance.integers(steps))
        taken[first : first + int(chance.integers(1, 11)), where] += chance.uniform(0.1, 0.6)
    return taken


def test_whom_bursts_that_adjoin_have_named_was_late() -> None:
    """Of 256 ranks some have two or three in a row: late in three quarters of the steps judged, as a slow rank is."""
    chance, accused = np.random.default_rng(5), 0
    for _ in range(5):
        taken = bursts(chance, STEPS, 256)
        delay = taken - np.median(taken, axis=1, keepdims=True)
        for end in range(recurrence.WINDOW, STEPS + 1, LOOK):
            for one in slow(np.arange(end), STEP_NS * (1 + taken[:end]), STEP_NS):
                judged = delay[end - recurrence.WINDOW : end, one.member]
                assert np.median(judged) >= recurrence.NOTABLE
                assert np.mean(judged >= recurrence.NOTABLE / 3) >= 0.75
                accused += 1
    assert accused


def test_lateness_with_a_period_is_told_as_such() -> None:
    taken = gaussian(np.random.default_rng(1), 80, 16)
    taken[::4, 5] += 0.4
    (one,) = slow(np.arange(80), STEP_NS * (1 + taken), STEP_NS)
    assert (one.member, one.period) == (5, 4)


def test_a_series_that_does_not_change_has_no_beginning() -> None:
    chance = np.random.default_rng(2)
    assert since(np.arange(60), chance.standard_normal(60)) is None
    assert since(np.arange(100, 160), np.r_[np.zeros(20), np.ones(40)] + 0.1 * chance.standard_normal(60)) == 120


def mesh(side: int) -> dict[str, list[int]]:
    """Rows and columns of side × side ranks."""
    rows = {f"row{at}": list(range(at * side, (at + 1) * side)) for at in range(side)}
    return rows | {f"column{at}": list(range(at, side * side, side)) for at in range(side)}


def transfers(chance: Rng, members: dict[str, list[int]], slow_rank: int | None, first: int) -> dict[str, Taken]:
    """Of each group 20 ms per step, and as much again where the slow rank is in it."""
    found = {group: STEP_NS * (0.2 + 0.02 * chance.lognormal(0, 1, STEPS)) for group in members}
    for group, own in members.items():
        if slow_rank in own:
            found[group][first:] *= 2
    return found


def test_the_link_of_a_rank_is_where_slow_rows_and_columns_cross() -> None:
    """256 ranks: a quarter of them healthy jobs, and one whose link is half as fast from some step on."""
    chance, members = np.random.default_rng(3), mesh(16)
    alike = {group: group.rstrip("0123456789") for group in members}
    missed = accused = 0
    for _ in range(20):
        rank, first = int(chance.integers(256)), int(chance.integers(30, 70))
        found = slow_links(np.arange(STEPS), transfers(chance, members, rank, first), members, alike, STEP_NS)
        missed += [one.ranks for one in found] != [(rank,)] or abs((found[0].since or 0) - first) > 10
        for end in range(recurrence.WINDOW, STEPS, LOOK):
            fine = {group: one[:end] for group, one in transfers(chance, members, None, 0).items()}
            accused += bool(slow_links(np.arange(end), fine, members, alike, STEP_NS))
    assert missed <= 1
    assert accused == 0


def test_one_slow_group_names_its_ranks_and_no_single_one() -> None:
    members = {"a": [0, 1], "b": [2, 3], "c": [4, 5]}
    spent = transfers(np.random.default_rng(4), members, 2, 0)
    (one,) = slow_links(np.arange(STEPS), spent, members, dict.fromkeys(members, "alike"), STEP_NS)
    assert isinstance(one, SlowLink)
    assert (one.ranks, one.groups, one.since) == ((2, 3), ("b",), None)
    assert 1.7 < one.times < 2.3
    assert slow_links(np.arange(STEPS), {"a": spent["b"]}, members, {"a": "alike"}, STEP_NS) == []
