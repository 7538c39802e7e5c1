"""Who is late again and again: how often healthy ranks are accused and late ones found, by simulation.

A rate is that of `JOBS` jobs; what is asked of it is the definitions' rate and what chance adds to that in so many jobs
nineteen times in twenty (binomial).
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
import pytest

from gpuscope.analyzers.collectives.recurrence import Recurrence, last_again_and_again, recurrence

JOBS = 200
STEPS = (2, 3, 4, 5, 7, 10, 20, 40)
RANKS = (2, 3, 4, 8, 16, 64)
Rng = np.random.Generator
Taken = np.ndarray[tuple[int, int], np.dtype[np.float64]]
"""What each rank takes in each step before it comes to its collectives, by the step; shape (steps, ranks)."""


def judged(taken: Taken) -> Recurrence:
    late = 1e6 * (taken - np.median(taken, axis=1, keepdims=True))
    return recurrence(np.arange(5, 5 + len(taken)), late, 1e6, taken.shape[1])


def at_most(rate: float, jobs: int = JOBS) -> int:
    """So many of the jobs, or fewer, are what such a rate gives nineteen times in twenty."""
    below, count = 0.0, -1
    while below < 0.95:
        count += 1
        below += comb(jobs, count) * rate**count * (1 - rate) ** (jobs - count)
    return count


def gaussian(noise: float) -> Callable[[Rng, int, int], Taken]:
    return lambda chance, steps, ranks: 1 + noise * chance.standard_normal((steps, ranks))


def with_a_pause(noise: float) -> Callable[[Rng, int, int], Taken]:
    def made(chance: Rng, steps: int, ranks: int) -> Taken:
        taken = gaussian(noise)(chance, steps, ranks)
        taken[chance.integers(steps), chance.integers(ranks)] += 0.3
        return taken

    return made


def lognormal(chance: Rng, steps: int, ranks: int) -> Taken:
    return 1 + 0.02 * chance.lognormal(0, 1, (steps, ranks))


HEALTHY = {
    "0.3 %": (gaussian(0.003), 0.01),
    "1 %": (gaussian(0.01), 0.01),
    "3 %": (gaussian(0.03), 0.01),
    "a pause, 0.3 %": (with_a_pause(0.003), 0.01),
    "a pause, 3 %": (with_a_pause(0.03), 0.01),
    "lognormal": (lognormal, 0.05),
}


@pytest.mark.parametrize("noise", HEALTHY)
@pytest.mark.parametrize("ranks", RANKS)
def test_healthy_ranks_are_not_accused(noise: str, ranks: int) -> None:
    """Of all numbers of steps together as often as asked, and of each number no more often than chance allows."""
    made, rate = HEALTHY[noise]
    chance = np.random.default_rng([ranks, len(noise)])
    accused = [sum(judged(made(chance, steps, ranks)).late.any() for _ in range(JOBS)) for steps in STEPS]
    assert sum(accused) <= rate * JOBS * len(STEPS)
    assert max(accused) <= at_most(1.5 * rate)


@pytest.mark.parametrize(("noise", "steps"), [(0.003, 2), (0.003, 3), (0.003, 7), (0.03, 10), (0.03, 40)])
@pytest.mark.parametrize("ranks", [4, 8, 16, 64])
@pytest.mark.parametrize("share", [0, 4])
def test_a_late_rank_or_a_quarter_of_all_is_found_and_nobody_else(
    noise: float, steps: int, ranks: int, share: int
) -> None:
    chance = np.random.default_rng([ranks, steps, share])
    late = max(ranks // share, 1) if share else 1
    missed = 0
    for _ in range(JOBS):
        taken = gaussian(noise)(chance, steps, ranks)
        taken[:, :late] += 0.1
        missed += not np.array_equal(judged(taken).late, np.arange(ranks) < late)
    assert missed <= at_most(0.05)


@pytest.mark.parametrize("ranks", [2, 3, 4, 16])
@pytest.mark.parametrize("noise", [0.003, 0.03])
def test_who_takes_turns_is_not_accused(ranks: int, noise: float) -> None:
    """In each step another rank is half a step late."""
    chance = np.random.default_rng(ranks)
    accused = 0
    for job in range(JOBS):
        steps = STEPS[job % len(STEPS)]
        taken = gaussian(noise)(chance, steps, ranks)
        taken[np.arange(steps), np.arange(steps) % ranks] += 0.5
        accused += bool(judged(taken).late.any())
    assert accused <= at_most(0.01)


@pytest.mark.parametrize("ranks", [2, 4, 8, 64])
@pytest.mark.parametrize(("period", "steps"), [(2, 8), (3, 10), (4, 12), (4, 40)])
def test_lateness_with_a_period(ranks: int, period: int, steps: int) -> None:
    """A quarter of a step late in every second to fourth step, three times at least."""
    chance = np.random.default_rng([ranks, period, steps])
    missed = 0
    for _ in range(JOBS // 3):
        taken = gaussian(0.01)(chance, steps, ranks)
        taken[::period, 1] += 0.25
        found = judged(taken)
        missed += not (np.flatnonzero(found.late).tolist() == [1] and found.period[1] == period)
    assert missed <= at_most(0.05, JOBS // 3)


def by_ranks(taken: Taken) -> list[int]:
    late = 1e6 * (taken - np.median(taken, axis=1, keepdims=True))
    every = np.ones(len(taken), np.bool_)
    return np.flatnonzero(last_again_and_again(late, every, 1e6, taken.shape[1])).tolist()


def heavy(chance: Rng, steps: int, ranks: int) -> Taken:
    """Lognormal of 20 % with σ 2: a step in ten is as long as ten others."""
    return 1 + 0.2 * chance.lognormal(0, 2, (steps, ranks))


WILD: dict[str, Callable[[Rng, int, int], Taken]] = {
    "lognormal, σ 2": heavy,
    "30 %": gaussian(0.3),
    "cauchy": lambda chance, steps, ranks: 1 + 0.05 * np.abs(chance.standard_cauchy((steps, ranks))),
}


@pytest.mark.parametrize("noise", HEALTHY)
@pytest.mark.parametrize("ranks", [2, 4, 64])
def test_by_ranks_healthy_ones_are_accused_hardly_ever(noise: str, ranks: int) -> None:
    made, rate = HEALTHY[noise]
    chance = np.random.default_rng([ranks, len(noise), 7])
    accused = sum(bool(by_ranks(made(chance, steps, ranks))) for steps in STEPS for _ in range(JOBS))
    assert accused <= rate / 2 * JOBS * len(STEPS)


@pytest.mark.parametrize("noise", WILD)
@pytest.mark.parametrize("ranks", RANKS)
def test_by_ranks_no_distribution_is_too_wild(noise: str, ranks: int) -> None:
    """In each number of steps no more than one job in twenty, whatever ranks differ by."""
    chance = np.random.default_rng([ranks, len(noise), 8])
    for steps in STEPS:
        accused = sum(bool(by_ranks(WILD[noise](chance, steps, ranks))) for _ in range(JOBS))
        assert accused <= at_most(0.05)


@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
@pytest.mark.parametrize("steps", [6, 8, 12])
def test_a_rank_whose_lateness_varies_a_hundredfold_is_found(ranks: int, steps: int) -> None:
    """As one whose interpreter's lock another thread holds: 9 to 540 ms late in a step of 100."""
    chance = np.random.default_rng([ranks, steps])
    missed = 0
    for _ in range(JOBS):
        taken = gaussian(0.01)(chance, steps, ranks)
        taken[:, ranks - 1] += np.exp(chance.uniform(np.log(0.09), np.log(5.4), steps))
        missed += by_ranks(taken) != [ranks - 1]
    assert missed <= at_most(0.05)


