"""One row for each suggestion: the job on which it fires and the one on which it is silent.

Where the simulator can make the change, the job without the fault takes what was predicted, or no less than its bound
says (tests/analyzers/advice/test_faults_put_in.py carries these rows out). The others name the tests that do it on
recordings or reports made by hand. Where there is no truth to compare with, the row says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from simulator.catalogue import COMPUTE, MS, NARROW, READ_LOSS, SMALL, TINY
from simulator.counterfactuals import SHARDED
from simulator.job import MIB, Job

from helpers.nccl_logs import chosen, communicator, said, variables

SINGLE = {"parallel": "single", "ranks": 1, "steps": 5}
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*)"
ATTENTION = replace(COMPUTE, **SINGLE, smalls=2, small_ns=90_000, gemms=1, layers=6, batched=True, small_op="softmax")  # type: ignore[arg-type]
FULLY_SHARDED = replace(COMPUTE, parallel="fsdp", fsdp1=True, prefetch=1, rate=60.0)
UNITS = replace(
    SHARDED,
    keep_parameters=True,
    layer_bytes=MIB,
    first_bytes=8 * MIB,
    alpha_ns=200_000,
    layers=8,
    gemms=2,
    smalls=1,
    gemm_ns=30_000,
    prefetch=0,
    optimizer_ns=10_000,
)
STAGES = replace(COMPUTE, parallel="pipeline", layers=2, steps=6)
BY_HAND = replace(COMPUTE, wrapped=False, overlap=False, rate=40.0)


@dataclass(frozen=True)
class Trial:
    """A job with a fault, and what is different without it."""

    code: str
    job: Job
    changed: Mapping[str, Any]
    silent: Job | None = None
    """A job that must not get the suggestion; None: the changed one."""
    small: str = ""
    """Name of its elementwise kernels, where it matters."""
    setting: str = ""
    """Part of what is to be set."""
    left_out: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.code} {self.job.mark}{' alone' if self.left_out else ''}".strip()


PREDICTED = [
    Trial("bucket_size", replace(COMPUTE, bucket_bytes=200 * MIB, rate=25.0), {"bucket_bytes": 25 * MIB}, COMPUTE),
    Trial("wire_bytes", replace(COMPUTE, rate=15.0), {"wire": 0.5}, replace(COMPUTE, rate=300.0)),
    Trial("overlap", replace(BY_HAND, mark="DeepSpeedEngine.train_batch"), {"overlap": True}, setting="true"),
    Trial("overlap", BY_HAND, {"overlap": True, "wrapped": True}, setting="around the model"),
    Trial("overlap", BY_HAND, {"overlap": True, "wrapped": True}, setting="around the model", left_out=(1,)),
    Trial(
        "gradient_as_bucket_view",
        replace(COMPUTE, gradient_copies=True, layer_bytes=128 * MIB, rate=400.0),
        {"gradient_copies": False},
    ),
    Trial("fsdp_keep_parameters", replace(SHARDED, prefetch=0, rate=60.0), {"keep_parameters": True}),
    Trial("fsdp_prefetch", replace(SHARDED, prefetch=0, rate=60.0), {"prefetch": 2}, replace(SHARDED, prefetch=2)),
    Trial(
        "fsdp_group_modules",
        UNITS,
        {"layers": 2, "gemms": 8, "smalls": 4, "layer_bytes": 4 * MIB, "first_bytes": 11 * MIB},
        replace(UNITS, alpha_ns=5_000),
    ),
    Trial("backward_prefetch", replace(FULLY_SHARDED, prefetch=0), {"prefetch": 1}),
    Trial("limit_all_gathers", replace(FULLY_SHARDED, limited=True), {"limited": False}),
    Trial("fsdp_prefetch", replace(FULLY_SHARDED, prefetch=0, keep_parameters=True), {"prefetch": 1}, setting="True"),
    Trial(
        "wire_bytes",
        replace(COMPUTE, parallel="tensor", ranks=4, rate=15.0),
        {"wire": 0.5},
        replace(COMPUTE, parallel="tensor", ranks=4, rate=300.0),
        setting="--grad-reduce-in-bf16",  # nothing tells who made the messages: each that could have is named
    ),
    Trial(
        "overlapped_messages", replace(STAGES, micro_batches=8, activation_bytes=256 * MIB, rate=20.0), {"ahead": True}
    ),
    Trial(
        "pipeline_schedule",
        replace(STAGES, ranks=4, rate=20.0, activation_bytes=64 * MIB),
        {"one_by_one": True},
        setting="Schedule1F1B",
    ),
    Trial(
        "micro_batches",
        replace(STAGES, ranks=4, micro_batches=2),
        {"micro_batches": 4},
        replace(STAGES, parallel="ddp"),
    ),
    Trial("even_stages", replace(STAGES, stage_slow={1: 1.5}), {"stage_slow": {0: 1.25, 1: 1.25}}, STAGES),
    Trial("slow_rank", replace(COMPUTE, device_slow={1: 1.5}), {"device_slow": {}}),
    Trial("even_data", replace(COMPUTE, data_scale={0: 1.6}), {"data_scale": {0: 1.3, 1: 1.3}}),
    Trial("late_host", replace(READ_LOSS, host_work_ns=9 * MS, host_work_ranks=(0,), ranks=3), {"host_work_ns": 0}),
    Trial("loader_workers", replace(READ_LOSS, loader_ns=9 * MS, workers=0), {"workers": 2}),
    Trial("cuda_graphs", TINY, {"graphs": True}),
    Trial("cuda_graphs", replace(TINY, steps=1), {"graphs": True}),
    Trial("remove_syncs", replace(NARROW, items=4, item_own_ns=150_000, device_syncs=4), {"blocking": False}),
    Trial("pinned_copies", replace(SMALL, items=1, copy="pageable", copy_bytes=6 * MIB), {"copy": "beside"}),
    Trial("copy_stream", replace(SMALL, items=1, copy_bytes=40 * MIB), {"copy": "beside"}),
    Trial("manual_gc", replace(NARROW, gc_ns=2 * MS), {"gc_ns": 0}),
    Trial("host_work_aside", replace(READ_LOSS, host_work_ns=9 * MS), {"host_work_ns": 0}),
    Trial(
        "caching_allocator",
        replace(
            SMALL,
            **SINGLE,
            gemms=1,
            smalls=1,
            layers=6,
            allocations=6,  # type: ignore[arg-type]
            allocation_ns=300_000,
        ),
        {"allocations": 0},
    ),
    Trial(
        "expandable_segments",
        replace(SMALL, **SINGLE, allocations=2, allocation_ns=600_000),  # type: ignore[arg-type]
        {"allocations": 0},
    ),
    Trial("fused_attention", ATTENTION, {"smalls": 0}, replace(ATTENTION, batched=False), small=SOFTMAX),
]


def nccl_log(*parts: Sequence[str], ranks: int = 2, nodes: int = 1, via: str = "P2P/CUMEM") -> str:
    """What NCCL logs of a job: version, communicator, the transport between ranks 0 and the last, and `parts`."""
    last, device = ranks - 1, (ranks - 1) % (ranks // nodes)
    host = f"n{nodes - 1}"
    lines = [
        said("NCCL version 2.29.2+cuda13.0", pid=100),
        *communicator(ranks, nodes),
        said(f"Channel 00/0 : 0[0] -> {last}[{device}] [send] via {via}", pid=100),
        said(f"Channel 00/0 : 0[0] -> {last}[{device}] [receive] via {via}", host=host, pid=100 + last),
    ]
    return "\n".join([*lines, *(line for part in parts for line in part)]) + "\n"


BUCKET = 33_554_428
"""Bytes of a bucket of `COMPUTE`: three gradients of its 32 MiB a layer."""
SLOW = replace(COMPUTE, rate=15.0)
RDMA = {"nodes": 2, "via": "NET/IB/0/GDRDMA"}
TREE = chosen({BUCKET: "TREE LL"}, channels=2)
COMPILES = replace(READ_LOSS, compile_ns=400 * MS, copy_bytes=MIB)
"""In its first step, behind the copy of the batch."""


IN_RANGE, IN_BOUND = "in its range", "within its bound"
UNCHANGED = "the usual step stays"
_COMPILER = "none: a compiler's log holds no steps"
_LINK = "none: how fast messages are inside a host is not in the trace"
_MEMORY = "none: it gives memory, no shorter step"
_NCCL = "none: what NCCL makes of it only a run shows"
_PAGES = "none: simulated jobs move no pages"
_PLACES = "none: simulated threads have no cores"
_RECORDED = "none: it asks for a recording"
_USUAL = "none: simulated jobs compile and load nothing in usual steps"


@dataclass(frozen=True)
class Shown:
    """A job, with NCCL's log beside it, whose suggestion has no predicted step or rests on NCCL's choices; and what is
    different where it must not come."""

    code: str
    job: Job
    log: str = ""
    quiet: Mapping[str, Any] | None = None
    """Changes of the job…"""
    quiet_log: str | None = None
    """… or another log."""
    truth: str = IN_BOUND
    """Where the step of the changed job lies, or why it has none."""
    changed: Mapping[str, Any] | None = None
    """What is other with the suggestion carried out, where that is not `quiet`."""


SHOWN = [
    Shown("own_stream", replace(COMPUTE, one_stream=True, rate=40.0), quiet={"one_stream": False}),
    Shown("power_sgd", SLOW, quiet={"rate": 60.0}, changed={"wire": 0.1}),
    Shown("static_graph", replace(NARROW, search_ns=800_000), quiet={"search_ns": 0}),
    Shown(
        "numa_binding",
        replace(TINY, parallel="ddp", ranks=2, layer_bytes=MIB),
        quiet={"parallel": "single", "ranks": 1},
        truth=_PLACES,
    ),
    Shown(
        "hybrid_shard",
        replace(SHARDED, rate=20.0, ranks=4),
        nccl_log(ranks=4, **RDMA),  # type: ignore[arg-type]
        quiet_log=nccl_log(ranks=4),
        truth=_LINK,
    ),
    Shown(
        "host_work_named",
        replace(READ_LOSS, host_work_ns=9 * MS, host_work="train.py(12): between"),
        quiet={"host_work_ns": 0},
    ),
    Shown(
        "broadcast_buffers",
        replace(READ_LOSS, host_work_ns=9 * MS, host_work="aten::flatten_dense_tensors"),
        quiet={"host_work_ns": 0},
    ),
    Shown(
        "asynchronous_checkpoint",
        replace(READ_LOSS, outlier_step=3, outlier_ns=60 * MS, steps=8),
        quiet={"outlier_work": "validate"},
        changed={"outlier_ns": 0},
        truth=UNCHANGED,
    ),
    Shown("compile_cache", COMPILES, quiet={"compile_ns": 0}, truth=UNCHANGED),
    Shown("record_steady_steps", replace(COMPILES, steps=1), quiet={"steps": 8}, truth=_RECORDED),
    Shown("whole_link", replace(SMALL, items=1, copy_bytes=40 * MIB, link=0.5), quiet={"link": 1.0}),
    Shown(
        "fp8", COMPUTE, quiet={"gemm_ns": 1_500, "small_ns": 1_500, "optimizer_ns": 1_500}, changed={"gemm_ns": 110_000}
    ),  # half, and casts and scales
    Shown("nccl_log", SLOW, quiet_log=nccl_log(TREE), truth=_RECORDED),
    Shown("nccl_algorithm", SLOW, nccl_log(TREE), quiet_log=nccl_log(TREE, variables(NCCL_ALGO="Tree")), truth=_NCCL),
    Shown("nccl_protocol", SLOW, nccl_log(TREE), quiet_log=nccl_log(chosen({BUCKET: "TREE SIMPLE"})), truth=_NCCL),
    Shown(
        "nccl_channels", SLOW, nccl_log(TREE), quiet_log=nccl_log(chosen({BUCKET: "TREE LL"}, channels=64)), truth=_NCCL
    ),
]


@dataclass(frozen=True)
class Elsewhere:
    """A suggestion whose jobs are made within tests, named `file::function`."""

    code: str
    fires: str
    truth: str
    """Where the first of them sees what the mended job takes, or why there is no such job."""
    silent: str = ""
    """Where it is another test."""


COMPILING = "test_compilation.py::test_alike_ranks_and_whole_graphs_are_no_finding"
SERVES = "test_serving.py::test_phases_causes_and_words"
FAILS = "test_faults_put_in.py::test_a_request_that_fails"
FORCED = "test_nccl_settings.py::test_what_a_log_shows_to_be_forced_is_unset"
OTHER_SIZES = "test_nccl_settings.py::test_sizes_that_the_job_does_not_send_are_none_of_its_business"
PAGES = "test_paging_advice.py::test_what_is_prefetched_already_is_left_alone"
ROLES = "test_role_analysis.py::test_each_fault_is_named_and_answered"
LENGTHS = "test_role_analysis.py::test_nothing_is_said_of_gpus_and_lengths_that_no_line_tells"
_ROOFS = "test_roof_advice.py::test_each_reason_has_its_advice"
_ABOVE_HALF = "test_roof_advice.py::test_above_half_of_the_roof_nothing_is_advised"
_NEARER = "test_roof_advice.py::test_the_mended_job_lies_in_the_range"
_REACHES = "test_transfer_bounds.py::test_what_reaches_for_each_part_is_named"
_HIDDEN = "test_transfer_bounds.py::test_a_job_that_hides_its_transfers_has_no_bound"
ELSEWHERE = [
    Elsewhere("hide_transfers", _REACHES, IN_BOUND, _HIDDEN),
    Elsewhere("fewer_bytes", _REACHES, IN_BOUND, _HIDDEN),
    Elsewhere("fewer_messages", _REACHES, IN_BOUND, _HIDDEN),
    Elsewhere("faster_transfers", _REACHES, IN_BOUND, _HIDDEN),
    Elsewhere("aligned_sizes", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("channels_last_images", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("more_tiles", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("one_layout", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("packed_sequences", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("tensor_cores", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("tuned_kernel", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("wider_heads", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("wider_products", _ROOFS, _NEARER, _ABOVE_HALF),
    Elsewhere("activation_checkpointing", FAILS, _MEMORY),
    Elsewhere("alike_compiled", "test_compilation.py::test_ranks_that_compile_unlike_are_named", _COMPILER, COMPILING),
    Elsewhere("allocate_once", "test_faults_put_in.py::test_memory_is_allocated_once_in_cpp", IN_RANGE),
    Elsewhere("allocator_setting", FAILS, _MEMORY, "test_memory_use.py::test_a_full_device_is_no_fragmentation"),
    Elsewhere("autocast", "test_compute_advice.py::test_fp32_products_on_tensor_cores", IN_RANGE),
    Elsewhere(
        "capacity_factor",
        "test_experts.py::test_a_balanced_router_is_suggested_with_its_gain",
        IN_RANGE,
        "test_experts.py::test_even_routing_costs_nothing",
    ),
    Elsewhere("channels_last", "test_compute_advice.py::test_layout_conversions", IN_RANGE),
    Elsewhere("compile", "test_compute_advice.py::test_unfused_chains", IN_RANGE),
    Elsewhere("cpu_offload", FAILS, _MEMORY),
    Elsewhere(
        "cpu_threads",
        "test_cpu_advice.py::test_no_more_threads_than_cores",
        "none: how kernels of a CPU gain from threads only a run shows",
    ),
    Elsewhere("device_memory", "test_paging_advice.py::test_in_pytorch_the_allocator_is_what_pages", _PAGES, PAGES),
    Elsewhere(
        "distributed_data_parallel",
        "test_overlap_advice.py::test_data_parallel_in_one_process",
        "none: it is another program, a process for each GPU",
        "test_overlap_advice.py::test_a_pipeline_in_one_process_is_no_data_parallel",
    ),
    Elsewhere(
        "even_routing",
        "test_experts.py::test_a_balanced_router_is_suggested_with_its_gain",
        IN_RANGE,
        "test_experts.py::test_even_routing_costs_nothing",
    ),
    Elsewhere(
        "foreach_optimizer",
        "test_advice_fits_the_job.py::test_fused_is_advised_to_classes_that_have_it",
        "none: it hangs on the sizes of parameters",
    ),
    Elsewhere("fused_optimizer", "test_compute_advice.py::test_an_optimizer_in_many_passes", IN_RANGE),
    Elsewhere(
        "gil",
        "test_gil_waits.py::test_its_share_of_idle_time_is_told_with_those_who_hold_it",
        "none: what its other threads do then is not in the trace",
        "test_gil_waits.py::test_a_lock_of_pythons_own_is_no_wait_for_the_gil",
    ),
    Elsewhere("gpu_aware_exchange", "test_overlap_advice.py::test_an_exchange_through_host_memory", IN_RANGE),
    Elsewhere("hopper_attention", "test_compute_advice.py::test_flash_attention_2_on_hopper", IN_RANGE),
    Elsewhere(
        "inside_host",
        "test_groups_across_hosts.py::test_a_tensor_group_across_hosts_is_named",
        _LINK,
        "test_groups_across_hosts.py::test_nothing_where_groups_are_inside_or_fit_in_no_host",
    ),
    Elsewhere(
        "larger_batch", "test_overlap_advice.py::test_free_memory", "none: it gives samples per second, no shorter step"
    ),
    Elsewhere(
        "memory_advice",
        "test_paging_advice.py::test_where_pages_are_evicted_a_prefetch_would_evict_more",
        _PAGES,
        PAGES,
    ),
    Elsewhere("module_loading", "test_host_advice.py::test_lazy_loading_is_advised_where_it_is_off", _USUAL),
    Elsewhere(
        "more_blocks",
        "test_few_blocks.py::test_one_thread_of_one_block",
        "none: what a kernel gains from more blocks hangs on its code",
        "test_few_blocks.py::test_a_library_chooses_its_own_grid",
    ),
    Elsewhere(
        "nccl_by_size",
        "test_nccl_settings.py::test_a_job_whose_messages_have_that_size_gets_its_step_predicted",
        IN_RANGE,
        OTHER_SIZES,
    ),
    Elsewhere("nccl_choice", FORCED, _NCCL),
    Elsewhere(
        "nccl_choice_search",
        "test_nccl_settings.py::test_without_nccl_s_choices_the_search_is_advised",
        _NCCL,
        OTHER_SIZES,
    ),
    Elsewhere(
        "nccl_faster_run",
        "test_nccl_settings.py::test_the_faster_of_two_runs_is_named",
        "the other run is measured",
        "test_nccl_settings.py::test_of_two_equal_runs_none_is_faster",
    ),
    Elsewhere("nccl_gpu_direct", "test_nccl_predictions.py::test_gpudirect_switched_off_and_on_again", IN_RANGE),
    Elsewhere("nccl_nvls", "test_nccl_predictions.py::test_switches_that_reduce_are_given_back", _NCCL, FORCED),
    Elsewhere("nccl_transport", "test_nccl_predictions.py::test_direct_copies_switched_off_and_on_again", IN_RANGE),
    Elsewhere(
        "no_checkpointing", "test_overlap_advice.py::test_free_memory", "none: simulated jobs compute nothing twice"
    ),
    Elsewhere(
        "no_debug_checks",
        "test_messages_of_calls.py::test_checks_of_detail_are_no_pipeline",
        IN_BOUND,
        "test_messages_of_calls.py::test_a_monitored_barrier_waits_as_a_barrier_does",
    ),
    Elsewhere("no_empty_cache", "test_overlap_advice.py::test_a_cache_that_is_flushed_in_every_step", IN_RANGE),
    Elsewhere("no_sync", "test_overlap_advice.py::test_gradients_reduced_in_each_micro_batch", IN_RANGE),
    Elsewhere(
        "one_reduction",
        "test_separate_reductions.py::test_without_shapes_it_has_a_bound",
        IN_BOUND,
        "test_separate_reductions.py::test_other_all_reduces_are_no_such_loop",
    ),
    Elsewhere(
        "other_process",
        "test_after_blocking_calls.py::test_a_worker_that_waits_for_work_is_not_blocked",
        "none: what the other process does is in no file",
        "test_after_blocking_calls.py::test_its_own_operators_are_work_that_could_run_earlier",
    ),
    Elsewhere(
        "outside_work",
        "test_ranks_of_pipelines.py::test_work_besides_the_pipeline",
        "none: pipelines are simulated without such work",
    ),
    Elsewhere(
        "own_work",
        "test_straggler_advice.py::test_code_of_one_rank_is_no_data",
        "none: no simulated rank has operators of its own",
    ),
    Elsewhere("padded_sizes", "test_compute_advice.py::test_sizes_that_tensor_cores_handle_badly", IN_RANGE),
    Elsewhere("prefetch", "test_paging_advice.py::test_each_direction_gets_its_prefetch", _PAGES, PAGES),
    Elsewhere("recompilation", "test_host_advice.py::test_other_work_by_what_it_is", _USUAL),
    Elsewhere("shard_states", FAILS, _MEMORY),
    Elsewhere(
        "single_tensor_optimizer",
        "test_peak_contents.py::test_what_only_copies_and_states_hold_is_not_answered_by_checkpointing",
        _MEMORY,
        "test_peak_contents.py::test_nothing_is_proposed_that_the_snapshot_does_not_show",
    ),
    Elsewhere(
        "small_gathers",
        "test_small_gathers.py::test_small_gathers_are_put_together",
        "none: which parameters travel together is not in a trace",
        "test_small_gathers.py::test_other_messages_are_not_gathers_of_small_parameters",
    ),
    Elsewhere("smaller_micro_batch", FAILS, _MEMORY),
    Elsewhere(
        "stable_guard", "test_compilation.py::test_compiling_again_costs_its_time_in_steps", _COMPILER, COMPILING
    ),
    Elsewhere("tf32", "test_compute_advice.py::test_fp32_products_on_tensor_cores", IN_RANGE),
    Elsewhere(
        "whole_graph",
        "test_compilation.py::test_the_idle_time_between_broken_graphs_is_the_cost_of_the_line",
        _COMPILER,
        COMPILING,
    ),
    Elsewhere("decode_graphs", SERVES, IN_RANGE),
    Elsewhere("fused_all_reduce", SERVES, IN_BOUND),
    Elsewhere("graph_sizes", SERVES, IN_BOUND),
    Elsewhere("overlapped_scheduling", SERVES, IN_BOUND),
    Elsewhere("server_cores", SERVES, _PLACES),
    Elsewhere("smaller_chunks", SERVES, "none: answers stutter less, no step is shorter"),
    Elsewhere("smaller_tensor_parallel", SERVES, "none: simulated layers are not split anew"),
    Elsewhere("asynchronous_rollouts", ROLES, "none: no rollouts are simulated that span steps", LENGTHS),
    Elsewhere("cap_response", ROLES, IN_RANGE, LENGTHS),
    Elsewhere("move_gpus", ROLES, IN_RANGE),
    Elsewhere("overlap_rollout", ROLES, IN_RANGE),
    Elsewhere("reward_beside", ROLES, IN_RANGE),
    Elsewhere("split_roles", ROLES, IN_RANGE),
    Elsewhere("weight_transfer", ROLES, "none: how fast another way is only a run shows"),
]
"""Carried out by the tests named."""


def table() -> dict[str, tuple[str, str, str]]:
    """By code: where it fires, where the truth lies, and where it is silent."""
    found: dict[str, tuple[str, str, str]] = {}
    for one in PREDICTED:
        mended = replace(one.job, **one.changed)
        silent = _unlike(one.silent or mended, one.job)
        found.setdefault(one.code, (f"{one.job.parallel}: {_unlike(one.job, mended)}", IN_RANGE, silent))
    for shown in SHOWN:
        silent = _unlike(replace(shown.job, **(shown.quiet or {})), shown.job) or "another log of NCCL"
        fires = (_unlike(shown.job, COMPUTE) or "as usual") + (", NCCL's log" if shown.log else "")
        found.setdefault(shown.code, (f"{shown.job.parallel}: {fires}", shown.truth, silent))
    for tested in ELSEWHERE:
        fires, silent = (place.partition("::")[2] for place in (tested.fires, tested.silent))
        same = f"`{silent}`" if silent else "the same test"
        found.setdefault(tested.code, (f"`{fires}`", tested.truth, same))
    return dict(sorted(found.items()))


def _unlike(job: Job, other: Job) -> str:
    """The fields in which a job differs from another one, as it has them."""
    values = {field.name: getattr(job, field.name) for field in fields(job)}
    return ", ".join(f"`{name}={_value(value)}`" for name, value in values.items() if value != getattr(other, name))


def _value(value: object) -> str:
    return f"{value // MIB} MiB" if isinstance(value, int) and value >= MIB and value % MIB == 0 else str(value)
