"""Suggestions for drawn jobs that once were missing or promised too much, beside the simulated truth."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulator.structures import draw

from benchmarks.verdicts.advised import advised


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


@pytest.mark.parametrize("seed", [76164, 76004])
def test_a_cause_that_nothing_helps_against_has_its_bound(seed: int, tmp_path: Path) -> None:
    assert advised(draw(seed), tmp_path).answer == "bound"
