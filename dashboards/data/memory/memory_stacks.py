"""Memory in use over time by what allocated it, from an allocator's recorded history."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from gpuscope.schema.memory_section import MemoryEntry
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.naming.stack_frames import StackKind, kind_of
from gpuscope.trace.schema import NA, AllocatorAction
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

POINTS = 500
BEFORE = StackKind.BEFORE.value
KINDS = [kind.value for kind in StackKind]


@dataclass(frozen=True)
class MemoryOverTime:
    """`time` in ns since the first event (or the number of the event where times are absent), `used` bytes by kind."""

    timed: bool
    time: Times
    used: Mapping[str, Times]


def memory_over_time(trace: Trace, entry: MemoryEntry) -> MemoryOverTime | None:
    """Of one snapshot and device; None where it has no history with stacks."""
    table = trace["allocator_events"]
    source = next((i for i, one in enumerate(trace.sources) if str(one.path) == entry["path"]), -1)
    action = table["action"]
    kept = (table["device"] == entry["device"]) & (table["source"] == source)
    rows = np.flatnonzero(kept & np.isin(action, [AllocatorAction.ALLOC, AllocatorAction.FREE_COMPLETED]))
    if not len(rows) or not (table["frames"][rows] >= 0).any():
        return None
    # A block is freed by the last request for its address before that.
    order = np.lexsort((np.arange(len(rows)), table["address"][rows]))
    placed = rows[order]
    frees = action[placed] == AllocatorAction.FREE_COMPLETED
    same = np.concatenate(([False], table["address"][placed[1:]] == table["address"][placed[:-1]]))
    of_alloc = frees & same & ~np.concatenate(([False], frees[:-1]))
    frames = table["frames"][placed].astype(np.int64)
    frames[1:][of_alloc[1:]] = frames[:-1][of_alloc[1:]]
    kind = _kinds(trace, frames)
    kind[frees & ~of_alloc] = KINDS.index(BEFORE)
    change, which = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    change[order], which[order] = np.where(frees, -table["bytes"][placed], table["bytes"][placed]), kind
    used = {name: np.cumsum(np.where(which == i, change, 0)) for i, name in enumerate(KINDS)}
    total = np.sum(list(used.values()), axis=0)
    used[BEFORE] += entry["peak_allocated_bytes"] - int(total.max())
    places = _shown(total)
    times = table["time"][rows]
    timed = bool((times != NA).all())
    at = times[places] - times[0] if timed else places
    return MemoryOverTime(timed, at, {name: np.maximum(of[places], 0) for name, of in used.items() if of.max() > 0})


def _kinds(trace: Trace, frames: Array) -> Array:
    """The kind of each row's stack, by its place in KINDS."""
    codes, inverse = np.unique(frames, return_inverse=True)
    found = [KINDS.index(kind_of(trace.names[code].splitlines() if code >= 0 else []).value) for code in codes.tolist()]
    return np.array(found, np.int64)[inverse]


def _shown(total: Times) -> Times:
    """Of equal stretches of events the one with most in use: no peak is lost."""
    edges = np.linspace(0, len(total), min(POINTS, len(total)) + 1).astype(np.int64)
    return np.array([low + int(total[low:high].argmax()) for low, high in itertools.pairwise(edges)])
