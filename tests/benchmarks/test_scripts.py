"""The reading by hand, times of steps from the hook's files, ratios by round, and the hook in a script."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.scripts.cases import CASES, Case
from benchmarks.scripts.environments import ENVIRONMENTS, HOOK
from benchmarks.scripts.measured import ratio, step_ms
from benchmarks.scripts.reading import Reading, read

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


def write_trace(path: Path, events: list[tuple[str, str, int, float, float, dict[str, object]]]) -> None:
    rows = [
        {"ph": "X", "cat": category, "name": name, "tid": thread, "ts": start, "dur": end - start, "args": args}
        for category, name, thread, start, end, args in events
    ]
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": rows}).encode()))


def rank_events(arrives: float) -> list[tuple[str, str, int, float, float, dict[str, object]]]:
    """A step of 10 ms after one that is left out: 2 ms of the loader, operators up to `arrives`, a collective from 1 ms
    before, in a node that waits for it, to 9 ms, and 1 ms of Python."""
    collective = {"Process Group Ranks": "[0, 1]", "Process Group Name": "0", "Seq": 1}
    return [
        ("user_annotation", "ProfilerStep#3", 1, -5e3, 0, {}),
        ("user_annotation", "ProfilerStep#4", 1, 0, 10e3, {}),
        ("user_annotation", "enumerate(DataLoader)#_Single.__next__", 1, 0, 2e3, {}),
        ("cpu_op", "aten::stack", 1, 500, 1e3, {}),
        ("cpu_op", "MmBackward0", 1, 2e3, arrives, {}),
        ("cpu_op", "aten::mm", 1, 2e3, arrives - 1e3, {}),
        ("cpu_op", "c10d::allreduce_", 1, arrives, 9e3, {}),
        ("user_annotation", "gloo:all_reduce", 2, arrives - 1e3, 9e3, collective),
    ]


def test_a_reading_tells_loader_waiting_transfer_and_python(tmp_path: Path) -> None:
    for rank, arrives in enumerate((4e3, 8e3)):
        write_trace(tmp_path / f"rank{rank}.json.gz", rank_events(arrives))
    found = read(list(tmp_path.glob("*.gz")))
    # Rank 0 is in the collective from 3 to 9 ms and alone in it for 4 of them; rank 1 from 7 to 9 ms.
    assert (found.loader, found.waiting, found.transfer) == pytest.approx((0.2, 0.2, 0.2))
    assert found.python == pytest.approx(0.1)
    assert str(Reading(0.42, 0.0, 0.004, 0.1)) == "loader 42 %, Python 10 %"


@pytest.mark.parametrize(
    ("verdict", "reading", "right"),
    [
        ("cpu/input", Reading(0.4, 0.0, 0.0, 0.1), "yes"),
        ("cpu/host_other", Reading(0.4, 0.0, 0.0, 0.1), "class"),
        ("cpu/host_other", Reading(0.21, 0.0, 0.0, 0.2), "edge"),
        ("communication/bandwidth", Reading(0.0, 0.0, 0.3, 0.1), "yes"),
        ("communication/open", Reading(0.0, 0.0, 0.3, 0.1), "class"),
        ("communication/bandwidth", Reading(0.3, 0.0, 0.1, 0.1), "no"),
        ("compute", Reading(0.0, 0.0, 0.02, 0.05), "yes"),
        ("compute", Reading(0.0, 0.0, 0.02, 0.12), "edge"),
        ("compute", Reading(0.0, 0.0, 0.02, 0.2), "no"),
        ("cpu/host_other", Reading(0.0, 0.0, 0.02, 0.09), "edge"),
        ("cpu/host_other", Reading(0.0, 0.0, 0.02, 0.02), "no"),
        ("none", Reading(0.0, 0.0, 0.2, 0.2), "no"),
    ],
)
def test_a_verdict_is_judged_by_the_reading(verdict: str, reading: Reading, right: str) -> None:
    assert reading.judge(verdict) == right
