"""Advice that would be wrong for the recorded software or machine: other versions, other classes, too few cores."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.advice import finding, host_calls, report, steady
from simulator.catalogue import TINY
from simulator.judged import Case as SimulatedJob

import gpuscope
from gpuscope.analyzers.advice.rule import Case, Proposal
from gpuscope.analyzers.advice.rules.compute import kernel_rules
from gpuscope.analyzers.advice.rules.host import loader_rules
from gpuscope.analyzers.advice.rules.memory import allocator_call_rules
from gpuscope.analyzers.advice.settings.torch_optimizers import FOREACH, FUSED
from gpuscope.analyzers.allocator.allocator_replay import Outcome
from gpuscope.analyzers.allocator.other_settings import Baseline, Change, best
from gpuscope.analyzers.changes import Predicted
from gpuscope.schema.document import Report

MIB = 1 << 20
RUN = SimulatedJob(TINY, "")
OLD, NEW = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


def gains(_: Sequence[object]) -> Predicted:
    return Predicted(100, 40, 40, 40, "a test")


def on(asked: Report, torch: str = "", cores: int | None = None, **variables: str) -> Case:
    versions = {"torch": torch} if torch else {}
    asked["trace"]["setup"] = {"versions": versions, "variables": variables, "cores_per_rank": cores}
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
    return list(kernel_rules.propose(on(asked, torch), finding("optimizer_passes")))


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


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 2), (5, 4), (None, 16)])
def test_no_more_workers_than_cores(cores: int | None, most: int) -> None:
    case = on(report(finding("input")), "", cores)
    found = list(loader_rules.propose(case, finding("input")))
    assert [int(one.setting["value"]) for one in found] == [n for n in (1, 2, 4, 8, 16) if n <= most]
    said = found[-1].says("risk")
    assert ("not recorded" in said) == (cores is None)
    assert cores is None or f"{cores} CPU core" in said


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
        Change(option, "", outcome(peak)) for option, peak in
        (("expandable_segments", 604), ("roundup_power2_divisions", 599))
    )  # fmt: skip
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
            "versions": {"torch": "2.8.0"}, "platform": {"affinity": list(range(6)), "cpus": 6},
            "variables": {"NCCL_ALGO": "Ring", "WANDB_API_KEY": "secret", "RANK": str(rank)},
        }  # fmt: skip
        (tmp_path / f"environment/rank{rank}.json").write_text(json.dumps(told))
    assert gpuscope.analyze(tmp_path, advice=False).report["trace"]["setup"] == {
        "versions": {"torch": "2.8.0"}, "variables": {"NCCL_ALGO": "Ring"}, "cores_per_rank": 6 // ranks,
    }  # fmt: skip


def test_a_recording_without_a_setup_says_so(tmp_path: Path) -> None:
    RUN.write(tmp_path)
    found = gpuscope.analyze(tmp_path, advice=False).report["trace"]["setup"]
    assert found == {"versions": {}, "variables": {}, "cores_per_rank": None}
