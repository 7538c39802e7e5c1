"""Ranks that do not answer on a hang: stopped, dead, or with the interpreter's lock held, so that no Python runs.

Each rank's C signal handler (`faulthandler.register`) writes its stacks without that lock, into a file opened before.
The rank that gives the verdict sends the signal to those of its host, and keeps what the kernel says of them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from gpuscope.instrumented_runtime.record.run_folder import RankFolder

PARTS = "manifest.d"
FOLDER = "hang"
# Of the real-time signals, which libraries rarely use.
SIGNAL = signal.SIGRTMAX - 5 if sys.platform == "linux" else None
WRITES_S = 1.0


class SilentRanks:
    """This rank's signal handler, and what it asks of others."""

    def __init__(self, folder: RankFolder) -> None:
        self._folder = folder
        self._file: IO[str] | None = None
        self._path = self._of(folder.part.rank, os.getpid())
        if SIGNAL is not None:
            self._file = self._path.open("w", encoding="utf-8")
            faulthandler.register(SIGNAL, self._file, all_threads=True)

    def _of(self, rank: int, pid: int) -> Path:
        """Its being there says that this process takes the signal."""
        return self._folder.files / f".stacks_rank{rank}.{pid}"

    def close(self) -> None:
        """Take the handler and its file away."""
        if self._file is not None and SIGNAL is not None:
            faulthandler.unregister(SIGNAL)
            self._file.close()
            self._path.unlink(missing_ok=True)
            self._file = None

    def ask(self, ranks: Iterable[int]) -> None:
        """Keep the state and the stacks of ranks on this host."""
        asked: list[tuple[int, Path]] = []
        for rank in ranks:
            with contextlib.suppress(OSError, ValueError, KeyError):
                life = f".restart{self._folder.part.restart}" if self._folder.part.restart else ""
                part = json.loads((self._folder.path / PARTS / f"rank{rank}{life}.json").read_text(encoding="utf-8"))
                if part["host"] != socket.gethostname():
                    continue
                pid, stacks = part["pid"], self._of(rank, part["pid"])
                self._keep(f"status_rank{rank}.txt", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
                if SIGNAL is not None and stacks.exists():
                    os.kill(pid, SIGNAL)
                    asked.append((rank, stacks))
        if asked:
            time.sleep(WRITES_S)
        for rank, stacks in asked:
            with contextlib.suppress(OSError):
                if text := stacks.read_text(encoding="utf-8", errors="replace"):
                    self._keep(f"stacks_rank{rank}.txt", text)

    def _keep(self, name: str, text: str) -> None:
        path = self._folder.file(f"{FOLDER}/{name}")
        if not path.exists():
            path.write_text(text, encoding="utf-8")
            self._folder.add_file(path, "stacks")
