"""The lines of a file for NCCL's example tuner plugin (NVIDIA/nccl plugins/tuner/example/plugin.c, 2.30)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

Choice = TypeVar("Choice")

OPERATIONS = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "all_reduce": "allreduce",
}
"""The plugin's five operations by ours; it has no all-to-all."""
ANY = -1
"""In the plugin's file: matches any number of nodes or ranks."""
LARGEST = (1 << 64) - 1
"""The largest size_t: no message lies beyond."""
HEAD = (
    "# For NCCL's example tuner plugin (NCCL_TUNER_PLUGIN); NCCL_TUNER_CONFIG_FILE names this file.",
    "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks",
)


def tuner_line(
    op: str, low: int, high: int, algorithm: str, protocol: str, channels: int | None, nodes: int, ranks: int
) -> str:
    """One line as the plugin reads it; nodes and ranks `ANY` match any."""
    return ",".join(map(str, (OPERATIONS[op], low, high, algorithm, protocol, channels, nodes, ranks)))


def size_ranges(chosen: Mapping[int, Choice]) -> Iterator[tuple[int, int, Choice]]:
    """Sizes from 0 to the largest with the choice for each, from choices by size in rising order: between two sizes
    the choice changes at their geometric mean."""
    merged: list[tuple[int, Choice]] = []
    last = 0
    for nbytes, choice in chosen.items():
        if not merged or merged[-1][1] != choice:
            merged.append((round((last * nbytes) ** 0.5) if merged else 0, choice))
        last = nbytes
    ends = [low - 1 for low, _ in merged[1:]] + [LARGEST]
    for (low, choice), high in zip(merged, ends, strict=True):
        yield low, high, choice
