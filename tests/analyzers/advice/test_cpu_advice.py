"""Advice on training on a CPU: threads, the optimizer, and DDP's buffers on gloo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.advice import finding, report, steady
from helpers.kineto import note, op, write

import gpuscope
from gpuscope.analyzers.advice.rule import Case
from gpuscope.analyzers.advice.rules import ddp_rules
from gpuscope.analyzers.advice.suggesting import advise
from gpuscope.analyzers.what_if_changes import Change, Refused
from gpuscope.schema.document import Report


def unknown(_: Sequence[Change]) -> Refused:
    return Refused("a test")


def by_hand_or_trial(case: Report) -> dict[str, tuple[str, str]]:
    """Settings without a predicted step, by code."""
    _, advice = advise(case, unknown)
    return {one["code"]: (one["setting"]["name"], one["setting"]["value"]) for one in advice["unpredicted"]}


@pytest.mark.parametrize(
    ("threads", "cores", "ranks", "value"),
    [
        (16, 2, 1, "2"),
        (3, 2, 1, "2"),
        (2, 2, 1, None),
        (None, 2, 1, None),
        (16, None, 1, None),
        (2, 2, 2, "1"),
        (1, 2, 2, None),
        (1, 1, 2, None),
        (4, 2, 4, "1"),
    ],
)
def test_no_more_threads_than_cores(
    tmp_path: Path, threads: int | None, cores: int | None, ranks: int, value: str | None
) -> None:
    """Six steps of 100 ms, half of each without a core; ranks share the cores."""
    steps = [note(number * 100_000, 100_000, f"ProfilerStep#{number}") for number in range(2, 8)]
    busy = [op(number * 100_000, 90_000) for number in range(2, 8)]
    counted: dict[str, Any] = {
        "columns": ["step", "ran_ns", "waited_ns"],
        "steps": [[number, 0, 50_000_000] for number in range(2, 8)],
        "threads": threads,
        "cores": cores,
    }
    for rank in range(ranks):
        info = {"backend": "gloo", "rank": rank, "world_size": ranks}
        write(tmp_path / f"rank{rank}.json", *steps, *busy, rank=None, gpuscope_cores=counted, distributedInfo=info)
    found = gpuscope.analyze(tmp_path).report
    assert found["advice"] is not None
    settings = {one["code"]: one["setting"]["value"] for one in found["advice"]["unpredicted"]}
    assert settings.get("cpu_threads") == value


def optimizing(name: str, share: float, *operators: str, device: int | None = None) -> Report:
    """Two steady steps of which an optimizer takes a share."""
    case = steady(report(finding("host_other")), 1, 2)
    case["ranks"][0]["device"] = device
    whole = case["ranks"][0]["window_ns"]
    spent = round(whole * share)
    case["ranges"] = [{"rank": 0, "name": name, "host_ns": spent, "host_mean_ns": spent // 2}]  # type: ignore[typeddict-item]
    case["operators"] = [{"name": one} for one in operators]  # type: ignore[typeddict-item]
    return case


def test_an_optimizer_of_many_operators_on_a_cpu() -> None:
    adam = "Optimizer.step#AdamW.step"
    fused = ("torch.optim.AdamW.fused", "True")
    assert by_hand_or_trial(optimizing(adam, 0.5, "aten::addcdiv_"))["fused_optimizer"] == fused
    for other in (
        optimizing(adam, 0.05, "aten::addcdiv_"),
        optimizing(adam, 0.5, "aten::_fused_adamw_"),
        optimizing("Optimizer.step#Rprop.step", 0.5, "aten::addcdiv_"),
        optimizing(adam, 0.5, "aten::mul_", device=0),
    ):
        assert "fused_optimizer" not in by_hand_or_trial(other)


def sending(broadcast_ns: int, count: int = 2, framework: str = "ddp") -> Report:
    """Two steady steps whose all-reduces take 100 ms in all."""
    case = steady(report(finding("bandwidth"), frameworks=(framework,)), 1, 2)
    case["collectives"] = [
        {"op": "all_reduce", "count": 2, "bytes": None, "dur_ns": 100_000_000},  # type: ignore[typeddict-item]
        {"op": "broadcast", "count": count, "bytes": None, "dur_ns": broadcast_ns},  # type: ignore[typeddict-item]
    ]
    return case


def test_ddp_sends_its_buffers() -> None:
    def proposed(case: Report) -> list[str]:
        found = ddp_rules.DDP_RULE.propose(Case(case, unknown), case["findings"][0])
        return [one.setting["name"] for one in found if one.code == "broadcast_buffers"]

    assert proposed(sending(60_000_000)) == ["DistributedDataParallel.broadcast_buffers"]
    for other in (sending(10_000_000), sending(60_000_000, count=1), sending(60_000_000, framework="fsdp")):
        assert proposed(other) == []


def test_a_fused_optimizer_saves_no_more_than_the_optimizer_takes() -> None:
    case = optimizing("Optimizer.step#AdamW.step", 0.1, "aten::addcdiv_")
    case["findings"][0] |= {"share_frac": 0.9, "cost_ns_per_step": 1}
    (one,) = (
        one for one in advise(case, lambda _: Refused("a test"))[1]["unpredicted"] if one["code"] == "fused_optimizer"
    )
    assert one["bound"]["step_ns_before"] - one["bound"]["step_ns_low"] == case["ranges"][0]["host_mean_ns"]
