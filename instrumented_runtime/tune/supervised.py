"""A process that ends, whatever it does: in a session of its own, with a limit, killed with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpuscope.instrumented_runtime.record.launch import kill, kill_tree, process_tree

GRACE_S = 10.0
"""Between SIGTERM, at which a recorder writes what it has, and SIGKILL."""
TOLD = 12
"""Last lines of a failed command that are shown."""
_LINE = 300


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit code, None where it was killed at its limit; and how long it ran."""

    code: int | None
    seconds: float


def run(command: Sequence[str], log: Path, limit_s: float, output: Path | None = None) -> Ended:
    """Run a command with its output in `log` (stdout in `output`, where given) for at most `limit_s`.

    Nothing of it is left behind, also where this process is interrupted meanwhile.
    """
    began = time.monotonic()
    with contextlib.ExitStack() as files:
        told: IO[bytes] = files.enter_context(log.open("wb"))
        out = files.enter_context(output.open("wb")) if output is not None else told
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=told, start_new_session=True,
        )  # fmt: skip
        try:
            code: int | None = process.wait(None if limit_s == float("inf") else max(limit_s, 0.0))
        except subprocess.TimeoutExpired:
            code = None
            started = process_tree(process.pid)  # before a launcher ends: its ranks are nobody's children then
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            kill(started)
        finally:
            if process.poll() is None:
                kill_tree(process.pid)
                process.wait()
            # What outlived its parents: the session is the process's own, so the group is too.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
    return Ended(code, time.monotonic() - began)


def last_lines(log: Path, count: int = TOLD) -> list[str]:
    """The last lines that a command wrote, without gpuscope's own and without empty ones."""
    try:
        text = log.read_bytes()[-64 * 1024 :].decode("utf-8", "replace")
    except OSError:
        return []
    lines = [line.rstrip()[:_LINE] for line in text.splitlines() if line.strip()]
    return [line for line in lines if not line.startswith("gpuscope:")][-count:]
