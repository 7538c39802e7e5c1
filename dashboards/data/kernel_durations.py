"""Device events by name: how often and how long, in all and on each rank."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gpuscope.trace.columns.table import Array, Times
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class KernelTimes:
    """An element per name; times in ns. `median` is the upper one of an even number."""

    codes: Array
    """Of the names, rising."""
    count: Times
    total: Times
    least: Times
    median: Times
    most: Times
    by_rank: Mapping[int, Times]
    """`total` of each rank, shape of `codes`."""


def kernel_times(names: Array, lengths: Times, ranks: Array) -> KernelTimes:
    """Of device events with these name codes, lengths in ns and ranks, shape (n,) each."""
    order = np.argsort(names, kind="stable")
    lengths, ranks = lengths[order], ranks[order]
    codes, first, count = np.unique(names[order], return_index=True, return_counts=True)
    every, which = np.unique(ranks, return_inverse=True)
    pairs = np.repeat(np.arange(len(codes)), count) * max(len(every), 1) + which
    # Sums in doubles are exact below 2^53 ns, a hundred days.
    sums = np.bincount(pairs, lengths, len(codes) * len(every)).astype(np.int64).reshape(len(codes), len(every))
    middle = (
        [np.partition(own, len(own) // 2)[len(own) // 2] for own in np.split(lengths, first[1:])] if len(codes) else []
    )
    empty = np.empty(0, np.int64)
    return KernelTimes(
        codes,
        count,
        sums.sum(axis=1),
        np.minimum.reduceat(lengths, first) if len(codes) else empty,
        np.array(middle, np.int64),
        np.maximum.reduceat(lengths, first) if len(codes) else empty,
        {int(rank): sums[:, place] for place, rank in enumerate(every.tolist())},
    )
