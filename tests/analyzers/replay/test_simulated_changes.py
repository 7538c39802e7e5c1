"""Predictions of changes beside the truth of the job simulated with the change (tests/simulator)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from helpers import nccl_logs
from simulator.counterfactuals import COUNTERFACTUALS, Counterfactual
from simulator.judged import Case
from simulator.kineto_rows import Profiler

from benchmarks.verdicts.predicted import Outcome, predict
from gpuscope.analyzers.run.runner import analyze
from gpuscope.analyzers.what_if_changes import BucketSize, Overlap, Predicted

BY_NAME = {one.name: one for one in COUNTERFACTUALS}
WITHIN = 0.03
OUTSIDE = {"one_by_one", "copies_pinned"}
"""By design one truth in ten is outside its range: here these, by 0.2 %."""


class Unsynchronised(Counterfactual):
    """The same recorded as torch.profiler does unless it is asked: without the waits of streams."""

    @property
    def before(self) -> Case:  # type: ignore[override]
        return replace(Case(replace(self.job, name=self.name), self.family), profiler=Profiler(cuda_sync=False))


def holds(outcome: Outcome) -> None:
    assert outcome.error is not None, outcome.why
    assert abs(outcome.error) <= WITHIN
    assert outcome.inside or outcome.name in OUTSIDE
    assert not outcome.overclaims


@pytest.mark.parametrize(
    "name",
    [
        "half_bytes_full_queue",
        "half_bytes_drained",
        "half_bytes_contended",
        "overlapped",
        "prefetch_deeper",
        "syncs_removed",
        "tiny_graphs",
        "too_few_workers",
        "copies_pinned",
        "late_host_replaced",
        "two_of_four_replaced",
        "late_for_two_reasons",
        "one_by_one",
        "one_by_one_on_two",
        "one_by_one_contended",
        "all_forwards_first",
        "even_stages",
        "unnamed_even_stages_1f1b",
        "more_ranks",
        "more_ranks_hidden",
        "more_ranks_sharded",
    ],
)
def test_the_prediction_is_the_truth(name: str, tmp_path: Path) -> None:
    holds(predict(BY_NAME[name], tmp_path))


def test_micro_batches_are_cut_where_they_ran_and_what_the_trace_does_not_show_is_said(tmp_path: Path) -> None:
    outcome = predict(BY_NAME["more_micro_batches"], tmp_path)
    holds(outcome)
    assert outcome.told is not None
    assert "moved with their messages" in outcome.told.basis
    assert outcome.told.unshown


@pytest.mark.parametrize("name", ["half_bytes_ahead", "parameters_kept", "syncs_removed"])
def test_waits_of_streams_are_inferred_where_they_are_not_recorded(name: str, tmp_path: Path) -> None:
    one = BY_NAME[name]
    outcome = predict(Unsynchronised(one.name, one.family, one.changes, one.job, one.changed), tmp_path)
    holds(outcome)
    assert outcome.told is not None
    assert "between streams inferred" in outcome.told.basis


@pytest.mark.parametrize("name", ["buckets_1_to_25", "buckets_1_to_25_full_queue", "more_ranks_small_messages"])
def test_where_the_recording_leaves_the_fixed_cost_open_the_range_says_so(name: str, tmp_path: Path) -> None:
    """All buckets are of one size: how much of a transfer is its bytes is bounded by what links can be alone."""
    outcome = predict(BY_NAME[name], tmp_path)
    assert outcome.told is not None, outcome.why
    assert outcome.inside
    assert outcome.told.high > outcome.told.before  # no gain is certain
    assert outcome.told.provenance == "assumed"
    assert "record some steps with another size" in outcome.told.basis


@pytest.mark.parametrize("shapes", [True, False])
def test_messages_of_a_loop_by_hand_become_buckets_that_are_sent_early(tmp_path: Path, shapes: bool) -> None:
    """One small message for each gradient, behind the backward pass. Without shapes nothing tells when each gradient
    was ready, so the buckets stay where the loop was."""
    one = BY_NAME["reduced_by_hand"]
    before = replace(one.before, profiler=Profiler(shapes=shapes))
    replayer = analyze(before.write(tmp_path), advice=False, replay=True).replayer
    assert replayer is not None
    buckets, both = BucketSize(25 << 20), [BucketSize(25 << 20), Overlap(on=True)]
    told = replayer.predict(both if shapes else buckets)
    assert isinstance(told, Predicted), told
    truth = (one.after if shapes else BY_NAME["joined_by_hand"].after).truth.step_ns
    assert told.low <= truth <= told.high
    assert told.high < told.before


def test_where_all_that_may_be_is_a_gain_it_is_told(tmp_path: Path) -> None:
    """One size again; but however little of a transfer is fixed cost, half of that is worth the change."""
    outcome = predict(BY_NAME["lower_latency"], tmp_path)
    assert outcome.told is not None
    assert outcome.inside
    assert outcome.told.high < outcome.told.before


SIZES = (1 << 10, 1 << 20, 1 << 24)


def _nccl_tests(folder: Path, times: dict[int, float]) -> None:
    nccl_logs.write(folder, "all_reduce.txt", nccl_logs.nccl_tests(times))


def _bench(folder: Path, times: dict[int, float]) -> None:
    rows = [{"op": "all_reduce", "ranks": 2, "nbytes": size, "time_ns": round(us * 1e3)} for size, us in times.items()]
    document = {"schema_version": 1, "tool": "collectives", "iterations": 20, "warmup": 5, "rows": rows}
    (folder / "bench.json").write_text(json.dumps(document, indent=2), encoding="utf-8")


@pytest.mark.parametrize("written", [_nccl_tests, _bench])
def test_a_benchmark_divides_the_cost_of_the_one_size(
    tmp_path: Path, written: Callable[[Path, dict[int, float]], None]
) -> None:
    """The link that the job has: 400 us and 150 bytes per ns, found a tenth slower by the benchmark."""
    one = BY_NAME["buckets_1_to_25_full_queue"]
    folder = one.before.write(tmp_path)
    written(folder, {size: 1.1 * (400 + size / 150e3) for size in SIZES})
    replayer = analyze(folder, advice=False, replay=True).replayer
    assert replayer is not None
    told = replayer.predict(BucketSize(25 << 20))
    assert isinstance(told, Predicted), told
    assert told.after == pytest.approx(one.after.truth.step_ns, rel=WITHIN)
    assert told.low <= one.after.truth.step_ns <= told.high
    assert "divided as a benchmark's" in told.basis


@pytest.mark.parametrize(
    "name",
    [
        "half_gradients_beside_gathers",
        "gathers_beside_scatters_gone",
        "half_gradients_beside_tensor",
        "gradients_beside_tensor",
        "half_gradients_on_another_link",
    ],
)
def test_collectives_at_once_on_one_link_share_it(name: str, tmp_path: Path) -> None:
    holds(predict(BY_NAME[name], tmp_path))


def test_where_two_groups_never_met_the_range_holds_that_their_links_differ(tmp_path: Path) -> None:
    outcome = predict(BY_NAME["gradients_beside_on_another_link"], tmp_path)
    assert outcome.inside or outcome.name in OUTSIDE
    assert not outcome.overclaims
    assert outcome.told is not None
    assert "two collectives at once on one link are taken to get half of it each" in outcome.told.basis


@pytest.mark.parametrize("name", ["micro_batches_and_collector", "even_stages_of_more_micro_batches"])
def test_changes_of_a_pipeline_are_combined_with_others(name: str, tmp_path: Path) -> None:
    outcome = predict(BY_NAME[name], tmp_path)
    assert outcome.error is not None, outcome.why
    assert abs(outcome.error) <= 0.05  # a kernel is expected to take 1 us whatever its size, which is not so there
    assert outcome.inside or outcome.name in OUTSIDE
    assert not outcome.overclaims
