"""Copies of `/proc/PID/status`: whether a rank's process was stopped, dead, or waiting for a disk."""

from __future__ import annotations

import re
from pathlib import Path

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.pytorch.process_log import ALONE, rank_of_file
from gpuscope.sources.source import Files, ReadOptions, Role
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA

_STATE = when_used.pattern(r"^State:\s+([A-Za-z])", re.MULTILINE)
_PID = when_used.pattern(r"^Pid:\s+(\d{1,9})$", re.MULTILINE)
STATES = {"T": "stopped", "t": "debugger", "Z": "exited", "X": "exited", "D": "storage"}
"""Signs by the kernel's letters; a process that is traced (`t`) has a debugger attached."""


class ProcessStatusSource:
    """Reads `hang_signs`."""

    name = "process-status"
    files = Files(Role.HANG_RECORD, one_per_rank=False, alone=ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """The kernel's lines."""
        return path.is_file() and head.startswith(b"Name:\t") and b"\nState:\t" in head

    def peek_rank(self, path: Path, head: bytes) -> int | None:  # noqa: ARG002 - a protocol's signature
        """The rank in its name."""
        return rank_of_file(path, stacks=True)

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a copy. Raises `InputError` where it has no state."""
        text = path.read_bytes()[: 1 << 16].decode(errors="replace")
        if options.advance:
            options.advance(path.stat().st_size)
        state, pid, rank = _STATE.search(text), _PID.search(text), rank_of_file(path, stacks=True)
        if state is None:
            raise InputError(f"{path}: has no line «State»")
        if pid is not None and rank == int(pid[1]):
            rank = None  # named by its process
        line = next(line for line in text.splitlines() if line.startswith("State:"))
        code, source = builder.names.code, builder.source(path, self.name, "", 1, {})
        row = {
            "rank": NA if rank is None else rank,
            "pid": NA if pid is None else int(pid[1]),
            "sign": code(STATES.get(state[1], "alive")),
            "text": code(" ".join(line.split())),
            "line": text[: state.start()].count("\n") + 1,
            "source": source,
        }
        builder.add("hang_signs", 1, row)


SOURCE = ProcessStatusSource()
