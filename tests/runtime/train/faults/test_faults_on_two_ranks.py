"""Faults between two gloo processes, through `gpuscope train`: what its manifest says was injected."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from helpers import needs
from helpers.warm_python import executable

from gpuscope.errors import UsageError
from gpuscope.instrumented_runtime.train.faults.communication import addresses, check_machine, interfaces

STEPS = 4


def train(out: Path, *words: str) -> tuple[int, dict[str, Any]]:
    """Exit status of the run, and each fault's ground truth by name."""
    settings = ["capture.profile=false", "train.device=cpu", "data.sequence=32"]
    call = [executable(), "-c", "from gpuscope.cli import main; main()", "train", "--nproc", "2"]
    call += ["--out", str(out), "--steps", str(STEPS)]
    call += [word for setting in settings for word in ("--set", setting)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*call, *words], env=environment, capture_output=True, text=True, timeout=120, check=False)
    manifest = json.loads((out / "manifest.json").read_text())
    return done.returncode, {truth["fault"]: truth for truth in manifest["faults"]}


def counts(truth: dict[str, Any]) -> list[dict[int, int]]:
    """Per rank, what the ledger counted in each step."""
    return [dict(zip(row["steps"], row["counts"], strict=True)) for row in truth["injected"]]


def test_faults_that_slow_data_parallel_ranks(tmp_path: Path) -> None:
    wanted = ["tiny_buckets:mb=0.001", "slow_rank:ms=1,rotate=2", "uneven_sequences:rank=1,short=0.5"]
    status, truths = train(
        tmp_path / "run", "--parallel", "ddp", *[word for fault in wanted for word in ("--fault", fault)]
    )
    assert status == 0
    # Rank 1 is slow in steps 0 and 1, rank 0 in steps 2 and 3.
    assert counts(truths["slow_rank"]) == [{2: 1, 3: 1}, {0: 1, 1: 1}]
    assert counts(truths["uneven_sequences"]) == [
        dict.fromkeys(range(STEPS), 16),
        dict.fromkeys(range(STEPS), 32),
    ]
    # Every weight matrix fills a bucket: embedding, head, and six in each of two blocks. The norms, smaller
    # than a bucket, each share the next one's.
    assert counts(truths["tiny_buckets"])[0][2] == 2 + 2 * 6


def test_faults_of_a_pipeline(tmp_path: Path) -> None:
    status, truths = train(
        tmp_path / "run", "--parallel", "pp", "--fault", "unbalanced_stage:times=3", "--fault", "few_micro_batches"
    )
    assert status == 0
    assert counts(truths["few_micro_batches"]) == [dict.fromkeys(range(STEPS), 2)] * 2  # 1F1B: one per stage
    (last_stage,) = counts(truths["unbalanced_stage"])
    assert truths["unbalanced_stage"]["ranks"] == [1]
    # One block, two micro-batches, three times more. (Step 0 may also run the model to learn its shapes.)
    assert [last_stage[step] for step in range(1, STEPS)] == [6] * (STEPS - 1)


@pytest.mark.parametrize(
    ("fault", "counted"),
    [
        ("hang:rank=1,step=1", [{1: 1}]),
        ("never_joins:rank=1,step=1", [{1: 1}, {1: 0}]),  # rank 0 came, rank 1 did not
        ("mismatched:kind=size,rank=1,step=1", [{1: 0}, {1: 1}]),
    ],
)
def test_faults_that_end_the_run_are_recorded_first(tmp_path: Path, fault: str, counted: list[dict[int, int]]) -> None:
    status, truths = train(tmp_path / "run", "--parallel", "ddp", "--fault", fault, "--set", "train.timeout_s=6")
    assert status != 0
    (truth,) = truths.values()
    assert truth["ranks"] == [1]
    assert truth["steps"] == {"first": 1, "last": 1, "every": 1}
    assert counts(truth) == counted


def slow_link_missing() -> str:
    try:
        check_machine()
    except UsageError as error:
        return error.message
    # Some containers let root in but not through.
    words = "unshare --net tc qdisc add dev lo root tbf rate 1mbit burst 128kb latency 400ms"
    probe = subprocess.run(words.split(), capture_output=True, check=False)
    return probe.stderr.decode() if probe.returncode else ""


@pytest.mark.skipif(bool(slow_link_missing()), reason=needs.NETWORK_SHAPING)
def test_slow_link_carries_the_gradients(tmp_path: Path) -> None:
    status, truths = train(tmp_path / "run", "--parallel", "ddp", "--fault", "slow_link:mbit=400")
    assert status == 0
    (carried,) = counts(truths["slow_link"])
    # 2 × 128 × 512 weights of embedding and head, 2 × 12 × 128² of the blocks, 5 × 128 of the norms; an
    # all-reduce of two ranks sends and receives each gradient once, and headers come on top.
    gradients = 4 * (2 * 128 * 512 + 2 * 12 * 128**2 + 5 * 128)
    assert list(carried) == list(range(STEPS))
    # The peer may begin a step before us, so only the sum is sharp.
    assert sum(carried.values()) == pytest.approx(STEPS * 2 * gradients, rel=0.15)
    names = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert "gpuscope" not in names


def test_slow_link_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(UsageError, match="needs the command 'ip'"):
        check_machine()


def test_names_fit_what_linux_allows() -> None:
    biggest = "gpuscope4194304"  # the largest process id
    assert all(len(name) <= 15 for name in interfaces(biggest))
    assert addresses("gpuscope65") == ("198.18.1.5", "198.18.1.6")
