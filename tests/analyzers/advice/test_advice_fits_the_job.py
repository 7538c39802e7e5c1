"""Advice that would be wrong for the recorded software or machine: other versions, other classes, too few cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.advice import finding, host_calls, report, steady
from helpers.kineto import call, kernel, note, write
from simulator.catalogue import TINY
from simulator.judged import Case as SimulatedJob

import gpuscope
from gpuscope.analyzers.advice.rule import Case, Proposal
from gpuscope.analyzers.advice.rules import (
    allocator_call_rules,
    blocking_rules,
    cpu_rules,
    host_rules,
    one_time_cost_rules,
)
from gpuscope.analyzers.advice.settings.torch_settings import FOREACH, FUSED
from gpuscope.analyzers.allocator.allocator_replay import Baseline, Change, Outcome, best
from gpuscope.analyzers.what_if_changes import LoaderWorkers, Predicted
from gpuscope.schema.document import Report

MIB = 1 << 20
RUN = SimulatedJob(TINY, "")
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def gains(_: Sequence[object]) -> Predicted:
    return Predicted(100, 40, 40, 40, "a test")


def on(asked: Report, torch: str = "", cores: int | None = None, **variables: str) -> Case:
    versions = {"torch": torch} if torch else {}
    asked["trace"]["setup"] = {"versions": versions, "variables": variables, "cores_per_rank": cores, "stacks": False}
    return Case(asked, gains)


@pytest.mark.parametrize(
    ("torch", "variables", "name", "value"),
    [
        ("", {}, OLD, "expandable_segments:True"),  # every torch reads it
        ("2.8.0+cu128", {}, OLD, "expandable_segments:True"),
        ("2.9.0", {}, NEW, "expandable_segments:True"),
        ("2.10.1", {NEW: "max_split_size_mb:64"}, NEW, "max_split_size_mb:64,expandable_segments:True"),
        ("2.13.0", {OLD: "max_split_size_mb:64"}, OLD, "max_split_size_mb:64,expandable_segments:True"),  # it wins
        ("2.13.0", {OLD: "", NEW: "max_split_size_mb:64"}, OLD, "expandable_segments:True"),
    ],
)
def test_the_allocators_variable_is_one_that_this_torch_reads(
    torch: str, variables: dict[str, str], name: str, value: str
) -> None:
    asked = steady(report(finding("allocator")), 1, 2)
    asked["host_calls"] = [host_calls(allocations_per_step=3.0, frees_per_step=3.0)]
    [one] = allocator_call_rules.propose(on(asked, torch, None, **variables), finding("allocator"))
    assert (one.setting["name"], one.setting["value"]) == (name, value)


def optimizer(classes: str, kernel: str = "multi_tensor_apply_kernel", torch: str = "", **more: Any) -> list[Proposal]:
    asked = report(finding("optimizer_passes"), **more)
    asked["compute"] = [  # type: ignore[typeddict-item]
        {"reducible": [{"code": "optimizer_passes", "detail": classes, "name": kernel}]}
    ]
    return list(cpu_rules.kernel_rules_propose(on(asked, torch), finding("optimizer_passes")))


@pytest.mark.parametrize(
    ("classes", "kernel", "torch", "expected"),
    [
        ("AdamW", "multi_tensor_apply_kernel", "", ["torch.optim.AdamW.fused"]),
        ("SGD", "multi_tensor_apply_kernel", "", ["torch.optim.SGD.fused"]),
        ("SGD", "multi_tensor_apply_kernel", "2.2.1", []),  # no fused form yet, and foreach already
        ("SGD", "vectorized_elementwise_kernel", "2.2.1", ["torch.optim.SGD.foreach"]),
        ("RMSprop", "multi_tensor_apply_kernel", "2.13.0", []),
        ("RMSprop", "vectorized_elementwise_kernel", "2.13.0", ["torch.optim.RMSprop.foreach"]),
        ("Muon", "vectorized_elementwise_kernel", "2.13.0", []),
        ("AdamW, Muon", "multi_tensor_apply_kernel", "2.13.0", ["torch.optim.AdamW.fused"]),
        ("", "multi_tensor_apply_kernel", "", ["the fused argument of the optimizer"]),
    ],
)
def test_fused_is_advised_to_classes_that_have_it(classes: str, kernel: str, torch: str, expected: list[str]) -> None:
    found = optimizer(classes, kernel, torch)
    assert [one.setting["name"] for one in found] == expected
    assert all(
        one.code == ("foreach_optimizer" if "foreach" in one.setting["name"] else "fused_optimizer") for one in found
    )


def test_fused_on_sharded_parameters_is_advised_to_classes_that_have_it() -> None:
    """DTensor has no rule for SGD's fused kernel."""
    [adamw] = optimizer("AdamW", frameworks=["fsdp2"])
    assert adamw.setting["name"] == "torch.optim.AdamW.fused"
    assert [one.code for one in optimizer("SGD", "vectorized_elementwise_kernel", frameworks=["fsdp2"])] == [
        "foreach_optimizer"
    ]


