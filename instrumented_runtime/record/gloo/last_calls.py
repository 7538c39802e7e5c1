"""Which collective each rank called last, kept where the rank's death does not take it.

gloo ends a process in which a message of another size arrives, without a word to Python, before anything could be
dumped. So each rank writes what it calls into a mapped file, and the launcher compares these once the job has failed.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective

_SIZE = 512
_NAME = "last_call.rank{}"


def keeper(parts: Path, rank: int) -> Callable[[Collective], None]:
    """What writes a collective into this rank's file among the parts of the manifest, over the one before."""
    path = parts / _NAME.format(rank)
    path.write_bytes(b"\0" * _SIZE)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), _SIZE)

    def keep(entry: Collective) -> None:
        if not entry.is_p2p:
            told = json.dumps([entry.group.name, entry.group.description, entry.seq, entry.called]).encode()
            mapped[:] = told[: _SIZE - 1].ljust(_SIZE, b"\0")

    return keep


def mismatch(parts: Path) -> str | None:
    """The first number of a group at which ranks stopped with different calls, in a sentence; None where there is none.
    The files are removed."""
    last: dict[tuple[Any, ...], dict[str, list[int]]] = {}
    for path in parts.glob(_NAME.format("*")):
        with suppress(OSError, ValueError):
            group, description, seq, called = json.loads(path.read_bytes().rstrip(b"\0"))
            rank = int(path.name.rpartition("rank")[2])
            last.setdefault((group, description, seq), {}).setdefault(called, []).append(rank)
        with suppress(OSError):
            path.unlink()
    for (_, description, seq), calls in sorted(last.items(), key=str):
        if len(calls) > 1:
            order = sorted((sorted(ranks), called) for called, ranks in calls.items())
            told = ", ".join(f"{_ranks(ranks)} called {called}" for ranks, called in order)
            return f"the ranks called different things as number {seq} of group {description}: {told}"
    return None


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
