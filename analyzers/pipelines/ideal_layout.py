"""Computations of pipelines laid out anew: each starts when what it needs is there, messages take no time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import fmean

import numpy as np

from gpuscope.analyzers.facts.flushes import Flush
from gpuscope.trace.columns.table import Array

Key = tuple[str, int, int]
Order = tuple[tuple[Key, ...], ...]
"""What each stage computes, in its order."""


@dataclass(frozen=True)
class Placed:
    """Start and end of each computation in ns after the pipelines began to fill, shape (flushes,)."""

    start: Mapping[Key, Array]
    end: Mapping[Key, Array]

    @property
    def length(self) -> Array:
        """ns from filling to draining, shape (flushes,)."""
        return np.asarray(reduce(np.maximum, self.end.values()))


def order_of(flush: Flush) -> Order:
    """The order in which a flush was computed."""
    return tuple(tuple(one.key for one in own) for own in flush.stages)


def placed(order: Order, durations: Mapping[Key, Array]) -> Placed | None:
    """When each computation would run in that order with these durations (ns, shape (flushes,)); None where a stage
    would wait for ever (its order is not the recorded one, or something is missing)."""
    last_chunk = max(chunk for own in order for _, chunk, _ in own)
    starts: dict[Key, Array] = {}
    ends: dict[Key, Array] = {}
    at = [0] * len(order)
    left = sum(map(len, order))
    while left:
        before = left
        for stage, own in enumerate(order):
            while at[stage] < len(own):
                key = own[at[stage]]
                needs = _needs(key, last_chunk)
                if any(need not in ends for need in needs):
                    break
                after = [ends[need] for need in needs]
                if at[stage]:
                    after.append(ends[own[at[stage] - 1]])
                starts[key] = reduce(np.maximum, after) if after else np.zeros_like(durations[key])
                ends[key] = starts[key] + durations[key]
                at[stage] += 1
                left -= 1
        if left == before:
            return None
    return Placed(starts, ends)


def _needs(key: Key, last_chunk: int) -> Sequence[Key]:
    """What a computation waits for besides its own stage."""
    kind, chunk, micro_batch = key
    if kind == "F":
        return [("F", chunk - 1, micro_batch)] if chunk else []
    if kind == "W":
        return [("B", chunk, micro_batch)]
    own: list[Key] = [("F", chunk, micro_batch)]
    return own if chunk == last_chunk else [*own, ("B", chunk + 1, micro_batch)]


def even(flush: Flush) -> Mapping[str, float]:
    """ns of a computation of each kind where all chunks and micro-batches had equal shares of the recorded work."""
    kinds = {one.kind for own in flush.stages for one in own}
    return {kind: fmean(one.duration for own in flush.stages for one in own if one.kind == kind) for kind in kinds}
