"""Runs what the paths need, once each, and judges them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gpu_check.gpu_paths import FAILS, RUNS, GpuPath
from gpu_check.judges import NotSeenError

LIMIT_S = 240


@dataclass(frozen=True)
class Outcome:
    """How one path ended: `state` is passed, failed or skipped, `said` what was seen or why not."""

    name: str
    state: str
    said: str
    command: str


class Checks:
    """The runs below one folder; a run that several paths look at is made once."""

    def __init__(self, out: Path, limit_s: float = LIMIT_S) -> None:
        self.out, self.limit_s = out, limit_s
        self._failures: dict[str, str] = {}

    def all(self, paths: Iterable[GpuPath]) -> Iterator[Outcome]:
        """One outcome per path, as they come."""
        for path in paths:
            state, said = self.judged(path)
            yield Outcome(path.name, state, said, " ".join(self.command(path.run)))

    def judged(self, path: GpuPath) -> tuple[str, str]:
        """State and what is to be said of it; no exception of a judge's ends the other checks."""
        if path.program and shutil.which(path.program) is None:
            return "skipped", f"{path.program} is not on PATH"
        if path.module and find_spec(path.module) is None:
            return "skipped", f"the Python module {path.module} is not installed"
        if failure := self._made(path.run):
            return "failed", failure
        try:
            return "passed", path.judge(self.folder(path.run))
        except NotSeenError as error:
            return "failed", str(error)
        except Exception as error:
            return "failed", repr(error)

    def folder(self, run: str) -> Path:
        """The run folder of a run."""
        return self.out / run / "run"

    def command(self, run: str) -> list[str]:
        """The words of its command."""
        folder = self.folder(run)
        places = {"RUN": str(folder), "FACTS": str(folder.parent / "facts.json")}
        return [places.get(word, word) for word in RUNS[run]]

    def _made(self, run: str) -> str:
        """Why there is no such run; empty where there is one."""
        if run not in self._failures:
            self._failures[run] = self._make(run)
        return self._failures[run]

    def _make(self, run: str) -> str:
        home = self.folder(run).parent
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        log = home / "log.txt"
        code = _call(self.command(run), log, self.limit_s)
        if code is None:
            return f"not done after {self.limit_s:g} s: {log}"
        if code and run not in FAILS:
            return f"exit {code}: {_last_line(log)} ({log})"
        return ""


def _call(words: Sequence[str], log: Path, limit_s: float) -> int | None:
    """The exit code of a command, its output in a file; None where it took too long."""
    quiet = {"GPUSCOPE_NO_STORE": "1", "GPUSCOPE_NO_CACHE": "1", "KINETO_LOG_LEVEL": "6"}
    with log.open("w") as file:
        process = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT, env={**os.environ, **quiet})
        try:
            return process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.terminate()  # passed on to the ranks
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return None


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "it said nothing")
