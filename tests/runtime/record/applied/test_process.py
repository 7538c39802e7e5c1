"""Settings of the whole process, and the facts that every recording notes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from runtime.record.applied.conftest import Job, refusals, times, values

SCRIPT = """
import gc, time
import torch

torch.set_float32_matmul_precision("highest")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
collected, states = [], []
gc.callbacks.append(lambda phase, info: phase == "start" and collected.append((step, info["generation"])))
for step in range(13):
    for micro in range(2):
        model(torch.ones(4, 4)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    states.append(gc.isenabled())
    time.sleep(0.02)
tell(precision=torch.get_float32_matmul_precision(), threads=torch.get_num_threads(), gc=states, collected=collected,
     frozen=gc.get_freeze_count() > 0, environment={name: os.environ.get(name) for name in
     ("NCCL_ALGO", "NCCL_PROTO", "OMP_NUM_THREADS")})
"""


def test_the_precision_of_products_stays_what_is_asked_for(job: Job) -> None:
    before = job(SCRIPT)
    changed = job(SCRIPT, "torch.float32_matmul_precision=high", options=("--allow", "tf32"))
    assert [one.told[0]["precision"] for one in (before, changed)] == ["highest", "high"]
    assert values(changed, "torch.float32_matmul_precision") == ["high"]
    assert values(before, "torch.float32_matmul_precision") == ["highest"]


@pytest.mark.parametrize(("mode", "collected"), [("every:5", [[5, 1], [10, 1]]), ("off", [])])
def test_garbage_is_collected_every_so_many_steps_or_never(job: Job, mode: str, collected: list[list[int]]) -> None:
    told = job(SCRIPT, f"gc.mode={mode}").told[0]
    assert (told["gc"], told["frozen"]) == ([False] * 13, True)
    assert [one for one in told["collected"] if one[0] > 0] == collected


def test_what_the_script_made_is_no_longer_looked_through(job: Job) -> None:
    before, changed = job(SCRIPT), job(SCRIPT, "gc.mode=freeze")
    assert (changed.told[0]["gc"], changed.told[0]["frozen"]) == ([True] * 13, True)
    assert values(changed, "gc.frozen") == ["true"]
    assert values(before, "gc.enabled") == ["true"]


def test_threads(job: Job) -> None:
    before, changed = job(SCRIPT), job(SCRIPT, "cpu.threads=2")
    assert (before.told[0]["threads"], changed.told[0]["threads"]) == (1, 2)
    assert changed.told[0]["environment"]["OMP_NUM_THREADS"] == "2"
    assert values(changed, "cpu.threads") == ["2"]


def test_variables_are_set_and_taken_out(job: Job) -> None:
    changed = job(SCRIPT, "env.NCCL_ALGO=Tree", "env.NCCL_PROTO=unset", NCCL_PROTO="LL")
    assert (changed.told[0]["environment"]["NCCL_ALGO"], changed.told[0]["environment"]["NCCL_PROTO"]) == ("Tree", None)
    assert (times(changed, "env.NCCL_ALGO"), times(changed, "env.NCCL_PROTO")) == (1, 1)
    assert values(changed, "env.NCCL_ALGO") == ["Tree"]
    assert not any("run1" in row["value"] for rows in changed.facts[0]["settings"].values() for row in rows)


def test_losses_of_accumulated_gradients_are_added_and_steps_timed(job: Job) -> None:
    started = time.perf_counter_ns()
    facts = job(SCRIPT.replace(".mean().backward()", ".mul(0).add(1.5).mean().backward()")).facts[0]
    assert facts["losses"] == [3.0] * 13
    assert len(facts["step_ns"]) == 12
    assert all(ns >= 20_000_000 for ns in facts["step_ns"])
    assert sum(facts["step_ns"]) < time.perf_counter_ns() - started


def test_a_change_that_nothing_takes_is_told(job: Job) -> None:
    changed = job(SCRIPT, "dataloader.num_workers=2")
    assert "dataloader.num_workers=2 was not applied: the script made nothing that takes it" in changed.err
    assert refusals(changed, "dataloader.num_workers") == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--set", "ddp.bucket_cap=5"), "did you mean ddp.bucket_cap_mb?"),
        (("--set", "ddp.bucket_cap_mb=large"), "ddp.bucket_cap_mb takes MiB"),
        (("--set", "torch.float32_matmul_precision=high"), "add --allow tf32"),
        (("--set", "env.LD_PRELOAD=x.so"), "LD_PRELOAD is no variable that may be set so"),
        (("--set", "env.CUDA_VISIBLE_DEVICES=0"), "CUDA_VISIBLE_DEVICES is no variable"),
        (("--set", "gc.mode"), "is no change"),
        (("--set", "gc.mode=off", "--set", "gc.mode=freeze"), "gc.mode is set twice"),
        (("--allow", "tf16"), "there is no group 'tf16' to allow"),
    ],
)
def test_wrong_changes_are_refused_before_anything_runs(
    record: Callable[..., SimpleNamespace], tmp_path: Path, words: tuple[str, ...], told: str
) -> None:
    done = record(*words, "--", "touch", tmp_path / "ran")
    assert done.code == 2
    assert told in done.err
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "run").exists()
