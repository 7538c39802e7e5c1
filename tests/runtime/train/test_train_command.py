"""`gpuscope train` as a user calls it: what it leaves behind, and what it says when it can't."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.warm_python import executable

from gpuscope import analyze

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("train")

Trained = Callable[[str], Path]
STEPS, RECORDED = 4, 2
SHORT = ["--steps", str(STEPS), "--set", "data.sequence=32", "--set", "train.device=cpu"]
SHORT += ["--set", "capture.wait=1", "--set", "capture.warmup=1", "--set", f"capture.active={RECORDED}"]
PARALLEL = {
    "single": 1,
    "ddp": 2,
    "zero1": 2,
    "zero2": 2,
    "fsdp": 2,
    "hsdp": 4,
    "tp": 2,
    "pp": 2,
    "cp": 2,
    "ep": 2,
    "pp=2+tp=2+fsdp": 4,
}


def gpuscope(*words: str) -> subprocess.CompletedProcess[str]:
    call = [executable(), "-c", "from gpuscope.cli import main; main()", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(call, env=environment, capture_output=True, text=True, timeout=200, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A run folder of a parallelism; recorded once."""

    @cache
    def record(parallel: str) -> Path:
        out = tmp_path_factory.mktemp("runs") / parallel
        preset = "tiny-moe" if parallel == "ep" else "tiny"
        words = ["--parallel", parallel, "--nproc", str(PARALLEL[parallel]), "--preset", preset, "--out", str(out)]
        done = gpuscope("train", *words, *SHORT)  # as a user starts it: tests/package/test_installed.py
        assert done.returncode == 0, done.stderr[-3000:]
        return out

    return record


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("parallel", PARALLEL)
def test_each_parallelism_leaves_a_run_that_can_be_analysed(trained: Trained, parallel: str) -> None:
    run, ranks = trained(parallel), list(range(PARALLEL[parallel]))
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["world_size"], manifest["faults"]) == ("completed", len(ranks), [])
    assert [len(lines(run / "measures" / f"rank{rank}.jsonl")) for rank in ranks] == [STEPS] * len(ranks)
    report = analyze(run, advice=False).report
    assert report["trace"]["ranks_present"] == ranks
    assert [rank["steps"] for rank in report["ranks"]] == [RECORDED] * len(ranks)


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        ("ddp", {"data", "forward", "backward", "optimizer"}),
        ("cp", {"ring_attention"}),
        ("ep", {"all_to_all"}),
        ("pp", {"forward#micro_batch=3,stage=1", "recv_forward#micro_batch=3,stage=1"}),
    ],
)
def test_the_trace_holds_the_ranges(trained: Trained, parallel: str, expected: set[str]) -> None:
    with gzip.open(trained(parallel) / "rank1.json.gz", "rt") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"] if "name" in event}
    assert expected <= {name.removeprefix("gpuscope::") for name in names if name.startswith("gpuscope::")}


def test_measures_of_a_step(trained: Trained) -> None:
    records = lines(trained("ddp") / "measures" / "rank1.jsonl")
    last = records[-1]
    assert [record["step"] for record in records] == [0, 1, 2, 3]
    assert (last["rank"], last["first"], records[0]["first"]) == (1, False, True)
    assert last["tokens"] == 2 * 8 * 32  # ranks × batch × sequence
    assert last["tokens_per_s"] == pytest.approx(512 / last["step_ns"] * 1e9)
    assert 0 < last["data_wait_ns"] < last["step_ns"]
    assert 0 <= last["exposed_communication_ns"] < last["step_ns"]
    assert 0 < last["goodput"] <= 1
    assert last["mfu"] is None  # a CPU's peak is unknown


FOUR_LAYERS = ("--set", "model.layers=4")
MEASURED = {
    "ddp": ("ddp",),
    "zero bubble": ("pp", "--set", "pipeline.schedule=zbv", *FOUR_LAYERS),
    "ep": ("ep", "--preset", "tiny-moe"),
}