def test_transformers_own_name_for_the_fused_optimizer_is_adamws() -> None:
    [adamw], [sgd] = (optimizer(name, frameworks=["transformers"]) for name in ("AdamW", "SGD"))
    assert (adamw.setting["name"], sgd.setting["name"]) == ("TrainingArguments.optim", "torch.optim.SGD.fused")


def test_torch_has_these_forms() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(2))
    for name in FUSED:
        assert getattr(torch.optim, name)([parameter], fused=True)
    for name in FOREACH:
        assert getattr(torch.optim, name)([parameter], foreach=True)
    for name in ("LBFGS", "SparseAdam"):
        with pytest.raises(TypeError):
            getattr(torch.optim, name)([parameter], foreach=True)


@pytest.mark.parametrize("cores", [1, 2, None])
def test_how_many_cores_there_are_is_said(cores: int | None) -> None:
    """Whether more workers than these help, the replay tells."""
    case = on(report(finding("input")), "", cores)
    found = list(one_time_cost_rules.loader_rules_propose(case, finding("input")))
    assert [one.changes for one in found] == [(LoaderWorkers(n, cores=cores),) for n in (1, 2, 4, 8, 16)]
    said = found[-1].says("risk")
    assert ("not recorded" in said) == (cores is None)
    assert cores is None or f"{cores} CPU core" in said


@pytest.mark.parametrize(
    ("stacks", "runtime", "name"),
    [
        (False, "cuda", "torch.profiler.profile.with_stack"),
        (True, "cuda", "nsys profile"),
        (True, "hip", "py-spy record"),
    ],
)
def test_stacks_are_asked_for_only_where_there_are_none(stacks: bool, runtime: str, name: str) -> None:
    case = steady(report(finding("host_other")), 1, 2)
    case["host_calls"] = [host_calls(runtime=runtime)]
    asked = on(case)
    case["trace"]["setup"]["stacks"] = stacks
    [one] = host_rules.propose(asked, finding("host_other"))
    assert (one.code, one.setting["name"]) == ("host_work_named", name)
    assert ("record Python stacks" in one.says("why_not")) != stacks


@pytest.mark.parametrize("name", ["Torch-Compiled Region: 0/0", "gloo:send", "nccl:all_reduce", "CompiledFunction"])
def test_what_a_step_consists_of_is_not_moved_aside(name: str) -> None:
    case = steady(report(finding("host_other")), 1, 2)
    span = {"rank": 0, "start_ns": 0, "dur_ns": 5, "name": name, "note": "", "covered_frac": 0.9}
    asked = {**finding("host_other"), "evidence": [span]}
    case["host_calls"] = [host_calls()]
    assert [one.code for one in host_rules.propose(on(case), asked)] == ["host_work_named"]  # type: ignore[arg-type]
    asked["evidence"][0]["name"] = "wandb: log"  # type: ignore[index]
    assert [one.code for one in host_rules.propose(on(case), asked)] == ["host_work_aside"]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("calls", "kernels", "runtime", "advised"),
    [
        ({"cudaLaunchKernel": 400}, 400, "cuda", True),
        ({"cudaLaunchKernel": 380, "cudaGraphLaunch": 1}, 400, "cuda", True),  # a graph of 20: the rest is not
        ({"cudaLaunchKernel": 20, "cudaGraphLaunch": 2}, 400, "cuda", False),
        ({"AscendCL@aclrtLaunchKernel": 400}, 400, "acl", False),
    ],
)
def test_graphs_are_advised_where_kernels_are_launched_one_by_one(
    calls: dict[str, int], kernels: int, runtime: str, advised: bool
) -> None:
    case = steady(report(finding("launch")), 1, 2)
    case["host_calls"] = [host_calls(runtime=runtime)]
    case["api_calls"] = [{"name": name, "count": count} for name, count in calls.items()]  # type: ignore[typeddict-item]
    case["launches"] = [{"launches": kernels}]  # type: ignore[typeddict-item]
    found = [one.code for one in blocking_rules.launch_rules_propose(on(case), finding("launch"))]
    assert ("cuda_graphs" in found) == advised


