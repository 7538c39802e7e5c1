"""Statistics: averages as numpy's to the last bit, Student's quantiles as in tables, Welch's interval by hand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest

from gpuscope.welch import Sample, difference, median, median_interval, middle, quantile, sample, student, times_needed


def of(values: list[float]) -> Sample:
    found = sample(values)
    assert found is not None
    return found


def test_one_value_tells_no_spread() -> None:
    assert sample([1.0]) is None


def test_interval_of_a_median() -> None:
    """9, 10, 11: median 10, variance 1, the median of three has 0.743 of the mean's efficiency, t(2) = 4.303."""
    bounds, half = median_interval(of([9.0, 10.0, 11.0])), 4.303 * (1 / 3 / 0.743) ** 0.5
    assert (bounds.low, bounds.high) == pytest.approx((10 - half, 10 + half), rel=1e-3)


def test_one_slow_value_moves_the_interval_and_not_its_middle() -> None:
    """9, 10, 17: median 10 and mean 12; variance (9 + 4 + 25) / 2 = 19."""
    bounds = median_interval(of([9.0, 10.0, 17.0]))
    assert (bounds.low + bounds.high) / 2 == pytest.approx(10)
    assert bounds.half == pytest.approx(4.303 * (19 / 3 / 0.743) ** 0.5, rel=1e-3)


def test_one_slow_value_of_many_does_not_widen_it() -> None:
    """Of ten values two at either end are drawn in: how far out they lie does not count."""
    usual = [9.0, 9.5, 10.0, 10.0, 10.0, 10.5, 10.5, 11.0, 11.0, 11.5]
    assert of([*usual[:-1], 1000.0]).error < 1.5 * of(usual).error


def test_difference_of_equal_spreads() -> None:
    """Two samples of variance 1 and three values: error 2 / 3 / 0.743, freedom 2² / (2 · 1²/2) = 4, t = 2.776."""
    bounds = difference(of([9.0, 10.0, 11.0]), of([19.0, 20.0, 21.0]))
    half = 2.776 * (2 / 3 / 0.743) ** 0.5
    assert (bounds.low, bounds.high) == pytest.approx((10 - half, 10 + half), rel=1e-3)


def test_unequal_spreads_have_fewer_degrees() -> None:
    """Variances 1 and 0: all the error is one sample's, so its two degrees of freedom are all there are."""
    bounds = difference(of([9.0, 10.0, 11.0]), of([20.0, 20.0, 20.0]))
    assert bounds.half == pytest.approx(4.303 * (1 / 3 / 0.743) ** 0.5, rel=1e-3)


def test_values_that_drift_are_worth_a_fifth() -> None:
    """Twenty values that only ever rise: r is near 1. Eight of them are cut, twelve are worth a fifth."""
    assert of([float(value) for value in range(20)]).freedom == pytest.approx(12 * 0.2 - 1)


NOISE: dict[str, Callable[[random.Random], float]] = {
    "0.3 %": lambda chance: 1 + 0.003 * chance.gauss(0, 1),
    "3 %": lambda chance: 1 + 0.03 * chance.gauss(0, 1),
    "lognormal": lambda chance: 1 + 0.02 * chance.lognormvariate(0, 1),
    "lognormal 30 %": lambda chance: chance.lognormvariate(0, 0.3),
}


@pytest.mark.parametrize("steps", [(3, 3), (4, 4), (6, 6), (8, 8), (12, 12), (19, 19), (40, 40), (3, 40), (6, 19)])
@pytest.mark.parametrize("noise", NOISE)
def test_covers_at_its_rate_whatever_the_noise(noise: str, steps: tuple[int, int]) -> None:
    """Of 400 pairs of runs without any difference 95 % of the intervals hold it: at least 92.5 %, with the chance of
    400 tries; and a step that takes 46 % as long is told from it, but for few steps that differ by a third."""
    chance = random.Random(f"{noise} {steps}")
    held = told = 0
    for _ in range(400):
        before, after = (of([math.log(NOISE[noise](chance)) for _ in range(count)]) for count in steps)
        found = difference(before, after)
        held += found.low <= 0 <= found.high
        told += found.high + math.log(0.46) < math.log(0.99)
    assert held >= 370
    assert told >= 392 or (noise == "lognormal 30 %" and min(steps) < 19)


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


def test_more_steps_are_needed_than_there_are() -> None:
    """Three of each hold 10 ± 2.63; half of that takes about three times as many, for t falls as well."""
    before, after = of([9.0, 10.0, 11.0]), of([19.0, 20.0, 21.0])
    times = times_needed(before, after, 1.31)
    assert times is not None
    assert 2 < times < 4
    assert times_needed(before, after, 1e-6) is None


@pytest.mark.parametrize("count", [1, 2, 5, 10, 37, 400])
def test_averages_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).integers(0, 10**15, count)
    for kind in (values, values / 7):
        assert [quantile(kind.tolist(), part) for part in (0, 0.25, 0.9, 1)] == np.quantile(
            kind, (0, 0.25, 0.9, 1)
        ).tolist()
        assert median(kind.tolist()) == middle(kind) == np.median(kind)


def test_the_middle_of_nothing_is_not_a_number() -> None:
    assert np.isnan([middle(np.empty(0)), middle(np.array([1, np.nan]))]).all()


@pytest.mark.parametrize(
    ("chance", "freedom", "quantile"),
    [
        (0.025, 1, 12.706),
        (0.025, 2, 4.303),
        (0.025, 5, 2.571),
        (0.01, 10, 2.764),
        (0.001, 30, 3.385),
        (0.0005, 100, 3.390),
        (0.01, 4, 3.747),
        (0.05, 1, 6.314),
        (0.05, 9, 1.833),
    ],
)
def test_students_quantiles(chance: float, freedom: int, quantile: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, and its two-sided 0.1 % (100 degrees)."""
    assert student(chance, freedom) == pytest.approx(quantile, abs=2e-3)
