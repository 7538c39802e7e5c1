"""The bubble of a stage and its parts (docs/definitions.md: «Pipeline»)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts.flushes import Computation, Flush
from gpuscope.schema.pipeline_section import PipelineBubble
from gpuscope.trace.columns.table import Times
from gpuscope.trace.intervals import Spans, complement, measure_within, union
from gpuscope.when_used import dataclass


@dataclass(frozen=True)
class StageBubble:
    """A stage between filling and draining: ns of its computing and of its bubble's parts; both sum to the span."""

    compute: int
    parts: PipelineBubble


def bubbles(flush: Flush) -> list[StageBubble]:
    """The bubble of every stage of a flush."""
    start, end = flush.span
    computing = [_busy(own) for own in flush.stages]
    most = max(busy.total for busy in computing)
    found = []
    for own, busy in zip(flush.stages, computing, strict=True):
        bounds = _phases(own, start, end)
        idle = measure_within(complement(busy, start, end), bounds[:-1], bounds[1:]).tolist()
        computed = measure_within(busy, bounds[:-1], bounds[1:]).tolist()
        imbalance = shared_out(most - busy.total, computed, idle)
        left = [own_idle - part for own_idle, part in zip(idle, imbalance, strict=True)]
        parts = PipelineBubble(warm_up=left[0], steady=left[1], drain=left[2], imbalance=sum(imbalance))
        found.append(StageBubble(busy.total, parts))
    return found


def _busy(own: Sequence[Computation]) -> Spans:
    return union(np.array([one.start for one in own], np.int64), np.array([one.end for one in own], np.int64))


def _phases(own: Sequence[Computation], start: int, end: int) -> Times:
    """Bounds of warm-up, steady phase and drain: the stage's first backward, and the end of its last forward."""
    first_backward = min((one.start for one in own if one.kind != "F"), default=end)
    last_forward = max((one.end for one in own if one.kind == "F"), default=start)
    return np.array([start, first_backward, max(first_backward, last_forward), end], np.int64)


def shared_out(amount: int, weights: Sequence[int], room: Sequence[int]) -> list[int]:
    """`amount` in whole ns over places by their weights, none beyond its room; what does not fit goes to the others
    by the room they have left. `amount` must not exceed the room of all."""
    given = _in_proportion(amount, weights, room)
    left = [space - own for space, own in zip(room, given, strict=True)]
    given = [own + more for own, more in zip(given, _in_proportion(amount - sum(given), left, left), strict=True)]
    for place, space in enumerate(room):  # the odd ns
        given[place] += min(amount - sum(given), space - given[place])
    return given


def _in_proportion(amount: int, weights: Sequence[int], room: Sequence[int]) -> list[int]:
    total = sum(weights)
    return [min(amount * weight // total if total else 0, space) for weight, space in zip(weights, room, strict=True)]
