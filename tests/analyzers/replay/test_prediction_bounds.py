"""Ranges: from the best to the worst case, and beyond by independent errors, which add up as squares do."""

from __future__ import annotations

import pytest

from gpuscope.analyzers.replay.prediction_bounds import bounds


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
