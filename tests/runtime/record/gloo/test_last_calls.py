"""What ranks called last, told after they have died of it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gpuscope.analyzers.run.runner import analyze
from gpuscope.instrumented_runtime.record.collective_log import CollectiveLog, Group
from gpuscope.instrumented_runtime.record.nvml_samples import mismatch, page

RECORD = (sys.executable, "-c", "from gpuscope.cli import main; main()", "record")
WORLD = Group("0", "default_pg", (0, 1, 2))


def call(parts: Path, rank: int, *calls: tuple[str, int]) -> None:
    log = CollectiveLog(page=page(parts, rank))
    for op, elements in calls:
        log.issue(op, WORLD, torch.ones(elements), (), None)


def test_other_sizes_and_operations_are_told(tmp_path: Path) -> None:
    for rank, size in enumerate((100, 150, 100)):
        call(tmp_path, rank, ("broadcast", 8), ("all_reduce", size))
    found = mismatch(tmp_path)
    assert found is not None
    assert (sorted(found.calls), found.calls[1].sizes_in) == ([0, 1, 2], [[150]])
    assert found.told == (
        "the ranks called different things as number 2 of group default_pg: "
        "ranks 0, 2 called all_reduce of 100 float32, rank 1 called all_reduce of 150 float32"
    )
    assert not list(tmp_path.iterdir())


def test_the_same_calls_and_uneven_exchanges_are_no_mismatch(tmp_path: Path) -> None:
    call(tmp_path, 0, ("all_to_all", 100))
    call(tmp_path, 1, ("all_to_all", 300))
    assert mismatch(tmp_path) is None
    call(tmp_path, 0, ("all_reduce", 100))
    call(tmp_path, 1, ("all_reduce", 100), ("all_reduce", 7))  # one is ahead
    assert mismatch(tmp_path) is None


def test_a_killed_process_leaves_its_last_call(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        call(tmp_path, 0, ("all_reduce", 5))
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    call(tmp_path, 1, ("all_reduce", 6))
    found = mismatch(tmp_path)
    assert found is not None
    assert "rank 0 called all_reduce of 5 float32, rank 1 called all_reduce of 6" in found.told


def test_a_call_of_too_many_ranks_and_tensors_for_its_file(tmp_path: Path) -> None:
    world = Group("0", "default_pg", tuple(range(2000)))
    for rank, tensors in enumerate((500, 501)):
        log = CollectiveLog(page=page(tmp_path, rank))
        log.issue("all_reduce", world, [torch.ones(7) for _ in range(tensors)], (), None)
    found = mismatch(tmp_path)
    assert found is not None
    assert "rank 0 called all_reduce of 3,500 float32, rank 1 called all_reduce of 3,507" in found.told


MISMATCHED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
for _ in range(3):
    dist.all_reduce(torch.ones(8))
dist.all_reduce(torch.ones(100 + 50 * dist.get_rank()))
"""


@pytest.mark.xdist_group("mismatch")
def test_record_names_the_sizes_that_gloo_dies_of(
    record: Callable[..., SimpleNamespace], torchrun: tuple[str, ...], tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text(MISMATCHED)
    done = record("--", *torchrun, script)
    assert done.code != 0
    told = [one["message"] for one in done.manifest["problems"] if one["code"] == "mismatched_calls"]
    assert told == [
        "the ranks called different things as number 4 of group default_pg: "
        "rank 0 called all_reduce of 100 float32, rank 1 called all_reduce of 150 float32"
    ]
    assert f"gpuscope: {told[0]}" in done.err
    # What was told stays: `hang` and `analyze` read the same from the ranks' last calls.
    report = analyze(done.folder).report
    assert {(one["seq"], one["what"]) for one in report["hang"]["mismatches"]} == {(4, "size")}


STUCK = """
import os, pathlib, signal, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(8))
if dist.get_rank():
    dist.all_gather([torch.ones(8), torch.ones(8)], torch.ones(8), async_op=True)
else:
    dist.all_reduce(torch.ones(8), async_op=True)
    time.sleep(0.5)
    os.kill(int(os.environ["RECORDER"]), signal.SIGTERM)
time.sleep(600)
"""


@pytest.mark.xdist_group("mismatch")
def test_a_job_stuck_in_a_mismatch_and_interrupted_names_it(torchrun: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STUCK)
    words = " ".join(map(shlex.quote, [*RECORD, "-o", "run", "--grace", "1", "--", *torchrun, "train.py"]))
    command = ["sh", "-c", f"RECORDER=$$ exec {words}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 143, done.stderr
    assert (
        "as number 2 of group default_pg: rank 0 called all_reduce of 8 float32, rank 1 called all_gather"
        in done.stderr
    )
    problems = analyze(tmp_path / "run").report["problems"]
    assert any("called different things as number 2" in one["message"] for one in problems)
