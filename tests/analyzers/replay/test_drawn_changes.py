"""Changes of drawn jobs that once were predicted far off, beside the simulated truth."""

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

from benchmarks.verdicts.drawn_changes import changes_of
from gpuscope.analyzers.changes import (
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
from gpuscope.analyzers.run.runner import analyze


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
    ("seed", "changes", "fields"),
    [
        # The host issues a receive elsewhere, and launches a graph before and behind.
        pytest.param(300003, [EarlyMessages(), CapturedGraphs()], {"ahead": True, "graphs": True}, id="receives"),
        # In another order threads go on by turns, each with a graph of its own.
        pytest.param(
            300003, [Schedule("1f1b"), EarlyMessages(), CapturedGraphs()],
            {"one_by_one": True, "ahead": True, "graphs": True}, id="receives_in_another_order",
        ),
        # A step's last bucket runs beside no kernel, as the last one did before.
        pytest.param(
            80144, [BucketSize(25 << 20, 1 << 20)], {"bucket_bytes": 25 << 20, "first_bucket": 1 << 20},
            id="a_last_bucket_undisturbed",
        ),
    ],
)  # fmt: skip
def test_changes_are_made_as_the_job_would(
    seed: int, changes: list[Change], fields: dict[str, Any], tmp_path: Path
) -> None:
    job = draw(seed).job
    _is_true(job, replace(job, **fields), changes, tmp_path)
