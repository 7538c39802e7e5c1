"""Changes of and advice for drawn jobs that once were missing or predicted far off, beside the simulated truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulator.counterfactuals import ANEW
from simulator.job import Job
from simulator.judged import Case
from simulator.structures import draw
from simulator.truth import step_ns

from benchmarks.verdicts.advised import advised
from benchmarks.verdicts.drawn_changes import changes_of
from gpuscope.analyzers.run.runner import analyze
from gpuscope.analyzers.what_if_changes import (
    BucketSize,
    CapturedGraphs,
    Change,
    CopyStream,
    EarlyMessages,
    GroupModules,
    KeepParameters,
    PinnedCopies,
    Predicted,
    RemovedSyncs,
    ReplacedRank,
    Schedule,
    SharedWork,
)


@pytest.mark.parametrize(
    ("seed", "faults", "change"),
    [
        # A gather that waited for an event behind the copy still waits for what came before the copy.
        pytest.param(5, ["slow link"], CopyStream(), id="events_behind_copies"),
        # Copies on a stream of their own begin the steps, and run ahead once the host does.
        pytest.param(81, ["slow link"], RemovedSyncs(), id="steps_begin_with_copies_ahead"),
        # Without other waits the host still waits for the device in cudaFree.
        pytest.param(24, [], RemovedSyncs(), id="frees_wait_behind_reads"),
        pytest.param(208, [], PinnedCopies(), id="steps_begin_with_pinned_copies"),
        pytest.param(77, [], PinnedCopies(), id="frees_wait_behind_copies"),
        # The host needs all of the step to launch it, in whatever order.
        pytest.param(12, [], Schedule("1f1b"), id="pipeline_bound_by_its_host"),
        # What stands between a collective and the first launch behind it is no launch, and each graph costs one.
        # Kernels that take as long on all ranks (the optimizer's) are no part of what is shared.
        pytest.param(13, [], SharedWork(0), id="work_of_a_longer_batch_shared"),
        # Issuing a gather takes the host time too.
        pytest.param(60, [], KeepParameters(), id="gathers_not_issued"),
        # Buckets of one backward pass do not wait for the next one's.
        pytest.param(404, ["synced accumulation"], BucketSize(25 << 20), id="buckets_of_one_pass"),
        pytest.param(95, [], CapturedGraphs(), id="graphs_of_few_kernels"),
        # Launches of a slow host reach its device later; kernels of ranks that wait run beside the collective.
        pytest.param(58039, [], ReplacedRank(0), id="a_slow_host_as_its_peers"),
        pytest.param(70047, [], SharedWork(), id="work_shared_by_ranks_that_wait_in_turn"),
        # FSDP1 limits no gathers that there are not.
        pytest.param(70029, [], KeepParameters(), id="limited_gathers_not_issued"),
        # Passes that only accumulate add nothing to what a bucket holds.
        pytest.param(70003, [], BucketSize(5 << 20), id="a_bucket_of_one_gradient_stays"),
        # Groups are gathered as many groups ahead as modules were, and no wait for room is left before the others.
        pytest.param(74832, ["slow link"], GroupModules(2), id="groups_gathered_ahead"),
        pytest.param(75187, ["slow link"], GroupModules(2), id="groups_of_limited_gathers"),
    ],
)
def test_the_prediction_is_the_truth(seed: int, faults: list[str], change: Change, tmp_path: Path) -> None:
    drawn = draw(seed, *faults)
    job = drawn.job
    own = {CapturedGraphs: {"graphs": True}, ReplacedRank: drawn.fixes.get("slow host")}.get(type(change))
    fields = own or next(one.fields for one in changes_of(job) if one.changes == (change,))
    _is_true(job, replace(job, **fields), [change], tmp_path)


def _is_true(job: Job, changed: Job, changes: list[Change], folder: Path) -> None:
    after = Case(replace(changed, seed=job.seed + ANEW), "")
    replayer = analyze(Case(job, "").write(folder), advice=False, replay=True).replayer
    assert replayer is not None
    told = replayer.predict(changes)
    assert isinstance(told, Predicted), told
    truth = step_ns(after.run, after.unlike)
    assert told.after == pytest.approx(truth, rel=0.02)  # one size does not tell its fixed cost
    assert told.low <= truth <= told.high


@pytest.mark.parametrize(
    ("seed", "code"),
    [
        pytest.param(24, "expandable_segments", id="late_launches_behind_frees"),
        pytest.param(89, "caching_allocator", id="reads_that_wait_for_frees"),
        pytest.param(28, "late_host", id="one_of_two_late_ranks"),
        pytest.param(264, "remove_syncs", id="without_the_limit_of_gathers"),
        pytest.param(20004, "plan", id="buckets_of_the_last_pass_alone"),
        pytest.param(20013, "wire_bytes", id="backward_in_graphs"),
        pytest.param(20034, "fsdp_prefetch", id="forward_prefetch"),
        pytest.param(20066, "pipeline_schedule", id="work_that_runs_in_the_next_step"),
        pytest.param(26025, "pipeline_schedule", id="contention_that_settles"),
        pytest.param(26015, "overlapped_messages", id="slowed_by_the_other_end"),
        pytest.param(26039, "wire_bytes", id="gradients_reduced_by_hand"),
        pytest.param(28015, "even_data", id="long_batches_in_graphs"),
        pytest.param(28025, "loader_workers", id="the_loader_of_one_rank"),
        pytest.param(70045, "slow_rank", id="slow_devices_that_hide_each_other"),
        pytest.param(70094, "cuda_graphs", id="launching_behind_an_allocator"),
        pytest.param(28037, "remove_syncs", id="waits_that_cost_little_and_delay_gathers"),
    ],
)
def test_what_answers_the_trouble_comes_true(seed: int, code: str, tmp_path: Path) -> None:
    found = advised(draw(seed), tmp_path)
    (one,) = (figure for figure in found.figures if figure.code == code)
    assert one.after is not None
    assert one.error < 0.02
    assert found.answer == "replayed"


@pytest.mark.parametrize(
    ("seed", "code"),
    [
        (12, "pipeline_schedule"),
        (12, "cuda_graphs"),
        (61, "cuda_graphs"),
        (58019, "cuda_graphs"),  # of two ranks the slow one
        (26022, "overlap"),
        (76172, "manual_gc"),  # workers are not idle where only some batches are waited for
    ],
)
def test_what_gains_nothing_is_not_promised(seed: int, code: str, tmp_path: Path) -> None:
    assert code not in [figure.code for figure in advised(draw(seed), tmp_path).figures]


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(76117, id="micro_batches_in_a_plan"),
        pytest.param(76160, id="values_read_for_no_certain_gain"),
        pytest.param(70096, id="a_pipeline_laid_out_anew"),
        pytest.param(58045, id="messages_of_one_size"),
    ],
)
def test_no_more_is_promised_than_the_trace_shows(seed: int, tmp_path: Path) -> None:
    made = [figure for figure in advised(draw(seed), tmp_path).figures if figure.after is not None]
    assert made
    assert not [figure.code for figure in made if figure.overclaims]


@pytest.mark.parametrize("seed", [76164])
def test_a_cause_that_nothing_helps_against_has_its_bound(seed: int, tmp_path: Path) -> None:
    assert advised(draw(seed), tmp_path).answer == "bound"


@pytest.mark.parametrize(
    ("seed", "changes", "fields"),
    [
        # The host issues a receive elsewhere, and launches a graph before and behind.
        pytest.param(300003, [EarlyMessages(), CapturedGraphs()], {"ahead": True, "graphs": True}, id="receives"),
        # In another order threads go on by turns, each with a graph of its own.
        pytest.param(
            300003,
            [Schedule("1f1b"), EarlyMessages(), CapturedGraphs()],
            {"one_by_one": True, "ahead": True, "graphs": True},
            id="receives_in_another_order",
        ),
        # A step's last bucket runs beside no kernel, as the last one did before.
        pytest.param(
            80144,
            [BucketSize(25 << 20, 1 << 20)],
            {"bucket_bytes": 25 << 20, "first_bucket": 1 << 20},
            id="a_last_bucket_undisturbed",
        ),
    ],
)
def test_changes_are_made_as_the_job_would(
    seed: int, changes: list[Change], fields: dict[str, Any], tmp_path: Path
) -> None:
    job = draw(seed).job
    _is_true(job, replace(job, **fields), changes, tmp_path)
