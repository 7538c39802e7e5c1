"""Predictions of changes beside the truth of the job simulated with the change (tests/simulator)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from simulator.counterfactuals import COUNTERFACTUALS, Counterfactual
from simulator.judged import Case
from simulator.kineto_rows import Profiler

from benchmarks.verdicts.predicted import Outcome, predict

BY_NAME = {one.name: one for one in COUNTERFACTUALS}
WITHIN = 0.03


class Unsynchronised(Counterfactual):
    """The same recorded as torch.profiler does unless it is asked: without the waits of streams."""

    @property
    def before(self) -> Case:  # type: ignore[override]
        return replace(Case(replace(self.job, name=self.name), self.family), profiler=Profiler(cuda_sync=False))


def holds(outcome: Outcome) -> None:
    assert outcome.error is not None, outcome.why
    assert abs(outcome.error) <= WITHIN
    assert outcome.inside
    assert not outcome.overclaims


@pytest.mark.parametrize(
    "name",
    [
        "half_bytes_full_queue", "half_bytes_drained", "half_bytes_contended", "overlapped", "prefetch_deeper",
        "syncs_removed", "tiny_graphs", "too_few_workers", "copies_pinned", "late_host_replaced",
    ],
)  # fmt: skip
def test_the_prediction_is_the_truth(name: str, tmp_path: Path) -> None:
    holds(predict(BY_NAME[name], tmp_path))


@pytest.mark.parametrize("name", ["half_bytes_ahead", "parameters_kept", "syncs_removed"])
def test_waits_of_streams_are_inferred_where_they_are_not_recorded(name: str, tmp_path: Path) -> None:
    one = BY_NAME[name]
    outcome = predict(Unsynchronised(one.name, one.family, one.changes, one.job, one.changed), tmp_path)
    holds(outcome)
    assert outcome.told is not None
    assert "between streams inferred" in outcome.told.basis


def test_where_the_recording_leaves_the_fixed_cost_open_the_range_says_so(tmp_path: Path) -> None:
    """All buckets are of one size: how much of a transfer is its bytes can't be known."""
    outcome = predict(BY_NAME["buckets_1_to_25"], tmp_path)
    assert outcome.told is not None
    assert outcome.inside
    assert not outcome.overclaims
    assert outcome.told.provenance == "assumed"
