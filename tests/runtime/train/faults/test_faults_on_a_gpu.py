"""The faults that only a GPU shows, on a stand-in for one (`helpers.fake_gpu`): the analysis finds what each does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.collectives import collective
from helpers.fake_gpu import FakeGpu, fake_gpu
from helpers.kineto import write

import gpuscope
from gpuscope.instrumented_runtime.train.faults import Fault, StepContext, parse_faults
from gpuscope.instrumented_runtime.train.settings.sections import from_dict

STEPS, BLOCKS, PRODUCTS = 8, 8, 12


class Block(torch.nn.Module):
    """Products on the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(64, 64, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(PRODUCTS):
            x = torch.mm(x, self.weight)
        return x


class Rank:
    """One process that trains on a fake GPU, step by step."""

    def __init__(self, gpu: FakeGpu, fault: Fault | None, number: int, size: int) -> None:
        self.fault = fault
        self.blocks = [Block() for _ in range(BLOCKS)]
        self.context = StepContext(number, size, torch.device("cuda"), from_dict({}), parts=[*self.blocks])
        self.x = torch.ones(64, 64, device="cuda")
        if fault is not None:
            fault.on_model(self.context)
        gpu.synchronize()
        gpu.events.clear()  # the recording begins here

    def step(self, number: int) -> None:
        self.context.step = number
        if self.fault is not None:
            self.fault.before_forward(self.context)
        for block in self.blocks:
            block(self.x)


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, *ranks: bool) -> dict[str, Any]:
    """The report on ranks of which each has the fault, or not."""
    fault = parse_faults([text])[0] if text else None
    monkeypatch.setattr("gpuscope.instrumented_runtime.train.faults.burn.Block", Block)
    gpus = []
    for number, faulty in enumerate(ranks):
        with fake_gpu(monkeypatch) as gpu:
            rank = Rank(gpu, fault if faulty else None, number, len(ranks))
            gpus.append((gpu, rank))
    begun = [gpu.now for gpu, _ in gpus]
    for number in range(STEPS):
        for gpu, rank in gpus:
            with fake_gpu(monkeypatch, gpu):
                rank.step(number)
        arrived = [max(gpu.free, gpu.now) for gpu, _ in gpus]
        for place, (gpu, _) in enumerate(gpus):
            if len(gpus) > 1:
                gpu.events.append(collective(arrived[place], max(arrived) + 50 - arrived[place], 1 << 20, number))
                gpu.free = max(arrived) + 50
            gpu.step(number, begun[place])
            begun[place] = gpu.now
    for place, (gpu, _) in enumerate(gpus):
        write(folder / f"rank{place}.json", *gpu.events, rank=place, world_size=len(gpus))
    return dict(gpuscope.analyze(folder, advice=False).report)


def test_without_a_fault_the_device_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = record(tmp_path, monkeypatch, "", False)["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == ("compute", None)


@pytest.mark.parametrize("text", ["sync_in_loop:times=8", "launch_bound", "pageable_copies", "allocator_churn"])
def test_the_verdict_is_the_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    truth = parse_faults([text])[0]
    verdict = record(tmp_path, monkeypatch, text, True)["verdict"]
    assert (verdict["bound_by"], verdict["cause"]) == (truth.bound_by, truth.cause)


def test_a_rank_whose_device_is_busy_with_more_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 ms of products on rank 1, enqueued without waiting for them: its host goes on, its device is late."""
    report = record(tmp_path, monkeypatch, "slow_rank:ms=5", False, True)
    assert (report["verdict"]["bound_by"], report["verdict"]["cause"]) == ("communication", "straggler")
    (late,) = [one for one in report["stragglers"] if one["recurrent"]]
    assert (late["rank"], late["reason"]) == (1, "data")
    assert late["caused_wait_ns_per_step"] == pytest.approx(5e6, rel=0.1)
