"""Which collectives carry gradients where no backward pass is recorded: by what returns in each step, and when."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.replay.graph import Call
from gpuscope.analyzers.replay.host_returns import Operations
from gpuscope.trace.schema import Kind
from gpuscope.trace.table import Mask, Times

REDUCTIONS = ("all_reduce", "reduce_scatter")
FORWARD_FRAC = 0.2
"""Of a step's compute that comes before its first gradient: a forward pass is a third of a step, a fourth with
recomputation. Tensor parallelism reduces within the first layer."""
ALIKE_FRAC = 0.5
"""Of the steps that hold the same reductions: gradients return in each, but steps at the edge of a window are cut."""
LEAST_BYTES = 4_096
"""A step's losses, norms and counters are smaller in all."""
BETWEEN_FRAC = 0.01
"""Of a step's compute between reductions that are sent in a row behind the backward pass: casts, scaling."""


def gradients_by_structure(ops: Operations, step_of: Times, calls: Sequence[tuple[int, Call]]) -> tuple[Mask, Mask]:
    """Per operation, whether it carries gradients during the backward pass, and whether behind it.

    `calls`: places of collectives among the operations. Gradients are a group's reductions that return with the same
    sizes in most steps and begin no sooner than a forward pass could have ended.
    """
    within, behind = np.zeros(len(ops.rows), np.bool_), np.zeros(len(ops.rows), np.bool_)
    own: dict[str, dict[int, list[tuple[int, Call]]]] = defaultdict(lambda: defaultdict(list))
    for place, call in calls:
        if call.op in REDUCTIONS and call.bytes and (call.group_size or 2) > 1:
            own[call.group][int(step_of[place])].append((place, call))
    done = _done(ops, step_of)
    for steps in own.values():
        contents = Counter(_contents(held) for held in steps.values())
        usual, count = contents.most_common(1)[0]
        enough = sum(size for _, size in usual) >= LEAST_BYTES
        if len(steps) < 2 or count < max(2, ALIKE_FRAC * len(steps)) or not enough:
            continue
        alike = [held for held in steps.values() if _contents(held) == usual]
        if np.median([min(done[place] for place, _ in held) for held in alike]) < FORWARD_FRAC:
            continue
        spread = [max(done[place] for place, _ in held) - min(done[place] for place, _ in held) for held in alike]
        chosen = behind if len(usual) > 1 and np.median(spread) <= BETWEEN_FRAC else within
        chosen[[place for held in steps.values() for place, _ in held]] = True
    return within, behind


def _contents(held: Sequence[tuple[int, Call]]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((call.op, call.bytes or 0) for _, call in held))


def _done(ops: Operations, step_of: Times) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Per operation, the share of its step's compute that was launched before it."""
    compute = np.where(ops.work == Kind.COMPUTE, ops.end - ops.start, 0)
    order = np.lexsort((ops.start, ops.at, step_of))
    before = np.cumsum(compute[order]) - compute[order]
    step = step_of[order]
    first = np.searchsorted(step, step)
    total = np.bincount(step_of - step_of.min(), compute)[step_of - step_of.min()]
    found = np.zeros(len(order))
    found[order] = before - before[first]
    return np.asarray(found / np.maximum(total, 1))
