"""Welch's interval, by hand."""

from __future__ import annotations

import math
import random

import pytest

from gpuscope.analyzers.comparison.welch import Sample, difference, median_interval, sample, steps_needed


def of(values: list[float]) -> Sample:
    found = sample(values)
    assert found is not None
    return found


def test_one_value_tells_no_spread() -> None:
    assert sample([1.0]) is None


MEDIAN = math.sqrt(math.pi / 2)
"""A median of normal values varies by so much more than their mean."""


def test_interval_of_a_median() -> None:
    """9, 10, 11: median 10, variance 1, error √(π/2) · 1/√3, t(2) = 4.303."""
    bounds = median_interval(of([9.0, 10.0, 11.0]))
    assert (bounds.low, bounds.high) == pytest.approx((10 - 4.303 * MEDIAN / 3**0.5, 10 + 4.303 * MEDIAN / 3**0.5))


def test_one_slow_value_moves_the_interval_and_not_its_middle() -> None:
    """9, 10, 17: median 10 and mean 12; variance (9 + 4 + 25) / 2 = 19."""
    bounds = median_interval(of([9.0, 10.0, 17.0]))
    assert (bounds.low + bounds.high) / 2 == pytest.approx(10)
    assert bounds.high - bounds.low == pytest.approx(2 * 4.303 * MEDIAN * (19 / 3) ** 0.5)


def test_difference_of_equal_spreads() -> None:
    """Two samples of variance 1 and three values: error √(π/2 · 2/3), freedom 2² / (2 · 1²/2) = 4, t = 2.776."""
    bounds = difference(of([9.0, 10.0, 11.0]), of([19.0, 20.0, 21.0]))
    half = 2.776 * MEDIAN * (2 / 3) ** 0.5
    assert (bounds.low, bounds.high) == pytest.approx((10 - half, 10 + half))


def test_unequal_spreads_have_fewer_degrees() -> None:
    """Variances 1 and 0: all the error is one sample's, so its two degrees of freedom are all there are."""
    bounds = difference(of([9.0, 10.0, 11.0]), of([20.0, 20.0, 20.0]))
    assert bounds.high - bounds.low == pytest.approx(2 * 4.303 * MEDIAN / 3**0.5)


def test_neighbours_alike_are_worth_less() -> None:
    """Ten 0s, then ten 1s: of 20 products of neighbours 18 are +¼ and one is −¼, so r = (18 − 1)·¼ / (20·¼) = 0.85
    and 20 · 0.15 / 1.85 = 1.6, but never below 2."""
    assert of([0.0] * 10 + [1.0] * 10).worth == 2.0
    assert of([0.0, 1.0] * 10).worth == 20.0


def test_covers_as_often_as_it_says() -> None:
    """Of 400 pairs of AR(1) series (r = 0.5, 40 steps) without any difference at least 90 % of the intervals hold 0."""
    generator = random.Random(7)

    def series() -> list[float]:
        values = [generator.gauss(0, 1)]
        for _ in range(39):
            values.append(0.5 * values[-1] + generator.gauss(0, 1))
        return values

    bounds = [difference(of(series()), of(series())) for _ in range(400)]
    assert sum(one.low <= 0 <= one.high for one in bounds) >= 360


def test_steps_needed() -> None:
    """Variances 1 and 1, margin 1: t² · π/2 · 2 / n ≤ 1 needs n ≥ 15 (t(14)² · π/15 = 0.96; t(13)² · π/14 = 1.05)."""
    assert steps_needed(of([9.0, 10.0, 11.0]), of([9.0, 10.0, 11.0]), 1.0) == 15
