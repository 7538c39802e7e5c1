"""Which collective each rank called last, kept where the rank's death does not take it.

gloo ends a process in which a message of another size arrives, without a word to Python, before anything could be
dumped. So each rank writes what it calls into a mapped file, and the launcher compares these once the job has failed.
"""

from __future__ import annotations

import json
import mmap
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuscope.instrumented_runtime.record.gloo.collective_log import LAST, OWN, PAGE, Collective, Group

_NAME = "last_call.rank{}"


def page(parts: Path, rank: int) -> mmap.mmap:
    """This rank's file among the parts of the manifest, for `CollectiveLog.keep`: a call overwrites the one before."""
    path = parts / _NAME.format(rank)
    path.write_bytes(b"\0" * PAGE)
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), PAGE)


class Mismatch(NamedTuple):
    """What ranks called under one number of one group, by rank, and that in a sentence."""

    calls: dict[int, Collective]
    told: str


def mismatch(parts: Path) -> Mismatch | None:
    """The first number of a group at which ranks stopped with different calls; None where there is none. The files are
    removed."""
    last: dict[tuple[str, int], dict[int, Collective]] = {}
    for path in parts.glob(_NAME.format("*")):
        with suppress(OSError, ValueError, TypeError, struct.error):
            kept = path.read_bytes()
            place, *own = LAST.unpack_from(kept)
            (name, description, ranks), fields = json.loads(kept[place : kept.index(b"\0", place)])
            fields |= zip(OWN, own, strict=True)
            call = Collective(group=Group(name, description, tuple(ranks)), **fields)
            last.setdefault((name, call.seq), {})[int(path.name.rpartition("rank")[2])] = call
        with suppress(OSError):
            path.unlink()
    for (_, seq), calls in sorted(last.items()):
        by_call: dict[str, list[int]] = {}
        for rank, call in sorted(calls.items()):
            by_call.setdefault(call.called, []).append(rank)
        if len(by_call) > 1:
            told = ", ".join(f"{_ranks(ranks)} called {called}" for called, ranks in by_call.items())
            group = next(iter(calls.values())).group.title
            return Mismatch(calls, f"the ranks called different things as number {seq} of group {group}: {told}")
    return None


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
