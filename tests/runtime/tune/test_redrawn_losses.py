"""Changes that make the data's random numbers others: losses are held against what their own steps differ by."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from gpuscope.instrumented_runtime.tune.measured import Run, limit_of_draws, moved_in_all, spread


def run(losses: dict[int, list[float]]) -> Run:
    return Run(Path("run"), 1.0, None, losses)


def drawn(seed: int, *, level: float = 2.3, noise: float = 0.02, falls: float = 0.0) -> dict[int, list[float]]:
    chance = random.Random(seed)
    return {rank: [level - falls * step + chance.gauss(0, noise) for step in range(20)] for rank in range(2)}


@pytest.mark.parametrize("falls", [0.0, 0.02])
@pytest.mark.parametrize("seed", range(5))
def test_other_draws_are_within_the_spread_of_the_steps(seed: int, falls: float) -> None:
    baseline, trial = run(drawn(seed, falls=falls)), run(drawn(seed + 100, falls=falls))
    in_all = moved_in_all([baseline], trial)
    limit = limit_of_draws([baseline], 20)
    assert in_all is not None
    assert limit is not None
    assert in_all[1] == 20
    assert in_all[0] <= limit


def test_training_that_goes_wrong_is_beyond_it() -> None:
    baseline, trial = run(drawn(1)), run(drawn(2, level=2.5))
    in_all, limit = moved_in_all([baseline], trial), limit_of_draws([baseline], 20)
    assert in_all is not None
    assert limit is not None
    assert in_all[0] > limit


def test_what_is_not_known_is_no_limit() -> None:
    assert spread([run({0: [1.0, 1.1, 0.9]})]) is None
    assert limit_of_draws([run({})], 20) is None
    assert moved_in_all([run({})], run(drawn(1))) is None