@pytest.mark.parametrize("words", MEASURED.values(), ids=MEASURED)
def test_exposed_communication_is_what_the_analysis_finds(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Rank 1 is 80 ms late in every second step. What the runtime measures says of each step of rank 0 what its trace
    says, to less than half of that; and over all steps, of each rank, to a tenth of the time. Time without a core can
    pass on either side of a collective's begin: it is allowed for."""
    out = tmp_path / "run"
    more = ["--steps", "9", "--set", "capture.active=6", "--fault", "slow_rank:ms=80,every=2"]
    done = gpuscope("train", "--parallel", words[0], "--nproc", "2", *SHORT[2:], *more, *words[1:], "--out", str(out))
    assert done.returncode == 0, done.stderr[-3000:]
    told = analyze(out, advice=False).report["steps"]
    for rank in (0, 1):
        records = {one["step"]: one for one in lines(out / f"measures/rank{rank}.jsonl")}
        own = [row for row in told if row["rank"] == rank and row["step"] in records]
        without_core = waits_for_cores(out / f"rank{rank}.json.gz")
        found = [row["breakdown_ns"]["exposed_communication"] for row in own]
        measured = [records[row["step"]]["exposed_communication_ns"] for row in own]
        waited = [without_core.get(row["step"], 0) for row in own]
        assert len(own) >= 5
        time = sum(records[row["step"]]["step_ns"] for row in own)
        assert abs(sum(found) - sum(measured)) < 0.1 * time + sum(waited)
        if rank == 0:
            apart = [abs(one - other) - more for one, other, more in zip(found, measured, waited, strict=True)]
            assert max(apart) < 40e6
            assert max(found) > 40e6


def waits_for_cores(trace: Path) -> dict[int, int]:
    """Per step, ns that the training thread was ready to run and had no core."""
    with gzip.open(trace, "rt") as file:
        counted = json.load(file).get("gpuscope_cores", {"columns": [], "steps": []})
    rows = [dict(zip(counted["columns"], row, strict=True)) for row in counted["steps"]]
    return {row["step"]: row["waited_ns"] or 0 for row in rows}


@pytest.mark.parametrize("parallel", ["zero1", "fsdp", "tp", "cp"])
def test_exposed_communication_that_only_a_trace_can_tell_is_left_out(trained: Trained, parallel: str) -> None:
    records = lines(trained(parallel) / "measures" / "rank0.jsonl")
    assert {record["exposed_communication_ns"] for record in records} == {None}


def test_checkpoints_and_resuming(tmp_path: Path) -> None:
    words = ["train", "--parallel", "ddp", "--nproc", "2", *SHORT[:6], "--set", "capture.profile=false"]
    first = gpuscope(*words, "--out", str(tmp_path / "first"), "--set", "checkpoint.every=3")
    assert first.returncode == 0, first.stderr[-3000:]
    second = gpuscope(*words, "--out", str(tmp_path / "second"), "--resume", str(tmp_path / "first"), "--steps", "6")
    assert second.returncode == 0, second.stderr[-3000:]
    records = lines(tmp_path / "second" / "measures" / "rank0.jsonl")
    assert [record["step"] for record in records] == [4, 5]


def test_power_sgd_compresses_several_buckets_on_gloo(tmp_path: Path) -> None:
    """From step 3 on; in plain torch the buckets' collectives meet in different orders, and gloo ends the processes."""
    hook = ["--set", "ddp.comm_hook=powersgd", "--set", "ddp.bucket_cap_mb=0.1", "--set", "capture.profile=false"]
    words = ["train", "--parallel", "ddp", "--nproc", "2", "--steps", "6", *SHORT[2:6], *hook]
    done = gpuscope(*words, "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_rank_that_fails(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("fewer bytes than one sequence")
    run = tmp_path / "run"
    done = gpuscope(
        "train", "--parallel", "ddp", "--nproc", "2", "--out", str(run), "--set", f"data.path={text}", *SHORT
    )
    assert done.returncode == 4
    assert "the training failed: rank" in done.stderr
    manifest = json.loads((run / "manifest.json").read_text())
    assert manifest["status"] == "failed"
    assert "fewer than one sequence" in manifest["ranks"][0]["error"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--parallel", "tp", "--nproc", "3"], 2, "model.heads: 4 is not a multiple of parallel.tp=3"),
        (["--parallel", "fddp"], 2, "no parallelism 'fddp'"),
        (["--preset", "huge"], 2, "no preset 'huge'"),
        (["--set", "train.stepz=3"], 2, "did you mean train.steps"),
        (["--fault", "slow_everything"], 2, "no fault 'slow_everything'"),
        (
            ["--parallel", "ddp", "--nproc", "2", "--set", "ddp.comm_hook=bf16", "--set", "train.device=cpu"],
            2,
            "bf16 hook needs a GPU",
        ),
        (["--resume", "nowhere"], 3, "holds no complete checkpoint"),
    ],
)
def test_what_can_not_be_meant_starts_nothing(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    done = gpuscope("train", "--out", str(tmp_path / "run"), *words)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert said in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = gpuscope("train", "--out", str(tmp_path))
    assert (done.returncode, "exists already" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_sigterm_ends_every_process(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ["train", "--parallel", "ddp", "--nproc", "2", "--out", str(run), *SHORT, "--fault", "hang:step=1"]
    job = subprocess.Popen([executable(), "-c", "from gpuscope.cli import main; main()", *words])
    measured = [run / f"measures/rank{rank}.jsonl" for rank in (0, 1)]
    deadline = time.monotonic() + 90
    while not all(path.exists() and path.stat().st_size for path in measured) and time.monotonic() < deadline:
        time.sleep(0.1)
    job.terminate()
    assert job.wait(timeout=90) == 143
    manifest = json.loads((run / "manifest.json").read_text())
    assert (manifest["status"], manifest["exit_code"]) == ("interrupted", 143)
    for rank in manifest["ranks"]:
        with pytest.raises(ProcessLookupError):
            os.kill(rank["pid"], 0)