def test_by_ranks_it_has_to_be_late_in_what_is_judged_and_by_something() -> None:
    taken = np.ones((8, 2))
    taken[:, 1] += np.array([0.4, 3.0, 0.5, 0.9, 0.3, 2.0, 0.6, 0.4])
    assert by_ranks(taken) == [1]
    late = 1e6 * (taken - taken.mean(axis=1, keepdims=True))
    judged_late = np.array([1, 1, 1, 1, 1, 1, 1, 1], np.bool_)
    assert last_again_and_again(late, judged_late, 1e6, 2).tolist() == [False, True]
    assert not last_again_and_again(late, judged_late, 1e8, 2).any()  # a hundredth of the step
    late[4:] *= -1  # another one in the judged steps
    assert not last_again_and_again(late, np.arange(8) >= 4, 1e6, 2).any()
    assert by_ranks(taken[:5]) == []  # five of five are one in sixteen


def test_how_late_it_is_is_told_of_the_steps_in_which_it_is() -> None:
    """Of two ranks the median lies between them."""
    taken = np.ones((12, 2))
    taken[1::4, 0] += 0.2
    found = judged(taken)
    assert (found.late.tolist(), found.period.tolist()) == ([True, False], [4, 1])
    assert found.usual[0] == pytest.approx(1e5)


def test_one_step_or_one_rank_shows_nothing() -> None:
    assert not judged(np.array([[1.0, 2.0, 1.0]])).late.any()
    assert not judged(np.ones((9, 1))).late.any()
