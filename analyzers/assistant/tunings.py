"""`gpuscope tune` for an assistant: started, watched and read, one at a time, as a process of its own.

Only of a server that was started with `--allow-tune`: it runs commands, which no question does.
"""

from __future__ import annotations

import atexit
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import cast

from gpuscope.analyzers.assistant.short_answers import answer, quoted
from gpuscope.errors import UsageError
from gpuscope.report.terminal import tune_text
from gpuscope.schema.tune_document import TuneDocument
from gpuscope.words import units


class Tunings:
    """The tuning of a server. Recordings go below `root`, where commands run too."""

    def __init__(self, root: Path) -> None:
        self._root = root if root.is_dir() else root.parent
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None
        self._lock = Lock()
        atexit.register(self.stop)

    def start(self, command: Sequence[str], budget: str, output_argument: str = "") -> str:
        """Begin. Raises `UsageError` while another one goes on, or for no command."""
        with self._lock:
            if self._running():
                raise UsageError("a tuning goes on", hint="tune_status tells how far it is")
            if not command:
                raise UsageError("no command", hint='such as ["python", "train.py"]')
            self._folder = self._root / time.strftime("gpuscope-tune-%Y%m%d-%H%M%S")
            words = [sys.executable, "-m", "gpuscope", "tune", "-o", str(self._folder), "--budget", budget, "--json"]
            words += ["--out-arg", output_argument] if output_argument else []
            self._process = subprocess.Popen(
                [*words, "--", *command],
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._told.open("wb"),
                start_new_session=True,
            )
        return answer([f"tuning in {quoted(str(self._folder))}; tune_status tells how far it is"])

    def status(self) -> str:
        """What is going on, and what was tried so far. Raises `UsageError` where nothing was started."""
        lines = self._last_lines()
        state = "goes on" if self._running() else f"ended with {self._code()}"
        return answer([f"tuning {state}", *(quoted(line, 300) for line in lines[-2:]), *self._tried()])

    def result(self) -> str:
        """What was kept, and what to take along. Raises `UsageError` while it goes on."""
        lines = self._last_lines()
        if self._running():
            raise UsageError("the tuning goes on", hint="tune_status tells how far it is")
        found = self._found()
        if found is None:
            return answer([f"tuning ended with {self._code()}", *(quoted(line, 300) for line in lines[-8:])])
        took = (quoted(line, 300) for line in found["take"])
        by_hand = (f"by hand: {one['code']}: {quoted(one['setting'])}; {one['why']}" for one in found["by_hand"])
        return answer([tune_text.headline(found), *tune_text.facts(found), *self._tried(), *took, *by_hand])

    def stop(self) -> None:
        """End it; what was found so far is written."""
        if self._process is not None and self._running():
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(30)

    @property
    def _told(self) -> Path:
        """What it says on the way, beside its folder."""
        assert self._folder is not None
        return self._folder.with_name(f"{self._folder.name}.log")

    def _running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _code(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def _last_lines(self) -> list[str]:
        if self._folder is None:
            raise UsageError("no tuning was started", hint="tune_start starts one")
        return self._told.read_text(encoding="utf-8", errors="replace").splitlines()

    def _found(self) -> TuneDocument | None:
        assert self._folder is not None
        with suppress(OSError, ValueError):
            return cast(TuneDocument, json.loads((self._folder / "result.json").read_text(encoding="utf-8")))
        return None

    def _tried(self) -> Iterator[str]:
        found = self._found()
        for row in found["changes"] if found is not None else ():
            times = f"{units.duration(row['before_ns'])} → {units.duration(row['measured_ns'])}"
            predicted = f"predicted {units.duration(row['predicted_ns'])}"
            yield f"{row['code']} ({quoted(row['setting'])}): {tune_text.mark(row)}; {times}, {predicted}; {row['why']}"
