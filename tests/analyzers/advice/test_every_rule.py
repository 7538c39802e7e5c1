"""Every setting that a rule may suggest is tried on a generated job: where its fault was put in, and where it must be
silent."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

import pytest

from gpuscope.analyzers.advice.rule import rules

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER)]
faults = importlib.import_module("test_faults_put_in")

TRIED: dict[str, tuple[str, str]] = {
    "allocate_once": ("faults_put_in.memory_is_allocated_once_in_cpp",) * 2,
    **dict.fromkeys(("prefetch", "memory_advice", "oversubscription"),
                    ("faults_put_in.unified_memory_by_what_moved_it",) * 2),
    **dict.fromkeys(("smaller_micro_batch", "activation_checkpointing", "shard_states", "cpu_offload",
                     "allocator_setting"), ("faults_put_in.a_request_that_fails",) * 2),
    **dict.fromkeys(("autocast", "tf32"), ("compute_advice.fp32_products_on_tensor_cores",
                                           "compute_advice.what_the_host_holds_up_gets_no_faster_kernels")),
    "compile": ("compute_advice.unfused_chains", "compute_advice.compiled_kernels_are_no_chain"),
    "channels_last": ("compute_advice.layout_conversions",) * 2,
    "hopper_attention": ("compute_advice.flash_attention_2_on_hopper",) * 2,
    "fused_optimizer": ("compute_advice.an_optimizer_in_many_passes",) * 2,
    "padded_sizes": ("compute_advice.sizes_that_tensor_cores_handle_badly",) * 2,
    "fp8": ("compute_advice.fp8_where_16_bits_are_near_their_peak",) * 2,
    "no_sync": ("overlap_advice.gradients_reduced_in_each_micro_batch",
                "overlap_advice.one_micro_batch_is_reduced_once"),
    "no_empty_cache": ("overlap_advice.a_cache_that_is_flushed_in_every_step",) * 2,
    "distributed_data_parallel": ("overlap_advice.data_parallel_in_one_process",
                                  "overlap_advice.a_pipeline_in_one_process_is_no_data_parallel"),
    "gpu_aware_exchange": ("overlap_advice.an_exchange_through_host_memory",
                           "overlap_advice.what_the_host_computes_between_copies_needs_its_data"),
    **dict.fromkeys(("larger_batch", "no_checkpointing"), ("overlap_advice.free_memory",) * 2),
    **dict.fromkeys(("nccl_transport", "nccl_rails", "nccl_choice", "nccl_topology", "nccl_checks"),
                    ("nccl_settings.what_a_log_shows_to_be_forced_is_unset",) * 2),
    "nccl_gpu_direct": ("nccl_settings.cards_without_gpudirect_cost_between_hosts_only",) * 2,
    "nccl_by_size": ("nccl_settings.a_job_whose_messages_have_that_size_gets_its_step_predicted",
                     "nccl_settings.sizes_that_the_job_does_not_send_are_none_of_its_business"),
    "nccl_choice_search": ("nccl_settings.without_nccl_s_choices_the_search_is_advised",
                           "nccl_settings.sizes_that_the_job_does_not_send_are_none_of_its_business"),
    "nccl_quiet_log": ("nccl_settings.times_of_a_logged_run_are_to_be_measured_again",) * 2,
    "nccl_faster_run": ("nccl_settings.the_faster_of_two_runs_is_named",) * 2,
    "rail_placement": ("nccl_network.groups_on_other_gpus_of_each_host_cross_rails",) * 2,
    "inside_host": ("nccl_network.a_tensor_group_across_hosts",) * 2,
    "own_work": ("straggler_advice.code_of_one_rank_is_no_data",) * 2,
    "outside_work": ("straggler_advice.work_besides_a_pipeline_is_taken_off_its_rank",
                     "straggler_advice.a_stage_with_more_layers_is_no_rank_with_more_data"),
}  # fmt: skip
"""By code: the test of the job with the fault, and that of the job in which it is silent (one may be both); beside the
tables of test_faults_put_in.py."""

ELSEWHERE = {
    "nccl_traffic_class": "tests/sources/nsys/test_link_counters.py, with the counters",
    **dict.fromkeys(
        ("fused_attention", "single_tensor_optimizer"),
        "tests/analyzers/allocator/test_peak_contents.py, with the stacks that call for them",
    ),
    "recompilation": "test_host_advice.py, on a report: a simulated job that compiles in every step is all warm-up",
}


def test_every_setting_has_a_job_and_a_counter_example() -> None:
    knobs = {knob.code for rule in rules() for knob in rule.knobs}
    tabled = {trial.code for trial in (*faults.PREDICTED, *faults.SHOWN)}
    assert knobs == tabled | set(TRIED) | set(ELSEWHERE)
    assert not set(TRIED) & tabled


@pytest.mark.parametrize("code", TRIED)
def test_the_tests_that_are_named_are_there_and_about_it(code: str) -> None:
    said = ""
    for name in set(TRIED[code]):
        module, _, function = name.partition(".")
        said += inspect.getsource(getattr(importlib.import_module(f"test_{module}"), f"test_{function}"))
    assert f'"{code}"' in said
