"""Segments of an allocator snapshot with their blocks, the largest first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

MOST = 40
"""Segments drawn; more can't be distinguished on a screen."""
MOST_BLOCKS = 4_000
"""Blocks drawn, as for the timeline's marks."""


@dataclass(frozen=True)
class Segment:
    """A segment with its blocks in order of address: (bytes, BlockState, innermost frame or empty)."""

    label: str
    blocks: Sequence[tuple[int, int, str]]


def segments_of(trace: Trace, path: str, device: int) -> tuple[list[Segment], int]:
    """The largest segments of one device of one snapshot, and how many are left out."""
    table, blocks = trace["segments"], trace["blocks"]
    source = next((i for i, one in enumerate(trace.sources) if str(one.path) == path), None)
    rows = np.flatnonzero((table["device"] == device) & (table["source"] == (-1 if source is None else source)))
    largest = rows[np.argsort(-table["bytes"][rows], kind="stable")]
    first = np.searchsorted(blocks["segment"], largest, "left")
    last = np.searchsorted(blocks["segment"], largest, "right")
    drawn: list[Segment] = []
    count = 0
    for segment, low, high in zip(largest[:MOST].tolist(), first.tolist(), last.tolist(), strict=False):
        count += high - low
        if drawn and count > MOST_BLOCKS:
            break
        own = [
            (
                int(blocks["bytes"][row]),
                int(blocks["state"][row]),
                trace.names[int(blocks["frames"][row])].split("\n")[0],
            )
            for row in range(low, high)
        ]
        size = units.memory(int(table["bytes"][segment]))
        drawn.append(Segment(f"{len(drawn) + 1}: {size}, stream {int(table['stream'][segment])}", own))
    return drawn, len(largest) - len(drawn)
