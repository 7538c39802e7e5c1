"""Allocator snapshots, on a stand-in for torch.cuda: what is asked of it, and what is written when."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpuscope.instrumented_runtime.record.on_demand import MemorySnapshots
from gpuscope.instrumented_runtime.record.run_folder import RankFolder


class FakeAllocator:
    """Keeps what the capture asked of torch, and its OOM observer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.history: list[Any] = []
        self.observer: Callable[[int, int, int, int], None] | None = None
        monkeypatch.setattr(torch.cuda, "_lazy_call", lambda then: then())  # as where CUDA is in use
        monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda **asked: self.history.append(asked))
        monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": []})
        monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", self._attach, raising=False)

    def _attach(self, observer: Callable[[int, int, int, int], None]) -> None:
        self.observer = observer


def written(folder: RankFolder) -> list[tuple[str, str | None]]:
    return [(entry.path, entry.note) for entry in folder.part.files]


@pytest.fixture
def folder(tmp_path: Path) -> RankFolder:
    return RankFolder.join(tmp_path / "run", rank=1, world_size=2)


def test_out_of_memory_is_written_and_reported(folder: RankFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = FakeAllocator(monkeypatch)
    capture = MemorySnapshots("oom")
    capture.start(folder)
    assert allocator.history[0]["context"] is None  # no stacks: they cost time that a trace would show
    assert allocator.observer is not None
    allocator.observer(0, 4096, 8192, 1024)
    capture.on_demand("demand1")
    capture.stop()
    assert written(folder) == [("memory/rank1_oom.pickle", "oom")]
    assert pickle.loads((folder.path / "memory/rank1_oom.pickle").read_bytes())["segments"] == []
    assert "could not give 4,096 bytes (1,024 free)" in folder.part.problems[0].message
    assert allocator.history[-1] == {"enabled": None}


def test_a_snapshot_that_fails_hides_no_out_of_memory(folder: RankFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = FakeAllocator(monkeypatch)
    MemorySnapshots("oom").start(folder)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", Path("/nowhere/at/all").read_bytes)
    assert allocator.observer is not None
    allocator.observer(0, 4096, 8192, 1024)  # an exception would take the place of torch's
    assert [problem.code for problem in folder.part.problems] == ["out_of_memory", "memory_snapshot_failed"]


def test_on_demand_and_at_the_end(folder: RankFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = FakeAllocator(monkeypatch)
    capture = MemorySnapshots("on")
    capture.start(folder)
    assert allocator.history[0]["context"] == "all"
    capture.on_demand("demand1")
    capture.stop()
    assert written(folder) == [("memory/rank1_demand1.pickle", "demand1"), ("memory/rank1_end.pickle", "end")]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_history_of_the_scripts_own_stays(folder: RankFolder, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    allocator = FakeAllocator(monkeypatch)
    monkeypatch.setattr(torch._C, "_cuda_isHistoryEnabled", lambda: when == "before", raising=False)
    capture = MemorySnapshots("on")
    capture.start(folder)
    begun = len(allocator.history)
    assert begun == (when == "after")
    torch.cuda.memory._record_memory_history(max_entries=7)  # the script's
    capture.stop()
    torch.cuda.memory._record_memory_history(enabled=None)
    assert allocator.history[begun:] == [{"max_entries": 7}, {"enabled": None}]  # ours neither changed nor ended it
    assert written(folder) == [("memory/rank1_end.pickle", "end")]


def test_without_cuda_nothing_is_written(folder: RankFolder) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    capture = MemorySnapshots("on")
    capture.start(folder)
    capture.on_demand("demand1")
    capture.stop()
    assert written(folder) == []


@pytest.mark.parametrize(
    "error", [RuntimeError("pluggable allocator does not yet support recordHistory"), TypeError("context")]
)
def test_an_allocator_without_history_is_no_error_of_the_scripts(
    folder: RankFolder, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """What is raised as CUDA begins becomes a DeferredCudaCallError in the script."""
    FakeAllocator(monkeypatch)

    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", refuse)
    capture = MemorySnapshots("oom")
    capture.start(folder)
    capture.stop()
    (problem,) = folder.part.problems
    assert (problem.code, problem.severity) == ("memory_snapshot_failed", "data_loss")
