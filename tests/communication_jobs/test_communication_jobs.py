"""The jobs themselves: what is so of them can be worked by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from communication_jobs.engine import GAP_NS, at_best, run, step_ns
from communication_jobs.jobs import BUS, MIB, STRUCTURES, Job, draw

PLAIN = Job(
    structure="behind",
    layers=2,
    kernels=2,
    kernel_ns=100_000,
    noise=0.0,
    layer_bytes=16 * MIB,
    message_bytes=32 * MIB,
    fixed_ns=20_000,
    rate=100.0,
)


def test_one_message_behind_the_backward_pass_lasts_as_long_as_it_costs():
    # Twelve kernels, the message, two of the optimizer; a gap before each but the first of the step.
    message = 20_000 + 32 * MIB / 100
    assert step_ns(PLAIN) == pytest.approx(14 * 100_000 + message + 15 * GAP_NS, rel=0.002)


def test_hidden_transfers_leave_the_kernels():
    assert at_best(PLAIN)["hidden_ns"] == pytest.approx(14 * (100_000 + GAP_NS), rel=0.002)


def test_a_link_carries_one_transfer_after_the_other():
    job = replace(PLAIN, structure="sharded", layers=4, rate=5.0)
    carried = 4 * (job.layer_bytes + 2 * (job.layer_bytes // 2)) * BUS["all_gather"](2) / 5.0
    assert step_ns(job) >= carried


def test_every_rank_takes_part_in_every_collective():
    counts = {len(rank.operations) for rank in run(replace(PLAIN, structure="tensor", ranks=4))}
    assert len(counts) == 1


@pytest.mark.parametrize("seed", range(12))
def test_drawn_jobs_are_bound_by_communication(seed: int):
    job = draw(seed)
    assert job.structure == STRUCTURES[seed % len(STRUCTURES)]
    assert min(at_best(job).values()) < 0.9 * step_ns(job)
