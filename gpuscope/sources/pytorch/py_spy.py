"""Stacks that `py-spy dump --json` prints: a list of threads, each with its frames, innermost first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpuscope.errors import InputError
from gpuscope.sources.lines import integer
from gpuscope.sources.pytorch.process_log import ALONE, add_stacks, rank_of_file
from gpuscope.sources.pytorch.stack_text import FRAMES, Stack, frame
from gpuscope.sources.source import Files, ReadOptions, Role, Source
from gpuscope.trace.builder import TraceBuilder

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


SOURCE = PySpySource()
