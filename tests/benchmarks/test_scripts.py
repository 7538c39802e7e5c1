"""Times of steps from the hook's files, ratios by round, and the hook itself in a script with two optimizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scripts.cases import CASES, Case
from benchmarks.scripts.environments import ENVIRONMENTS, HOOK
from benchmarks.scripts.measured import ratio, step_ms

GAN = """
import torch
first, second = (torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=0.1) for _ in range(2))
for _ in range(4):
    first.step()
    second.step()
"""


def case(steps: int, updates: int) -> Case:
    return Case("example", "hf", "trl", (), steps, updates=updates)


def test_the_time_of_a_step_is_taken_between_steps_3_and_10(tmp_path: Path) -> None:
    # Two updates per step, half a millisecond apart: steps of 1 ms up to step 2, of 3 ms from step 3 on.
    starts = [0, 1, 2, *range(5, 50, 3)]
    lines = [f"{int(1e6 * start + half)}" for start in starts for half in (0, 5e5)]
    (tmp_path / "1.txt").write_text("\n".join(lines) + "\n")
    assert step_ms(case(18, 2), tmp_path) == 3.0


def test_a_process_with_another_number_of_updates_is_no_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "1.txt").write_text("1\n2\n")
    assert step_ms(case(18, 2), tmp_path) is None
    assert "2 updates, not 18 × 2" in capsys.readouterr().err


def test_a_ratio_is_the_median_of_the_rounds_own() -> None:
    assert ratio([10.0, 20.0, 40.0], [11.0, 20.0, 60.0]) == 1.1
    assert ratio([None], [1.0]) is None


def test_the_hook_notes_every_update(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(HOOK), "STEP_TIMES": str(tmp_path)}
    subprocess.run([sys.executable, "-c", GAN], env=environment, check=True)
    (path,) = tmp_path.glob("*.txt")
    times = [int(line) for line in path.read_text().split()]
    assert len(times) == 8
    assert times == sorted(times)


def test_every_case_has_an_environment_and_a_name_of_its_own() -> None:
    assert len({each.name for each in CASES}) == len(CASES)
    for each in CASES:
        assert each.environment in ENVIRONMENTS
        assert each.steps > 10, "the recorded window is whole"
