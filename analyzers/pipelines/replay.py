"""Computations of a pipeline laid out anew: each starts when what it needs is there, messages take no time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from analyzers.pipelines.flushes import Computation, Flush

Key = tuple[str, int, int]
Place = tuple[float, float]
"""Start and end in ns after the pipeline began to fill."""


def placed(flush: Flush, duration: Callable[[Computation], float]) -> dict[Key, Place] | None:
    """When each computation would run with the recorded order on each stage and these durations; None where a stage
    would wait for ever (its order is not the recorded one, or something is missing)."""
    last_chunk = max(one.model_chunk for own in flush.stages for one in own)
    places: dict[Key, Place] = {}
    free = [0.0] * len(flush.stages)
    at = [0] * len(flush.stages)
    left = sum(map(len, flush.stages))
    while left:
        before = left
        for stage, own in enumerate(flush.stages):
            while at[stage] < len(own):
                one = own[at[stage]]
                needs = _needs(one.key, last_chunk)
                if any(key not in places for key in needs):
                    break
                start = max(free[stage], *(places[key][1] for key in needs), 0.0)
                free[stage] = start + duration(one)
                places[one.key] = start, free[stage]
                at[stage] += 1
                left -= 1
        if left == before:
            return None
    return places


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
