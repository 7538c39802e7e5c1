"""Progress shows on a terminal, after a while, and nowhere else."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

from gpuscope.progress import Reading, reading

WORK = """
import sys, time
import gpuscope.progress as progress
progress.PATIENCE_S = float(sys.argv[1])
with progress.reading(10, "start", files=2) as advance:
    advance.file("rank0\\x1b[2J[bold].json")
    advance(5)
    time.sleep(0.3)
with progress.status("nsys export"):
    time.sleep(0.3)
"""


def on_a_terminal(patience_s: float) -> str:
    """What WORK writes to a stderr that is a terminal."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen([sys.executable, "-c", WORK, str(patience_s)], stderr=theirs, env=env)
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 4096):
            written += block
    except OSError:  # Linux's word for the other end being closed
        pass
    finally:
        os.close(ours)
    assert process.wait() == 0
    return written.decode()


def test_slow_work_shows_the_file_and_the_spinner() -> None:
    written = on_a_terminal(0.0)
    assert "1/2 rank0\\x1b[2J[bold].json" in written
    assert "nsys export" in written


def test_quick_work_shows_nothing() -> None:
    assert on_a_terminal(60.0) == ""


@pytest.mark.parametrize("force", ["", "1"])
def test_a_pipe_gets_nothing(force: str) -> None:
    env = {**os.environ, "FORCE_COLOR": force, "TTY_COMPATIBLE": force}
    run = subprocess.run([sys.executable, "-c", WORK, "0"], capture_output=True, env=env, check=True)
    assert (run.stdout, run.stderr) == (b"", b"")


def test_bytes_are_counted_without_a_terminal() -> None:
    with reading(10, "rank0.json") as advance:
        advance(4)
        advance(3)
    assert advance.done_bytes == 7


def test_a_long_name_keeps_its_end() -> None:
    bar = Reading(10, "start", files=64)
    bar.file("a" * 60 + "/rank0.json.gz")
    assert bar.describe() == "1/64 …" + "a" * 25 + "/rank0.json.gz"
