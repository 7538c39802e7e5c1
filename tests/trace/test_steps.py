"""How steps are found, and that the device's steps tile its window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, note, op, write

import gpuscope
from gpuscope.analyzers.base.lanes import views


def found(path: Path) -> tuple[list[int], str | None]:
    trace = gpuscope.open_trace(path)
    steps = trace.tables["steps"]
    return steps["step"].tolist(), steps["basis"].iloc[0] if len(steps) else None


def work(at: int, correlation: int, name: str = "gemm") -> list[Any]:
    """A launch at `at` and its kernel, 10 later and 50 long."""
    return [call(at, 2, correlation), kernel(at + 10, 50, correlation, name=name)]


@pytest.mark.parametrize(
    ("ranges", "steps", "basis"),
    [
        ([note(0, 90, "ProfilerStep#7"), note(100, 90, "ProfilerStep#8")], [7, 8], "ProfilerStep annotations"),
        # Ascend and traces of 2020 record it as an operator.
        ([op(0, 90, "ProfilerStep#7"), op(100, 90, "ProfilerStep#8")], [7, 8], "ProfilerStep annotations"),
        ([note(0, 90, "train_step 3"), note(100, 90, "train_step 4")], [3, 4], "ranges named 'train_step #'"),
        ([note(0, 90, "iteration"), note(100, 90, "iteration")], [0, 1], "ranges named 'iteration'"),
        # Of two names the one that covers more; ranges that overlap each other are no steps.
        (
            [note(0, 90, "step"), note(100, 90, "step"), note(0, 20, "batch"), note(100, 20, "batch")],
            [0, 1],
            "ranges named 'step'",
        ),
        (
            [note(80, 10, "Optimizer.step#AdamW.step"), note(180, 10, "Optimizer.step#AdamW.step")],
            [0, 1],
            "ends of 'Optimizer.step#AdamW.step'",
        ),
        ([note(0, 90, "forward"), note(100, 90, "forward")], [], None),
    ],
)
def test_found_from_annotations(tmp_path: Path, ranges: list[Any], steps: list[int], basis: str | None) -> None:
    path = write(tmp_path / "r.json", *ranges, *work(5, 1), *work(105, 2))
    assert found(path) == (steps, basis)


@pytest.mark.parametrize(
    ("updates", "steps", "basis"),
    [
        # Recording began within a round: what is before the first whole one is no step; the last one is cut.
        ([1, 4, 7], [2, 5, 8], "ProfilerStep annotations, 3 to an optimizer step"),
        ([2, 5, 8], [0, 3, 6], "ProfilerStep annotations, 3 to an optimizer step"),
        (range(9), list(range(9)), "ProfilerStep annotations"),
        # No period that shows.
        ([2, 5], list(range(9)), "ProfilerStep annotations"),
        ([1, 4, 8], list(range(9)), "ProfilerStep annotations"),
    ],
)
def test_accumulated_gradients_make_one_step(tmp_path: Path, updates: list[int], steps: list[int], basis: str) -> None:
    ranges = [note(100 * k, 90, f"ProfilerStep#{k}") for k in range(9)]
    ranges += [note(100 * k + 80, 5, "Optimizer.step#AdamW.step") for k in updates]
    path = write(tmp_path / "r.json", *ranges, *(one for k in range(9) for one in work(100 * k + 5, k + 1)))
    assert found(path) == (steps, basis)


def sequence(tmp_path: Path, names: str) -> Path:
    return write(tmp_path / "r.json", *(kernel(i * 10, 8, name=name) for i, name in enumerate(names)))


def test_found_from_repeating_kernels(tmp_path: Path) -> None:
    """Embedding, two layers, loss; four times."""
    assert found(sequence(tmp_path, "eabcabcl" * 4)) == ([0, 1, 2, 3], "repetition of the kernel sequence")


def test_the_longer_period_that_repeats_more_exactly_is_the_step(tmp_path: Path) -> None:
    """Four passes of ten layers whose pieces all occur in every layer: only the last layer differs in order."""
    assert found(sequence(tmp_path, ("abcd" * 9 + "abdc") * 4))[0] == [0, 1, 2, 3]


def test_a_layer_is_no_step(tmp_path: Path) -> None:
    """One forward pass of twenty layers repeats, but its embedding and head do not."""
    assert found(sequence(tmp_path, "e" + "abcd" * 20 + "h")) == ([], None)


def test_device_steps_tile_the_window(tmp_path: Path) -> None:
    """What ran before the first step stands apart; each step begins with the first kernel launched in it."""
    path = write(
        tmp_path / "r.json",
        *work(-100, 1),
        note(0, 90, "ProfilerStep#1"),
        *work(20, 2),
        note(100, 90, "ProfilerStep#2"),
        *work(130, 3),
        *work(195, 4),
    )
    (view,) = views(gpuscope.open_trace(path))
    tiles = [(step.start // 1000, step.end // 1000) for step in view.steps]
    assert tiles == [(-90, 30), (30, 140), (140, 255)]
    assert [step.step for step in view.steps][1:] == [1, 2]
    assert sum(step.end - step.start for step in view.steps) == view.breakdown.window
