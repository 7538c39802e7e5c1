"""The calibration curve: coverage of ranges scaled to a level."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from benchmarks.verdicts.calibration import coverage, distance, fitted, lacking, missing, scale
from benchmarks.verdicts.drawn_changes import COMBINED, FAULTS_OF, chosen, job_for, known
from benchmarks.verdicts.predicted import Outcome
from gpuscope.analyzers.what_if_changes import Predicted


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


@pytest.mark.parametrize(("truth", "expected"), [(1_300, 0.1), (800, 0.1), (1_000, -0.1), (1_200, 0.0)])
def test_what_a_range_lacks_is_a_share_of_the_step(truth: float, expected: float) -> None:
    assert missing(outcome(truth, 900, 1_200)) == pytest.approx(expected)


def test_a_margin_holds_nine_in_ten_of_others() -> None:
    """Of 19 the 18th, for a twentieth lies as likely between any two of them; of eight none is sure to hold so many."""
    assert fitted([0.01 * place for place in reversed(range(19))]) == 0.17
    assert fitted([0.0] * 8) == float("inf")


def test_what_two_changes_lack_is_beyond_that_of_either() -> None:
    single = [replace(outcome(1_000 + place, 900, 1_000), family="one") for place in range(19)]
    both = [replace(one, family=COMBINED, of=("one", "other"), after=one.after + 5) for one in single]
    other = [replace(one, family="other", after=990) for one in single]
    assert lacking([*both, *single, *other]) == pytest.approx({"one": 0.017, "other": -0.01, COMBINED: 0.005})


@pytest.mark.parametrize("kind", FAULTS_OF)
def test_jobs_that_margins_are_fitted_to_are_of_other_structures(kind: str) -> None:
    (fitted_to, behind), (other, _) = (job_for(kind, 3, fitted) for fitted in (True, False))
    assert behind > fitted_to.seed >= 3
    assert known(fitted_to)
    assert not known(other)
    for job in (fitted_to, other):
        assert kind == COMBINED or kind in [one.kind for one in chosen(job, Random(0))]
