"""Averages are those of numpy, to the last bit."""

from __future__ import annotations

import numpy as np
import pytest

from gpuscope.averages import median, middle, quantile


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
