"""Which ranks could hold which experts, by the tokens of each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from gpuscope.trace.columns.table import Array


def placed(tokens: Array, ranks: int, redundant: int) -> list[list[int]]:
    """Which experts each rank holds: `redundant` ranks hold one expert more each, a copy of one with most tokens (a
    copy of an expert takes its share). As in DeepSeek's EPLB: copies go where tokens per copy are most, then experts in
    the order of their tokens to the rank with fewest that has room (longest processing time first)."""
    copies = np.ones(len(tokens), np.int64)
    for _ in range(redundant):
        copies[int((tokens / copies).argmax())] += 1
    each = tokens / copies
    room = [len(tokens) // ranks + (1 if rank < redundant else 0) for rank in range(ranks)]
    held: list[list[int]] = [[] for _ in range(ranks)]
    free = [(0.0, rank) for rank in range(ranks)]
    for expert in sorted(np.repeat(np.arange(len(tokens)), copies).tolist(), key=lambda expert: -each[expert]):
        load, rank = heapq.heappop(free)
        held[rank].append(expert)
        if len(held[rank]) < room[rank]:
            heapq.heappush(free, (load + float(each[expert]), rank))
    return held


def loads(counts: Array, held: Sequence[Sequence[int]]) -> Array:
    """Part of a pass's tokens that each rank gets, where `counts` is (ranks, experts of a rank)."""
    tokens = counts.ravel().astype(np.float64)
    copies = np.zeros(len(tokens))
    for own in held:
        np.add.at(copies, list(own), 1)
    each = tokens / np.maximum(copies, 1) / max(tokens.sum(), 1)
    return np.array([float(each[list(own)].sum()) for own in held])
