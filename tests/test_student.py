"""Student's quantiles as tables have them."""

from __future__ import annotations

import pytest

from gpuscope.student import student


@pytest.mark.parametrize(
    ("chance", "freedom", "quantile"),
    [(0.025, 1, 12.706), (0.025, 2, 4.303), (0.025, 5, 2.571), (0.01, 10, 2.764), (0.001, 30, 3.385),
     (0.0005, 100, 3.390), (0.01, 4, 3.747), (0.05, 1, 6.314), (0.05, 9, 1.833)],
)  # fmt: skip
def test_students_quantiles(chance: float, freedom: int, quantile: float) -> None:
    """NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.6.7.2, and its two-sided 0.1 % (100 degrees)."""
    assert student(chance, freedom) == pytest.approx(quantile, abs=2e-3)
