"""Two machines (two torchrun agents here) train; one of them is lost; the other goes on alone."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from helpers import needs
from helpers.warm_python import executable

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason=needs.PROC),
]

STEPS = 24


def agent(port: int, out: Path, log: Path, *, is_host: bool) -> subprocess.Popen[bytes]:
    """One torchrun agent with one worker, of one to two agents."""
    rendezvous = f"is_host={str(is_host).lower()},keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=1"
    words = ["-m", "torch.distributed.run", "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=3"]
    words += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{port}", "--rdzv-id=test", "--local-addr=localhost"]
    words += [f"--rdzv-conf={rendezvous}", "-m", "gpuscope.instrumented_runtime.commands.train"]
    words += ["train", "--parallel", "ddp"]
    # Slow steps: without the loss of a rank the run would take a while longer than the test waits for it.
    words += ["--out", str(out), "--steps", str(STEPS), "--fault", "slow_loader:ms=200"]
    words += ["--set", "checkpoint.every=2", "--set", "train.timeout_s=20", "--set", "data.sequence=32"]
    words += ["--set", "capture.profile=false"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as file:
        return subprocess.Popen([executable(), *words], env=environment, stdout=file, stderr=file)


def worker_of(log: Path, out: Path) -> int:
    """The process that trains under the agent with this log, from the run folder."""
    pids = [json.loads(part.read_text())["pid"] for part in (out / "manifest.d").glob("rank*.json")]
    return next(pid for pid in pids if Path(f"/proc/{pid}/fd/2").resolve() == log)


def wait_for(path: Path, pattern: str, seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not list(path.glob(pattern)):
        assert time.monotonic() < end, f"no {pattern} in {path}"
        time.sleep(0.1)


def test_a_lost_rank(tmp_path: Path) -> None:
    out, logs = tmp_path / "run", [tmp_path / "kept.log", tmp_path / "lost.log"]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    kept = agent(port, out, logs[0], is_host=True)
    lost = agent(port, out, logs[1], is_host=False)
    try:
        wait_for(out / "checkpoints", "step-*/.metadata")
        worker = worker_of(logs[1], out)
        lost.kill()
        os.kill(worker, signal.SIGKILL)
        assert kept.wait(timeout=120) == 0, logs[0].read_text()[-4000:]
    finally:
        for process in (kept, lost):
            process.kill()
            process.wait()
    (second_life,) = out.glob("restart*/measures/rank0.jsonl")
    records = [json.loads(line) for line in second_life.read_text().splitlines()]
    first = records[0]["step"]
    # It goes on where a checkpoint was, with half the tokens per step, to the last step.
    assert first >= 2
    assert first % 2 == 0
    assert [record["step"] for record in records] == list(range(first, STEPS))
    assert records[0]["tokens"] == 8 * 32
