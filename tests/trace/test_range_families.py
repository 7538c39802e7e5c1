"""Steps from ranges that differ by the numbers in their names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.kineto import call, kernel, note, write
from helpers.nsys import Export

import gpuscope

STEP = 1_000


def found(path: Path) -> tuple[list[int], str | None]:
    trace = gpuscope.open_trace(path)
    steps = trace.tables["steps"]
    return steps["step"].tolist(), steps["basis"].iloc[0] if len(steps) else None


def ranges(names: Sequence[str], every: int = STEP, begin: int = 0, tid: int = 1) -> list[Any]:
    return [note(begin + i * every, every - 10, name, tid) for i, name in enumerate(names)]


def launches(count: int, every: int, names: str = "g") -> list[Any]:
    """A launch and its kernel in each slot of `every` µs."""
    return [
        event
        for i in range(count)
        for event in (call(i * every + 20, 2, i + 1), kernel(i * every + 40, every // 2, i + 1, names[i % len(names)]))
    ]


@pytest.mark.parametrize(
    ("names", "steps", "basis"),
    [
        ([f"token_{i}_processing" for i in (7, 8, 9)], [7, 8, 9], "ranges named 'token_#_processing'"),
        # The number that counts is the one that differs.
        ([f"execute_8192_context_{i}" for i in (4, 5, 6)], [4, 5, 6], "ranges named 'execute_#_context_#'"),
        # Batches of equal size recur without coming round.
        (["run_1_0", "run_0_8", "run_0_8", "run_0_8", "run_0_9"], [0, 1, 2, 3, 4], "ranges named 'run_#_#'"),
        # One round is the step, also where the recording begins within one.
        ([f"layer_{i}" for i in (0, 1, 2)] * 3, [0, 1, 2], "rounds of ranges named 'layer_#'"),
        ([f"layer_{i}" for i in (2, 0, 1, 2, 0, 1, 2)], [0, 1], "rounds of ranges named 'layer_#'"),
        # Down again in the backward pass: one round is there and back.
        ([f"layer_{i}" for i in (0, 1, 2, 2, 1, 0)] * 2, [0, 1], "rounds of ranges named 'layer_#'"),
        # A layer is left out once.
        ([f"layer_{i}" for i in (0, 1, 2, 3, 4, 5, 0, 1, 3, 4, 5)], [0, 1], "rounds of ranges named 'layer_#'"),
        # One range repeats, and nothing says whether it is a step or a layer.
        (["block_7"] * 4, [], None),
        # Parts of a step are numbered, too.
        ([f"Forward {i}" for i in range(4)], [], None),
    ],
)
def test_a_family_of_ranges(tmp_path: Path, names: Sequence[str], steps: list[int], basis: str | None) -> None:
    """Each launches a kernel of its own, so that no sequence of kernels repeats."""
    events = launches(len(names), STEP, "abcdefghijklmnopqrstuvwxyz")
    assert found(write(tmp_path / "r.json", *ranges(names), *events)) == (steps, basis)


def test_of_nested_families_the_outermost_with_two_members(tmp_path: Path) -> None:
    """One request of three tokens of four layers."""
    tokens = ranges([f"token_{i}" for i in range(3)], 4 * STEP)
    layers = ranges([f"layer_{i % 4}" for i in range(12)])
    path = write(tmp_path / "r.json", note(0, 12 * STEP, "request_9"), *tokens, *layers, *launches(12, STEP))
    assert found(path) == ([0, 1, 2], "ranges named 'token_#'")


@pytest.mark.parametrize("other", [1, 2])
def test_ranges_that_overlap_or_hold_little_work_are_no_steps(tmp_path: Path, other: int) -> None:
    """Requests in flight together; and ranges of a thread that launches nothing while the other works."""
    overlapping = [note(i * STEP, 2 * STEP, f"request_{i}") for i in range(4)]
    empty = [note(i * STEP + 500, 400, f"poll_{i}", tid=2) for i in range(4)]
    path = write(tmp_path / "r.json", *(overlapping if other == 1 else empty), *launches(4, STEP, "abcd"))
    assert found(path) == ([], None)


def test_a_named_step_comes_first(tmp_path: Path) -> None:
    path = write(
        tmp_path / "r.json", *ranges(["train_step 1", "train_step 2"], 2 * STEP),
        *ranges([f"chunk_{i}" for i in range(4)]), *launches(4, STEP),
    )  # fmt: skip
    assert found(path)[1] == "ranges named 'train_step #'"


def test_sixty_four_tokens_of_an_nsys_report(tmp_path: Path) -> None:
    """64 tokens of 9.9 ms in an NVTX range each, of eight layers that repeat exactly: not 512 steps of a layer."""
    export, token, layer = Export(), 9_900_000, 1_200_000
    for i in range(64):
        export.range(i * token, i * token + 9_800_000, f"token_{i}_processing")
        for j in range(8):
            at = i * token + j * layer
            for part, name in enumerate(("norm", "attn", "mlp")):
                number = 24 * i + 3 * j + part + 1
                export.call(at + part * 100_000, at + part * 100_000 + 5_000, number)
                export.kernel(at + 20_000 + part * 380_000, at + 380_000 + part * 380_000, number, name)
    report = gpuscope.analyze(export.write(tmp_path)).report
    assert report["steps_basis"] == "ranges named 'token_#_processing'"
    whole = [step for step in report["steps"] if step["role"] != "setup"]
    assert len(whole) == 64
    assert {step["dur_ns"] for step in whole[:-1]} == {token}
