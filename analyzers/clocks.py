"""Clock offsets between ranks, from the ends of matched collectives: these end together everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzers.matching import Instance
from gpuscope.trace.trace import Trace

MIN_INSTANCES = 5
"""Fewer matched ends than this say nothing of an offset."""


@dataclass(frozen=True)
class Clocks:
    """Offset of each rank's clock (ns, to be subtracted), and the error of what is compared across ranks."""

    offset: Mapping[int, int]
    error: int | None
    """Bound on the error, ns: the spread of the ends (median absolute deviation, scaled to one standard
    deviation, largest over ranks). None where no matched collectives tie the clocks."""


def estimate(trace: Trace, instances: Sequence[Instance]) -> Clocks:
    """Offsets relative to the lowest rank; zero where the ends' spread does not tell one apart from it."""
    table = trace["collectives"]
    behind: dict[int, list[int]] = {}
    for instance in instances:
        if instance.op == "send_recv":  # the sender may leave before the receiver
            continue
        ranks, ends = table["rank"][instance.rows], table["end"][instance.rows]
        reference = int(np.argmin(ranks))
        for rank, late in zip(ranks.tolist(), (ends - ends[reference]).tolist(), strict=True):
            behind.setdefault(rank, []).append(late)
    offset: dict[int, int] = {}
    error = 0
    for rank, samples in behind.items():
        values = np.array(samples, np.int64)
        median = int(np.median(values))
        spread = int(1.4826 * np.median(np.abs(values - median)))
        told = len(values) >= MIN_INSTANCES and abs(median) > 3 * max(spread, 1)
        offset[rank] = median if told else 0
        error = max(error, spread, 0 if told else abs(median))
    return Clocks(offset, error if behind else None)
