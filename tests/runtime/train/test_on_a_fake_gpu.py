"""CUDA graphs and copies of batches on a stand-in for a GPU (`helpers.fake_gpu`): the trainer's own code, and traces in
which the judges of `make gpu-check` see what they look for on a real one."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gpu_check import judges
from gpu_check.judges import NotSeenError
from helpers.fake_gpu import FakeGpu, fake_gpu
from helpers.kineto import write

import gpuscope
from gpuscope.instrumented_runtime.train.faults import parse_faults
from gpuscope.instrumented_runtime.train.mesh import make_dataset, make_loader
from gpuscope.instrumented_runtime.train.parallel.compose import apply_cuda_graphs
from gpuscope.instrumented_runtime.train.settings.config import TrainConfig
from gpuscope.instrumented_runtime.train.settings.sections import from_dict
from gpuscope.instrumented_runtime.train.trainer import Trainer

STEPS = 6


class Block(torch.nn.Module):
    """Products on the GPU; torch can't draw random weights on a device that is not there."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(width, width, device="cuda"))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = x * 2
        return x


class Model(torch.nn.Module):
    """What `apply_cuda_graphs` needs of a GPT: its blocks."""

    def __init__(self, config: TrainConfig) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleDict({str(i): Block(config.model.width) for i in range(config.model.layers)})


def train_blocks(folder: Path, monkeypatch: pytest.MonkeyPatch, *, graphs: bool) -> Path:
    """Blocks forward, step by step, as graphs or not."""
    config = from_dict({}).replace("train", cuda_graph=graphs)
    with fake_gpu(monkeypatch) as gpu, torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # autocast, on a torch without CUDA
        model = Model(config)
        if graphs:
            apply_cuda_graphs(model, config)  # type: ignore[arg-type]
        x = torch.zeros(config.data.batch, config.data.sequence, config.model.width, device="cuda")
        gpu.synchronize()
        gpu.events.clear()
        for step in range(STEPS):
            begin = gpu.now
            for block in model.blocks.values():
                block(x)
            gpu.step(step, begin)
    write(folder / "rank0.json", *gpu.events)
    return folder


def test_each_step_launches_a_graph_per_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = judges.cuda_graphs(train_blocks(tmp_path, monkeypatch, graphs=True))
    assert told.startswith(f"{from_dict({}).model.layers} graph launches per step")


def test_graphs_take_the_launches_from_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def host_ns(name: str, graphs: bool) -> int:
        steps = gpuscope.open_trace(train_blocks(tmp_path / name, monkeypatch, graphs=graphs)).tables["steps"]
        return int((steps["end"] - steps["start"]).median())

    assert host_ns("graphs", True) < host_ns("plain", False) / 5
    with pytest.raises(NotSeenError, match="graph launches by step"):
        judges.cuda_graphs(tmp_path / "plain")


def test_a_graph_can_hold_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """As CUDA refuses it: a block that reads a value on the host can't be captured."""

    class Reads(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (x + 1).mean().item()

    with fake_gpu(monkeypatch), pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        torch.cuda.make_graphed_callables((Reads(),), ((torch.ones(4, device="cuda"),),))  # type: ignore[arg-type]


def copy_batches(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str | None) -> FakeGpu:
    """The trainer's own copies of batches to the device, from what its loader would give it."""
    config = from_dict({}).replace("data", batch=64, sequence=1024)
    if fault:
        config = parse_faults([fault])[0].configure(config, 1)
    pins = make_loader(make_dataset(config), config, 0, 1, pin=True).pin_memory
    with fake_gpu(monkeypatch) as gpu:
        trainer = SimpleNamespace(
            context=SimpleNamespace(step=0),
            faults=(),
            world=SimpleNamespace(device=torch.device("cuda")),
            parallel=SimpleNamespace(positions=None),
            meter=SimpleNamespace(timed=lambda _: nullcontext()),
        )
        weight = torch.ones(64, 64, device="cuda")
        gpu.synchronize()
        gpu.events.clear()
        for step in range(STEPS):
            begin = gpu.now
            batch = torch.zeros(config.data.batch, config.data.sequence + 1, dtype=torch.int64)
            Trainer._batch(trainer, iter([batch.pin_memory() if pins else batch]))  # type: ignore[arg-type]
            for _ in range(20):
                torch.mm(weight, weight)
            gpu.step(step, begin)
    write(folder / "rank0.json", *gpu.events)
    return gpu


def test_batches_are_pinned_and_their_copies_block_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = copy_batches(tmp_path / "pinned", monkeypatch, None)
    assert judges.pinned(tmp_path / "pinned") == f"{STEPS} copies from pinned memory"
    pageable = copy_batches(tmp_path / "pageable", monkeypatch, "pageable_copies")
    with pytest.raises(NotSeenError, match="no copy from pinned memory"):
        judges.pinned(tmp_path / "pageable")

    def longest_copy_call(gpu: FakeGpu) -> float:
        return max(event["dur"] for event in gpu.events if event["name"] == "cudaMemcpyAsync")

    assert longest_copy_call(pinned) < 10 < longest_copy_call(pageable)
