"""Which collective each rank called last, kept where the rank's death does not take it.

gloo ends a process in which a message of another size arrives, without a word to Python, before anything could be
dumped. So each rank writes what it calls into a mapped file, and the launcher compares these once the job has failed.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from gpuscope.instrumented_runtime.record.gloo.collective_log import Collective, Group, Kind

_SIZE = 4096
_NAME = "last_call.rank{}"
_OWN = ("seq", "issued_ns")
"""What differs between calls of one kind."""
_ALIKE = tuple(name for name in Collective.__slots__ if name not in ("group", *_OWN))


def keeper(parts: Path, rank: int) -> Callable[[Collective, Kind], None]:
    """What writes a collective into this rank's file among the parts of the manifest, over the one before."""
    path = parts / _NAME.format(rank)
    path.write_bytes(b"\0" * _SIZE)
    with path.open("r+b") as file:
        mapped = mmap.mmap(file.fileno(), _SIZE)

    def keep(entry: Collective, kind: Kind) -> None:
        if not entry.seq:  # a message
            return
        told = kind.told
        if not told:
            told = _encoded(entry, entry.group.ranks, entry.sizes_in, entry.sizes_out)
            if len(told) > _SIZE - 80:  # of many ranks or tensors
                told = _encoded(entry, (), [[entry.elements_in]], [[entry.elements_out]])
            kind.told = told
        line = told + b"[%d, %d]]\n" % (entry.seq, entry.issued_ns)
        mapped[: len(line)] = line

    return keep


def _encoded(
    entry: Collective, ranks: tuple[int, ...], sizes_in: Sequence[Sequence[int]], sizes_out: Sequence[Sequence[int]]
) -> bytes:
    """The call but for what is its own."""
    fields = {name: getattr(entry, name) for name in _ALIKE} | {"sizes_in": sizes_in, "sizes_out": sizes_out}
    return json.dumps([[entry.group.name, entry.group.description, ranks], fields])[:-1].encode() + b", "


class Mismatch(NamedTuple):
    """What ranks called under one number of one group, by rank, and that in a sentence."""

    calls: dict[int, Collective]
    told: str


def mismatch(parts: Path) -> Mismatch | None:
    """The first number of a group at which ranks stopped with different calls; None where there is none. The files are
    removed."""
    last: dict[tuple[str, int], dict[int, Collective]] = {}
    for path in parts.glob(_NAME.format("*")):
        with suppress(OSError, ValueError, TypeError):
            (name, description, ranks), fields, own = json.loads(path.read_bytes().partition(b"\n")[0])
            fields |= zip(_OWN, own, strict=True)
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
