"""Ranges: from the best to the worst case, and beyond by independent errors, which add up as squares do."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.analyzers.changes import EvenStages, NoCollector
from gpuscope.analyzers.replay.prediction_bounds import (
    LEAST_CHANCE,
    MODEL_ERROR,
    ON_GPU,
    ON_GPU_BY_KIND,
    bounds,
    by_chance,
    median_by_chance,
    model_error,
)  # fmt: skip


@pytest.mark.parametrize(
    ("cases", "errors", "expected"),
    [
        ([100], [], (100, 100)),
        ([100], [3, 4], (95, 105)),  # 3-4-5
        ([100, 97, 112], [3, 4], (92, 117)),  # from the best and the worst case on
        ([100, 120, 140], [], (100, 140)),  # all assumptions are worse than expected
        ([100], [200], (0, 300)),  # no step is shorter than nothing
    ],
)
def test_bounds(cases: list[float], errors: list[float], expected: tuple[int, int]) -> None:
    assert bounds(100, cases, errors) == expected


def test_one_slow_step_says_nothing_of_the_median() -> None:
    """Quartiles 99 and 101: σ 1.48; of a median of seven 0.70, of the difference of two 0.99, times t, 1.943."""
    times = np.array([98, 99, 99, 100, 101, 101, 500], np.float64)
    assert median_by_chance(times) == pytest.approx(0.0193, abs=1e-4)
    assert (by_chance(times) or 0.0) > 1.0


def test_few_or_equal_steps_are_not_taken_to_be_certain() -> None:
    assert median_by_chance(np.array([100.0])) is None
    assert median_by_chance(np.array([100.0, 110.0])) == by_chance(np.array([100.0, 110.0]))
    assert median_by_chance(np.array([100.0] * 8)) == LEAST_CHANCE


def test_changes_together_are_as_uncertain_as_the_least_certain_of_them() -> None:
    both = [NoCollector(), EvenStages()]
    assert model_error(both, gpu=True, inferred=False) == ON_GPU_BY_KIND[EvenStages]
    assert model_error(both, gpu=True, inferred=True) == 2 * ON_GPU_BY_KIND[EvenStages]
    assert model_error(both, gpu=False, inferred=False) == MODEL_ERROR
    assert model_error(both[:1], gpu=True, inferred=False) == ON_GPU
    assert model_error([], gpu=True, inferred=False) == 0.0
