"""Drawn jobs: the same ones by every seed, with faults that cost something and fixes that take them out."""

from __future__ import annotations

from dataclasses import fields

import pytest

from simulator.job import Job
from simulator.judged import Case
from simulator.structures import FAULTS, MOST_KERNELS, device_ns, draw, launch_ns
from simulator.truth import step_ns


def test_a_seed_draws_one_job_and_seeds_draw_all_structures() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert drawn == [draw(seed) for seed in range(200)]
    assert {one.job.parallel for one in drawn} == {"single", "ddp", "fsdp", "tensor", "pipeline"}
    assert {len(one.fixes) for one in drawn} == {0, 1, 2}
    assert {fault for one in drawn for fault in one.fixes} == set(FAULTS)


def test_jobs_are_small_and_without_a_fault_bound_by_their_devices() -> None:
    for job in (one.job for one in map(draw, range(200)) if not one.fixes):
        passes = job.micro_batches if job.parallel == "pipeline" else job.accumulate
        # Two layers, six steps and a kernel of each kind are the least: eight ranks with three passes hold more.
        assert job.ranks * job.steps * job.layers * (3 * job.gemms + 2 * job.smalls) * passes <= 3 * MOST_KERNELS
        assert launch_ns(job) <= device_ns(job)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fix_takes_out_what_its_fault_put_in(fault: str) -> None:
    drawn = draw(7, fault)
    fixed = drawn.fixed(fault)
    changed = {one.name for one in fields(Job) if getattr(fixed, one.name) != getattr(drawn.job, one.name)}
    assert changed
    assert changed <= set(drawn.fixes[fault])


@pytest.mark.parametrize("fault", ["large copies", "emptied cache", "slow devices", "late reduction", "values read"])
def test_what_costs_most_is_worth_mending(fault: str) -> None:
    """Of ten jobs with the fault, one at least is a tenth faster without it."""
    saved = []
    for seed in range(10):
        drawn = draw(seed, fault)
        before, after = (step_ns(case.run, case.unlike) for case in (Case(drawn.job, ""), Case(drawn.fixed(fault), "")))
        saved.append(1 - after / before)
        if saved[-1] > 0.1:
            return
    raise AssertionError(saved)
