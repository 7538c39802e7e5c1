"""The calibration curve: coverage of ranges scaled to a level."""

from __future__ import annotations

import pytest

from benchmarks.verdicts.calibration import coverage, distance, scale
from benchmarks.verdicts.predicted import Outcome
from gpuscope.analyzers.changes import Predicted


def outcome(truth: float, low: int, high: int) -> Outcome:
    return Outcome("a job", "bytes", 2_000, truth, Predicted(2_000, 1_000, low, high, "a test"), "")


@pytest.mark.parametrize(
    ("truth", "expected"),
    [(1_000, 0.0), (1_050, 0.25), (1_200, 1.0), (950, 0.5), (800, 2.0)],  # 100 below, 200 above
)
def test_how_far_the_truth_is_by_half_the_range_on_its_side(truth: float, expected: float) -> None:
    assert distance(outcome(truth, 900, 1_200)) == pytest.approx(expected)


def test_a_range_without_width_holds_itself_alone() -> None:
    assert (distance(outcome(1_000, 1_000, 1_000)), distance(outcome(1_010, 1_000, 1_000))) == (0.0, float("inf"))


def test_normal_errors_are_covered_as_often_as_a_level_says() -> None:
    """A range for nine in ten is 1.645 standard deviations each way; one for half of them 0.674: 0.41 of it."""
    assert (scale(0.9), scale(0.5)) == (1.0, pytest.approx(0.410, abs=0.001))
    assert coverage([0.0, 0.4, 0.42, 0.9, 1.1], 0.5) == 0.4
    assert coverage([0.0, 0.4, 0.42, 0.9, 1.1], 0.9) == 0.8