@pytest.mark.parametrize(
    ("region", "found"),
    [(None, True), ("forward", True), ("Torch-Compiled Region: 0/0", False), ("CompiledFunction", False)],
)
def test_what_a_compiled_region_leaves_unfused_is_no_reason_to_compile(
    tmp_path: Path, region: str | None, found: bool
) -> None:
    """Products of 100 µs with three elementwise kernels of 60 behind each, launched within a range or none."""
    events, correlation = [], 0
    for at in range(0, 4000, 400):
        events += [note(at, 60, region)] if region else []
        for place, (start, dur, name) in enumerate(
            [(0, 100, "gemm"), (100, 60, EAGER), (160, 60, EAGER), (220, 60, EAGER)]
        ):
            correlation += 1
            events += [call(at + 5 + 10 * place, 5, correlation), kernel(at + 60 + start, dur, correlation, name)]
    codes = {one["code"] for one in gpuscope.analyze(write(tmp_path / "t.json", *events)).report["findings"]}
    assert ("unfused_kernels" in codes) == found


EAGER = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluFunctor>"


def outcome(peak: int, retries: int = 0, collections: int = 0, failed: int = 0) -> Outcome:
    return Outcome(peak * MIB, 10, retries, collections, failed, 0, 0, 1)


def test_garbage_given_back_counts_as_a_wait() -> None:
    """Collecting avoids the retry by as many cudaFree as a retry makes, and needs more memory than segments that
    grow."""
    grow, collect = Change("expandable_segments", "True", outcome(800, retries=1)), outcome(950, collections=3)
    now = Baseline(outcome(1000, retries=4), outcome(1000), 1000 * MIB, 1000 * MIB, "")
    assert best([Change("garbage_collection_threshold", "0.8", collect), grow], now) == grow


def test_of_what_is_equally_good_segments_that_grow_are_taken() -> None:
    now = Baseline(outcome(1000), outcome(1000), 1000 * MIB, None, "")
    grow, rounded = (
        Change(option, "", outcome(peak))
        for option, peak in (("expandable_segments", 604), ("roundup_power2_divisions", 599))
    )
    assert best([grow, rounded], now) == grow
    less = Change("max_split_size_mb", "64", outcome(500))
    assert best([grow, rounded, less], now) == less
    assert best([Change("expandable_segments", "True", outcome(995))], now) is None


def test_the_setup_is_read_from_the_run_folder(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    ranks = len(gpuscope.analyze(tmp_path, advice=False).report["trace"]["ranks_present"])
    (tmp_path / "manifest.json").write_text(json.dumps({"run_id": "", "status": "completed", "world_size": ranks}))
    (tmp_path / "environment").mkdir()
    for rank in range(ranks):
        told = {
            "versions": {"torch": "2.8.0"},
            "platform": {"affinity": list(range(6)), "cpus": 6},
            "variables": {"NCCL_ALGO": "Ring", "WANDB_API_KEY": "secret", "RANK": str(rank)},
        }
        (tmp_path / f"environment/rank{rank}.json").write_text(json.dumps(told))
    assert gpuscope.analyze(tmp_path, advice=False).report["trace"]["setup"] == {
        "versions": {"cuda runtime": "12.4", "torch": "2.8.0"},
        "variables": {"NCCL_ALGO": "Ring"},
        "cores_per_rank": 6 // ranks,
        "stacks": False,
        "settings": {},
    }


@pytest.mark.parametrize(("world", "gpus", "each"), [(1, 8, 16), (8, 8, 2), (8, 4, 4), (2, 1, 16)])
def test_ranks_that_are_not_at_hand_have_cores_too(tmp_path: Path, world: int, gpus: int, each: int) -> None:
    """16 cores counted in one rank's process, on a host of that many GPUs."""
    header = {
        "deviceProperties": [{"id": number, "name": "NVIDIA A100"} for number in range(gpus)],
        "host_name": "a",
        "gpuscope_cores": {"cores": 16, "columns": ["step", "ran_ns", "waited_ns"], "steps": [[1, 5, 5]]},
    }
    path = write(tmp_path / "t.json", call(0, 5, 1), kernel(10, 50, 1), world_size=world, **header)
    assert gpuscope.analyze(path, advice=False).report["trace"]["setup"]["cores_per_rank"] == each


def test_a_recording_without_a_setup_tells_what_its_header_has(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    found = gpuscope.analyze(tmp_path, advice=False).report["trace"]["setup"]
    assert found == {
        "versions": {"cuda runtime": "12.4"},
        "variables": {},
        "cores_per_rank": None,
        "stacks": False,
        "settings": {},
    }
