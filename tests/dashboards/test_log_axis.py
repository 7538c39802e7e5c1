"""Ends of a logarithmic axis."""

from __future__ import annotations

import pytest

from gpuscope.dashboards.figures.heatmap_figure import log_range


@pytest.mark.parametrize("values", [[5.0], [0.3, 0.53], [1e-3, 1e6], [0.0, -1.0, 7.0], []])
def test_an_axis_holds_its_values_and_at_least_a_decade(values: list[float]) -> None:
    low, high = log_range(values)
    assert high - low >= 1
    assert all(10**low <= value <= 10**high for value in values if value > 0)
