"""Copies of `/proc/PID/status`: whether a rank's process was stopped, dead, or waiting for a disk."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gpuscope import when_used
from gpuscope.errors import InputError
from gpuscope.sources.pytorch.log_signs import FRAMES, Stack, frame
from gpuscope.sources.pytorch.process_log import ALONE, add_stacks, rank_of_file
from gpuscope.sources.source import Files, ReadOptions, Role, Source, integer
from gpuscope.trace.builder import TraceBuilder
from gpuscope.trace.schema import NA

# Stacks that `py-spy dump --json` prints: a list of threads, each with its frames, innermost first.

LARGEST = 64 << 20


class PySpySource(Source):
    """Reads `host_stacks`."""

    name = "py-spy"
    files = Files(Role.HANG_RECORD, one_per_rank=False, alone=ALONE)

    def sniff(self, path: Path, head: bytes) -> bool:
        """A JSON list of threads."""
        return path.is_file() and head.lstrip().startswith(b"[") and b'"owns_gil"' in head and b'"frames"' in head

    def read(self, path: Path, builder: TraceBuilder, options: ReadOptions) -> None:
        """Read a dump. Raises `InputError` for one that is damaged."""
        size = path.stat().st_size
        try:
            threads = json.loads(path.read_bytes()) if size <= LARGEST else None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}: is damaged or cut off ({error})") from error
        if options.advance:
            options.advance(size)
        rank = rank_of_file(path, stacks=True)
        stacks = [_stack(one, rank) for one in threads or [] if isinstance(one, dict)]
        if not any(stack.frames for stack in stacks):
            raise InputError(f"{path}: holds no stack")
        source = builder.source(path, self.name, "", len(stacks), {})
        add_stacks(builder, [stack for stack in stacks if stack.frames], path, source)


def _stack(told: dict[str, Any], rank: int | None) -> Stack:
    frames = told.get("frames")
    name = str(told.get("thread_name") or told.get("thread_id") or "")
    stack = Stack(name, name == "MainThread", told.get("owns_gil") is True, integer(told.get("pid")), rank)
    for one in frames[:FRAMES] if isinstance(frames, list) else ():
        if isinstance(one, dict):
            stack.frames.append(frame(str(one.get("name")), str(one.get("filename")), one.get("line", "")))
    return stack


PY_SPY_SOURCE = PySpySource()


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


PROCESS_STATUS_SOURCE = ProcessStatusSource()


SOURCES = (PROCESS_STATUS_SOURCE, PY_SPY_SOURCE)
