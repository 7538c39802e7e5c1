"""`gpuscope record` on unmodified scripts, and on what can go wrong with them."""

from __future__ import annotations

import gzip
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.analyzers.watching.measures import RunWatcher
from gpuscope.sources.opening import inputs
from gpuscope.sources.source import left_out

Run = Callable[..., SimpleNamespace]
GPUSCOPE = (sys.executable, "-c", "from gpuscope.cli import main; main()")
RECORD = (*GPUSCOPE, "record")


def trace_of(folder: Path, rank: int) -> dict[str, Any]:
    trace: dict[str, Any] = json.loads(gzip.decompress((folder / f"rank{rank}.json.gz").read_bytes()))
    return trace


def kinds(manifest: dict[str, Any], rank: int) -> set[str]:
    return {entry["kind"] for entry in manifest["files"] if entry["rank"] == rank}


@pytest.mark.xdist_group("healthy_run")
def test_an_unchanged_script_on_two_ranks(healthy_run: SimpleNamespace) -> None:
    done = healthy_run
    assert done.out.count("done") == 2  # what the script prints is untouched
    manifest = done.manifest
    assert (manifest["status"], manifest["world_size"], manifest["backend"]) == ("completed", 2, "gloo")
    assert manifest["command"][-1] == str(done.script)
    assert [rank["status"] for rank in manifest["ranks"]] == ["completed", "completed"]
    for rank in (0, 1):
        wanted = {"torch_profiler", "collectives", "flight_recorder", "environment", "steps"}
        assert kinds(manifest, rank) == wanted
        trace = trace_of(done.folder, rank)
        assert trace["distributedInfo"]["rank"] == rank
        steps = {e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")}
        assert steps == {"ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"}  # one skipped, one warm-up
    assert all((done.folder / entry["path"]).stat().st_size == entry["bytes"] for entry in manifest["files"])
    seen = RunWatcher(done.folder).look()  # what `gpuscope watch` shows of it
    assert {rank: sorted(steps) for rank, steps in seen.steps.items()} == {0: list(range(10)), 1: list(range(10))}


@pytest.mark.xdist_group("healthy_run")
def test_gloo_annotations_say_what_they_are(healthy_run: SimpleNamespace) -> None:
    events = [trace_of(healthy_run.folder, rank)["traceEvents"] for rank in (0, 1)]
    reduces = [[e["args"] for e in rank if e["name"] == "gloo:all_reduce"] for rank in events]
    # One bucket, of 64 × 64 weights and 64 biases, in each of three steps.
    assert [[args["In msg nelems"] for args in rank] for rank in reduces] == [[4160] * 3] * 2
    seqs = [sorted(args["Seq"] for args in rank) for rank in reduces]
    assert seqs[0] == seqs[1]
    assert len(set(seqs[0])) == 3
    assert {args["Process Group Ranks"] for rank in reduces for args in rank} == {"[0, 1]"}


@pytest.mark.parametrize(
    ("fail", "status", "error"),
    [("exception", "failed", "RuntimeError: boom"), ("kill", "killed", None)],
)
def test_a_rank_that_ends_badly_leaves_the_folder_readable(
    record: Run, torchrun: tuple[str, ...], ddp_script: Path, fail: str, status: str, error: str | None
) -> None:
    done = record("--wait", "1", "--active", "20", "--", *torchrun, ddp_script, FAIL=fail)
    assert done.code == 1
    assert done.manifest["status"] == "failed"
    assert [done.manifest["ranks"][1][key] for key in ("status", "error")] == [status, error]
    assert f"rank 1 {status}" in done.err
    assert ("boom" in done.err) == (fail == "exception")
    # The other rank's trace holds the steps up to there; what a rank could not write is not half there.
    assert any(e["name"] == "ProfilerStep#5" for e in trace_of(done.folder, 0)["traceEvents"])
    assert not list(done.folder.rglob("*.partial"))
    assert (done.folder / "collectives/rank1.jsonl").read_text().count("\n") > 5


def _heed_ctrl_c() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_ends_in_a_readable_folder(tmp_path: Path, torchrun: tuple[str, ...], ddp_script: Path) -> None:
    command = [*RECORD, "-o", "run", "--wait", "1", "--", *torchrun, ddp_script]
    environment = {**os.environ, "FAIL": "wait", "OMP_NUM_THREADS": "1"}
    # A terminal sends Ctrl-C to the whole process group. Where the tests themselves run in the background of a
    # shell, Ctrl-C is ignored and children would inherit that.
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_ctrl_c,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert manifest["status"] == "interrupted"
    assert {rank["status"] for rank in manifest["ranks"]} <= {"interrupted", "failed"}
    assert all((tmp_path / "run" / entry["path"]).exists() for entry in manifest["files"])


STOPPED = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
try:
    for step in range(1000):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
finally:
    print("cleaned up after", step + 1)
"""


def test_a_job_is_ended_after_so_many_steps(record: Run, python: str, tmp_path: Path) -> None:
    """By an exception, so that the script's own clean-up runs; the recording is complete."""
    (tmp_path / "train.py").write_text(STOPPED)
    done = record("--profiler", "none", "--stop-after", "7", "--", python, "train.py")
    assert (done.code, done.out.strip()) == (0, "cleaned up after 7")
    assert (done.manifest["status"], done.manifest["ranks"][0]["status"]) == ("completed", "completed")
    facts = json.loads((done.folder / "manifest.d/rank0.json").read_text())["facts"]
    assert (facts["steps"], len(facts["step_ns"])) == (7, 6)


def test_a_job_that_torchrun_starts_again(record: Run, torchrun: tuple[str, ...], ddp_script: Path) -> None:
    # Else torch 2.13 leaves gloo's old addresses in the store, and the restarted ranks connect to dead ones.
    own_store = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    words = ["--wait", "1", "--active", "3", "--", *torchrun, "--max-restarts", "1", ddp_script]
    done = record(*words, timeout=180, FAIL="once", **own_store)
    assert done.code == 0, done.err
    ranks = {(rank["restart"], rank["rank"]): rank for rank in done.manifest["ranks"]}
    assert [ranks[key]["status"] for key in ((0, 1), (1, 0), (1, 1))] == ["failed", "completed", "completed"]
    assert ranks[0, 1]["error"] == "SystemExit: 3"
    traces = {entry["path"] for entry in done.manifest["files"] if entry["kind"] == "torch_profiler"}
    assert traces == {f"{life}rank{rank}.json.gz" for life in ("", "restart1/") for rank in (0, 1)}
    # Ranks of two restarts never ran together: the last one is analysed, the other is named.
    assert [item.path.parent.name for item in inputs([done.folder])] == ["restart1", "restart1"]
    others = left_out(done.folder, [done.folder / "restart1/rank0.json.gz"])
    assert others is not None
    assert "Left out: the first attempt" in others.message


def test_a_script_without_an_optimizer(record: Run, python: str, tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text("import torch\nwith torch.no_grad(): torch.ones(9, 9) @ torch.ones(9, 9)\n")
    done = record("--", python, script)
    assert (done.code, [one["code"] for one in done.manifest["problems"]]) == (0, ["nothing_recorded"])
    assert "--whole" in done.err
    whole = record("-o", "whole", "--whole", "--", python, script)
    assert whole.code == 0, whole.err
    assert any(e["name"] == "aten::mm" for e in trace_of(tmp_path / "whole", 0)["traceEvents"])


def test_only_ranks_record_not_their_loader_workers(record: Run, python: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch

def main():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters())
    data = torch.utils.data.DataLoader(torch.ones(20, 4), batch_size=2, num_workers=1,
                                       multiprocessing_context="spawn")
    for batch in data:
        model(batch).sum().backward()
        optimizer.step()

if __name__ == "__main__":
    main()
"""
    )
    done = record("--", python, script, RANK="0", WORLD_SIZE="1")
    assert done.code == 0, done.err
    assert "does not record" not in done.err
    assert len(done.manifest["ranks"]) == 1


def test_a_script_with_a_session_of_its_own_drives_the_launchers(record: Run, python: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
from gpuscope.instrumented_runtime.record.session import gpuscope_session

optimizer = torch.optim.SGD([torch.ones(1, requires_grad=True)])
with gpuscope_session("mine", active=1, metadata={"lr": 0.1}) as session:
    for step in range(10):
        optimizer.step()
        optimizer.step()  # two per step: only the script knows
        session.step()
"""
    )
    done = record("--wait", "1", "--active", "2", "--", python, script, RANK="0", WORLD_SIZE="1")
    assert done.code == 0, done.err
    assert not (tmp_path / "mine").exists()
    facts = json.loads((done.folder / "manifest.d/rank0.json").read_text())["facts"]
    assert (facts["lr"], facts["steps"]) == (0.1, 10)
    assert len([e for e in trace_of(done.folder, 0)["traceEvents"] if e["name"].startswith("ProfilerStep#")]) == 2


def test_the_exit_code_is_the_commands(record: Run) -> None:
    done = record("--", sys.executable, "-c", "import sys; print('out'); sys.exit(7)")
    assert (done.code, done.out, done.manifest["exit_code"]) == (7, "out\n", 7)


@pytest.mark.parametrize(
    ("code", "rank", "error"), [(0, "completed", None), (3, "failed", "SystemExit: 3")], ids=("well", "badly")
)
def test_an_end_by_os_exit(record: Run, python: str, tmp_path: Path, code: int, rank: str, error: str | None) -> None:
    """It bypasses atexit and excepthook; the trace is written, and the rank ends as the code says."""
    (tmp_path / "train.py").write_text(STOPPED.replace("1000", "6") + f"    import os; os._exit({code})\n")
    done = record("--wait", "1", "--active", "20", "--", python, "train.py")
    assert (done.code, done.manifest["exit_code"]) == (code, code)
    assert [(one["status"], one["error"]) for one in done.manifest["ranks"]] == [(rank, error)]
    assert "ProfilerStep#5" in {event["name"] for event in trace_of(done.folder, 0)["traceEvents"]}


def test_a_rank_that_ended_without_a_word(record: Run, python: str, tmp_path: Path) -> None:
    """From another thread nothing can be closed; still the command's exit code says how it ended."""
    end = "    import os, threading; t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join()\n"
    (tmp_path / "train.py").write_text(STOPPED.replace("1000", "6") + end)
    done = record("--profiler", "none", "--", python, "train.py")
    assert (done.code, done.manifest["ranks"][0]["status"]) == (0, "completed")
    assert [(one["code"], one["severity"]) for one in done.manifest["problems"]] == [("not_closed", "data_loss")]


def test_sigterm_within_a_collection_ends_the_rank(record: Run, python: str, tmp_path: Path) -> None:
    """An exception would be lost there, and the script go on; a loader's workers that end just then spoil nothing."""
    end = """
    import gc, os, signal, threading, time
    def raises(*_): raise RuntimeError("DataLoader worker is killed by signal: Terminated.")
    signal.signal(signal.SIGCHLD, raises)
    def workers_end():
        while not time.sleep(0.02):
            os.kill(os.getpid(), signal.SIGCHLD)
    gc.callbacks.append(lambda phase, _: os.kill(os.getpid(), signal.SIGTERM))
    threading.Thread(target=workers_end, daemon=True).start()
    gc.collect()
    print("went on")
"""
    (tmp_path / "train.py").write_text(STOPPED.replace("1000", "6") + end)
    done = record("--wait", "1", "--active", "20", "--", python, "train.py")
    assert (done.code, done.out) == (143, "")
    assert [one for one in done.manifest["problems"] if one["severity"] != "info"] == []
    assert [(one["status"], one["error"]) for one in done.manifest["ranks"]] == [
        ("interrupted", "terminated by SIGTERM")
    ]
    assert "ProfilerStep#5" in {event["name"] for event in trace_of(done.folder, 0)["traceEvents"]}


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"waiting\\n")
time.sleep(600)
"""


def test_what_heeds_no_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    command = [*RECORD, "-o", "run", "--grace", "0.5", "--", sys.executable, "-c", STUBBORN]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.terminate()
    _, told = process.communicate(timeout=300)
    assert (process.returncode, "0.5 s to end (--grace)" in told, "killed now" in told) == (143, True, True)
    assert json.loads((tmp_path / "run/manifest.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--", "no-such-command"], 3, "can't run no-such-command"),
        (["--hang-timout", "3", "--", "true"], 2, "Did you mean '--hang-timeout'?"),
        (["--active", "0", "--", "true"], 2, "active=0 records nothing"),
        (["--profiler", "nsys", "--", "true"], 2, "nsys is not on PATH"),
        (["--nccl-inspector", "--", "true"], 2, "LD_LIBRARY_PATH"),
    ],
)
def test_wrong_use(record: Run, words: list[str], code: int, said: str) -> None:
    done = record(*words, PATH="")
    assert done.code == code
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_folder_that_holds_something_is_left_alone(record: Run, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("mine")
    done = record("--", "true")
    assert done.code == 2
    assert "exists already" in done.err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine.txt"]


def test_a_full_disk_is_reported_and_stops_no_job(tmp_path: Path, ddp_script: Path) -> None:
    # A limit on file size fails writes just as a full disk does, and needs no root.
    command = [*RECORD, "-o", "run", "--", sys.executable, ddp_script]
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.stdout == "done 0\n", done.stderr
    manifest = json.loads((tmp_path / "run/manifest.json").read_text())
    assert [problem["code"] for problem in manifest["problems"]] == ["torch_profiler_failed"]
    assert "torch_profiler" in done.stderr
    assert not list((tmp_path / "run").glob("*rank0.json*"))  # nor half of it


def test_traces_are_reduced_when_the_run_has_ended(
    record: Run, python: str, run: Run, tmp_path: Path, script: Path
) -> None:
    inside = record("--reduce", "run/parts", "--", python, script)
    assert (inside.code, "inside the run folder" in inside.err, inside.folder.exists()) == (2, True, False)
    done = record("--wait", "0", "--warmup", "0", "--active", "2", "--reduce", "parts", "--", python, script)
    assert (done.code, done.out) == (0, "")  # what is said of the parts is no output of the script
    assert "1 part of" in done.err
    assert [path.name for path in (tmp_path / "parts").iterdir()] == ["rank0.gsr"]
    told = [run(*GPUSCOPE, "analyze", "--json", "--no-store", folder) for folder in ("run", "parts")]
    ranks = [json.loads(one.out)["ranks"] for one in told]
    assert ranks[0] == ranks[1]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A few steps of one process."""
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\nweight = torch.zeros(8, 8, requires_grad=True)\nsgd = torch.optim.SGD([weight], 0.1)\n"
        "for _ in range(4):\n    (weight @ weight).sum().backward()\n    sgd.step()\n    sgd.zero_grad()\n"
    )
    return path
