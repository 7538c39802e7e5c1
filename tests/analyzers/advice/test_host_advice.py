"""Advice on the launching thread: where each rule fires, and where it must be silent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.advice import blocking, finding, host_calls, report, steady

from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import CapturedGraphs, Change, Predicted, Refused, RemovedSyncs
from gpuscope.schema.document import Evidence, Report

BEFORE, AFTER = 100_000_000, 40_000_000


def gains(_: Sequence[Change]) -> Predicted:
    return Predicted(BEFORE, AFTER, AFTER, AFTER, "a test")


def launching(**given: Any) -> Report:
    """Two steady steps that repeat, idle for launching alone."""
    case = steady(report(finding("launch")), 1, 2)
    case["host_calls"] = [host_calls(**given)]
    return case


def graphs(case: Report) -> tuple[list[str], list[str]]:
    """Predicted step times of CUDA graphs, and why there is none."""
    suggestions, advice = advise(case, gains)
    told = [str(one["predicted"]["step_ns_after"]) for one in suggestions if one["code"] == "cuda_graphs"]
    return told, [one["why_not"] for one in advice["unpredicted"] if one["code"] == "cuda_graphs"]


def test_graphs_where_steady_steps_repeat() -> None:
    assert graphs(launching()) == ([str(AFTER)], [])


def test_one_step_gets_a_figure_that_says_what_it_assumes() -> None:
    suggestions, _ = advise(steady(launching(), 1), gains)
    (one,) = (one for one in suggestions if one["code"] == "cuda_graphs")
    assert one["predicted"]["step_ns_after"] == AFTER
    assert one["grounds"].startswith("inferred: a single steady step was recorded")
    suggestions, _ = advise(launching(), gains)
    assert all("grounds" not in one for one in suggestions if one["code"] == "cuda_graphs")


def test_a_window_without_steps_gets_a_bound() -> None:
    told, [why] = graphs(steady(launching()))
    assert told == []
    assert why.startswith("no steps were found")


def test_no_cuda_graphs_on_another_makers_device() -> None:
    assert graphs(launching(runtime="acl")) == ([], [])


@pytest.mark.parametrize("severity", ["high", "medium"])
def test_where_the_host_idles_for_something_else_graphs_are_for_launching_that_costs_much(severity: str) -> None:
    case = launching()
    case["findings"] = [{**finding("host_other"), "share_frac": 0.21}, finding("launch", severity)]
    assert (graphs(case) == ([], [])) is (severity == "medium")


def test_no_graph_is_made_of_copies_alone() -> None:
    case = launching()
    case["launches"] = []
    assert graphs(case) == ([], [])


def test_graphs_come_with_what_frees_a_step_of_blocking_calls() -> None:
    read = blocking("cudaMemcpyAsync", operator="aten::_local_scalar_dense", within="aten::item", copy="DtoH", bytes=4)
    asked: list[Change] = []

    def both(changes: Sequence[Change]) -> Predicted:
        asked.extend(changes)
        return gains(changes)

    suggestions, _ = advise(launching(blocking_calls=[read]), both)
    (one,) = (one for one in suggestions if one["code"] == "cuda_graphs")
    assert one["why"].endswith(
        "can't hold calls that block: 1 per step: a device-to-host copy of 4 B, cudaMemcpyAsync in "
        "aten::_local_scalar_dense under aten::item"
    )
    assert CapturedGraphs() in asked
    (freed,) = (change for change in asked if isinstance(change, RemovedSyncs))
    assert freed.needed


def test_a_wait_that_finds_nothing_to_wait_for_hinders_no_graph() -> None:
    """17 µs of 200 ms: an event that had been reached."""
    event = blocking("cudaEventSynchronize", dur_ns=17_000)
    assert graphs(launching(blocking_calls=[event])) == ([str(AFTER)], [])


def test_no_graphs_where_steps_run_other_kernels() -> None:
    told, why = graphs(launching(repeated_frac=0.8))
    assert not told
    assert "only 80.0 % of a step's kernels repeat in the next" in why[0]


def test_in_cpp_graphs_are_captured_by_hand() -> None:
    case = launching()
    case["trace"]["program"] = "native"
    suggestions, _ = advise(case, gains)
    assert [one["setting"]["name"] for one in suggestions] == ["cudaStreamBeginCapture"]


def blocked(*calls: Any, program: str = "pytorch", **given: Any) -> Report:
    case = steady(report(finding("sync")), 1, 2)
    case["trace"]["program"] = program  # type: ignore[typeddict-item]
    case["host_calls"] = [host_calls(blocking_calls=list(calls), **given)]
    return case


def test_a_small_pageable_copy_is_named_with_its_place_and_count() -> None:
    small = blocking(
        "cudaStreamSynchronize", operator="aten::copy_", within="aten::to", copy="HtoD pageable", bytes=8, per_step=15.0
    )
    [one], _ = advise(blocked(small), gains)
    assert one["code"] == "remove_syncs"
    assert one["action"].startswith("Build the small tensor on the device")
    assert one["why"].endswith(
        "15 per step: a host-to-device copy of 8 B from pageable memory, cudaStreamSynchronize in aten::copy_ under "
        "aten::to"
    )
    assert "step %" not in one["setting"]["value"]


def test_a_batch_from_pageable_memory_wants_pinned_memory_alone() -> None:
    batch = blocking(
        "cudaMemcpyAsync", operator="aten::copy_", within="aten::to", copy="HtoD pageable", bytes=9_633_920
    )
    suggestions, _ = advise(blocked(batch), gains)
    assert [one["code"] for one in suggestions] == ["pinned_copies"]


def test_in_cpp_a_wait_behind_each_kernel() -> None:
    [one], _ = advise(blocked(blocking("cudaDeviceSynchronize", per_step=100.0), program="native"), gains)
    assert one["action"] == "Remove cudaDeviceSynchronize after each kernel, and wait once per step"
    assert "item" not in str(one)


def test_in_cpp_results_that_the_host_reads_have_no_predicted_gain() -> None:
    results = blocking("cudaMemcpy", copy="DtoH pageable", bytes=262_144_000)
    suggestions, advice = advise(blocked(results, program="native"), gains)
    assert not suggestions
    [one] = advice["unpredicted"]
    assert "cudaMallocHost" in one["setting"]["value"]


def test_a_wait_at_the_end_of_a_recording_without_steps_is_no_loop() -> None:
    case = blocked(blocking("cudaDeviceSynchronize", count=1), steady=False, steps=1)
    suggestions, advice = advise(case, gains)
    assert not suggestions
    assert not advice["unpredicted"]


def other_work(name: str, covered: float | None = 0.9) -> Report:
    case = steady(report(finding("host_other")), 1, 2)
    shown: Evidence = {"rank": 0, "start_ns": 0, "dur_ns": 5, "name": name, "note": "device idle until gemm"}
    case["findings"][0]["evidence"] = [shown if covered is None else {**shown, "covered_frac": covered}]
    case["host_calls"] = [host_calls()]
    return case


@pytest.mark.parametrize(
    ("name", "code", "setting"),
    [
        ("save_checkpoint", "host_work_aside", "torch.distributed.checkpoint.async_save"),
        ("wandb log", "host_work_aside", "wandb log"),
        ("cudaLaunchKernel", "module_loading", "CUDA_MODULE_LOADING"),
        ("backend_compile (dynamo_timed)", "recompilation", "torch.compile.dynamic"),
    ],
)
def test_other_work_by_what_it_is(name: str, code: str, setting: str) -> None:
    [one], _ = advise(other_work(name), gains)
    assert (one["code"], one["setting"]["name"]) == (code, setting)


@pytest.mark.parametrize(
    ("name", "covered"),
    [("aten::matmul", 0.0005), ("gemm", None), ("pthread_cond_wait", 0.98), ("Optimizer.step#Shampoo.step", 0.98)],
)
def test_the_programs_own_work_is_to_be_named_first(name: str, covered: float | None) -> None:
    suggestions, advice = advise(other_work(name, covered), gains)
    assert not suggestions
    assert [one["code"] for one in advice["unpredicted"]] == ["host_work_named"]


@pytest.mark.parametrize(
    ("name", "device_ns", "codes"),
    [("log_metrics", 0, ["host_work_aside"]), ("encoder", 7, []), ("Optimizer.zero_grad#AdamW.zero_grad", 0, [])],
)
def test_short_work_between_launches_is_told_by_its_range(name: str, device_ns: int, codes: list[str]) -> None:
    case = other_work(name)
    case["findings"][0]["code"] = "launch"
    entry: Any = {"rank": 0, "name": name, "device_ns": device_ns}
    case["ranges"] = [entry]
    suggestions, advice = advise(case, gains)
    told = {one["code"] for one in (*suggestions, *advice["unpredicted"])}
    assert [code for code in told if code == "host_work_aside"] == codes


@pytest.mark.parametrize("name", ["Torch-Compiled Region: 0/0", "gloo:send", "nccl:all_reduce"])
def test_the_model_and_its_messages_are_no_work_to_move(name: str) -> None:
    suggestions, advice = advise(other_work(name), gains)
    assert "host_work_aside" not in {one["code"] for one in (*suggestions, *advice["unpredicted"])}


def test_a_slow_launch_without_steady_steps_is_start_up() -> None:
    suggestions, advice = advise(steady(other_work("cudaLaunchKernel")), gains)
    assert (suggestions, advice["unpredicted"]) == ([], [])


def test_ddp_packs_its_buffers() -> None:
    case = other_work("aten::unflatten_dense_tensors")
    case["trace"]["frameworks"] = ["ddp"]
    _, advice = advise(case, gains)
    assert [one["setting"]["name"] for one in advice["unpredicted"]] == ["DistributedDataParallel.broadcast_buffers"]


def once(code: str, *work: str, share: float = 0.0, **trace: Any) -> Report:
    """A finding of what is paid once, with what the host did longest."""
    case = report(finding("launch"))
    note = f"the device idles longest in: {', '.join(f'{name} 5 ms' for name in work)}"
    case["findings"].append(
        {
            **finding(code),
            "share_frac": share,
            "evidence": [{"rank": 0, "start_ns": 0, "dur_ns": 5, "name": "step 0", "note": note}],
        }
    )
    case["trace"] |= trace  # type: ignore[typeddict-item]
    case["host_calls"] = [host_calls()]
    return case


@pytest.mark.parametrize(
    ("code", "work", "settings"),
    [
        ("warmup", "backend_compile (dynamo_timed)", ["TORCHINDUCTOR_CACHE_DIR"]),
        ("warmup", "Nvrtc::CompileProgram", ["warm-up steps"]),
        ("warmup", "cudaLaunchKernel", []),  # loading all kernels at the start takes no less
        ("startup", "cudaLaunchKernel", []),  # lazy already: nothing to win by loading all of it
        ("startup", "cuLibraryLoadData", []),  # lazily, as it is by default
        ("warmup", "cudnnFindConvolutionForwardAlgorithm", []),
        ("outlier_steps", "save_checkpoint", ["torch.distributed.checkpoint.async_save"]),
        ("outlier_steps", "evaluate", []),
    ],
)
def test_what_is_paid_once_has_no_predicted_step(code: str, work: str, settings: list[str]) -> None:
    suggestions, advice = advise(once(code, work), gains)
    assert not [one for one in suggestions if one["finding"] == code]
    own = [one for one in advice["unpredicted"] if one["finding"] == code]
    assert [one["setting"]["name"] for one in own] == settings
    assert all("usual step" in one["why_not"] for one in own)


@pytest.mark.parametrize(
    ("cuda", "variables", "expected"),
    [
        ("", {"CUDA_MODULE_LOADING": "EAGER"}, True),
        ("11.8", {}, True),
        ("12.4", {}, False),
        ("11.8", {"CUDA_MODULE_LOADING": "LAZY"}, False),
    ],
)
def test_lazy_loading_is_advised_where_it_is_off(cuda: str, variables: dict[str, str], expected: bool) -> None:
    setup = {"versions": {"cuda": cuda}, "variables": variables, "cores_per_rank": None, "stacks": False}
    _, advice = advise(once("startup", "cuLibraryLoadData", setup=setup), gains)
    own = [one["setting"]["value"] for one in advice["unpredicted"] if one["code"] == "module_loading"]
    assert own == (["LAZY"] if expected else [])


def test_a_recording_of_start_up_alone_gets_no_advice_on_stalls() -> None:
    case = steady(once("startup", "Nvrtc::CompileProgram", share=0.75), 1, 2)
    suggestions, advice = advise(case, gains)
    assert not suggestions
    assert advice["why"] == "the recording is start-up, not steady state: record steps after the first ones"
    assert [one["code"] for one in advice["unpredicted"]] == ["record_steady_steps", "compile_cache"]


def test_jax_keeps_its_programs_elsewhere() -> None:
    _, advice = advise(once("startup", "Nvrtc::CompileProgram", program="jax"), lambda _: Refused("a test"))
    assert [one["setting"]["name"] for one in advice["unpredicted"]] == ["JAX_COMPILATION_CACHE_DIR"]


def test_graphs_are_what_is_replayed() -> None:
    asked: list[Change] = []

    def predict(changes: Sequence[Change]) -> Predicted:
        asked.extend(changes)
        return gains(changes)

    advise(launching(), predict)
    assert asked == [CapturedGraphs()]


@pytest.mark.parametrize(("world", "expected"), [(8, True), (1, False), (None, False)])
def test_ranks_are_bound_to_cores_where_there_are_several(world: int | None, expected: bool) -> None:
    case = launching()
    case["trace"]["world_size"] = world
    _, advice = advise(case, gains)
    assert ("numa_binding" in {one["code"] for one in advice["unpredicted"]}) is expected


def test_only_the_named_calls_are_removed_with_both_figures_where_they_read() -> None:
    """One place reads a value: the careful change and the free one name it, and no other call."""
    read = blocking("cudaMemcpyAsync", operator="aten::_local_scalar_dense", within="aten::item", copy="DtoH", bytes=4)
    asked: list[RemovedSyncs] = []

    def both(changes: Sequence[Change]) -> Predicted:
        asked.extend(change for change in changes if isinstance(change, RemovedSyncs))
        return gains(changes)

    [one], _ = advise(blocked(read), both)
    assert "if_unused" in one
    assert {(bool(change.sites), change.needed) for change in asked} == {(True, True), (True, False)}
    only_waits = blocking("cudaDeviceSynchronize")
    [one], _ = advise(blocked(only_waits), both)
    assert "if_unused" not in one
    assert all(change.sites for change in asked)
