"""Step times from durations: every operation starts when what it waits for has ended."""

from __future__ import annotations

from functools import reduce

import numpy as np

from gpuscope.analyzers.step_graph.dependencies import COMMUNICATION, OPTIMIZER, Graph
from gpuscope.analyzers.step_graph.grid import Grid
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.when_used import dataclass

_AT_ONCE = 1 << 20
"""Values per operation that are computed at once: bounds the memory of many scenarios."""


def durations(grid: Grid, graph: Graph) -> Times:
    """ns of every operation, shape (operations, replicas, steps): of one that synchronises its transfer,
    the time from the latest start in its group, else its own time. Never below 0, whatever the clocks say."""
    found = grid.end - grid.start
    for group in graph.groups:
        if group.synchronises:
            members = list(group.members)
            latest = grid.start[members].max(axis=0)
            if group.over_replicas:
                latest = latest.max(axis=0)
            found[members] = grid.end[members] - latest
    return np.asarray(np.maximum(found, 0))


def ideal(grid: Grid, original: Times) -> Times:
    """ns that each operation takes where none is slower than its peers, shape (operations,).

    Over all stages, replicas and steps: the median of a type that communicates, the mean of another.
    """
    found = np.empty(len(grid), np.int64)
    types = np.array(grid.op)
    for op in set(grid.op):
        own = types == op
        found[own] = round(float(np.median(original[own]) if op in COMMUNICATION else original[own].mean()))
    return found


@dataclass(frozen=True)
class Scenarios:
    """Which operations take their original time; all others take the ideal one.

    Scenario s keeps the operations `operations[s]` of the replicas `replicas[s]`, or, where `others[s]`,
    all but these.
    """

    operations: Mask
    replicas: Mask
    others: Mask

    def __len__(self) -> int:
        return len(self.others)

    def __getitem__(self, part: slice) -> Scenarios:
        return Scenarios(self.operations[part], self.replicas[part], self.others[part])

    def keeps(self, operation: int) -> Mask:
        """Whether the operation keeps its time, shape (scenarios, replicas, 1)."""
        chosen = self.operations[:, operation, None] & self.replicas
        return np.asarray((chosen ^ self.others[:, None])[:, :, None])


def step_times(grid: Grid, graph: Graph, original: Times, best: Times, scenarios: Scenarios) -> Times:
    """Step times in ns, shape (scenarios, steps), of `original` times (operations, replicas, steps) and the
    `best` ones (operations,). Steps begin at 0, and nothing is launched late."""
    _, replicas, steps = original.shape
    block = max(1, _AT_ONCE // (replicas * steps))
    parts = [
        _replay(grid, graph, original, best, scenarios[first : first + block])
        for first in range(0, len(scenarios), block)
    ]
    return np.concatenate(parts)


def _replay(grid: Grid, graph: Graph, original: Times, best: Times, scenarios: Scenarios) -> Times:
    _, replicas, steps = original.shape
    uses = np.bincount(np.array([i for own in graph.after for i in own], np.int64), minlength=len(grid))
    ends: dict[int, Times] = {}
    begin = np.zeros((len(scenarios), replicas, steps), np.int64)
    last = begin
    closes = OPTIMIZER if OPTIMIZER in grid.op else None
    for group in graph.groups:
        waits = [before for member in group.members for before in graph.after[member]]
        start = reduce(np.maximum, (ends[before] for before in waits), begin)
        if group.over_replicas:
            start = start.max(axis=1, keepdims=True)
        for member in group.members:
            ends[member] = start + np.where(scenarios.keeps(member), original[member], best[member])
            if closes is None or grid.op[member] == closes:
                last = np.maximum(last, ends[member])
        for before in waits:
            uses[before] -= 1
            if not uses[before]:  # not needed again: memory grows with what is open, not with the job
                del ends[before]
    return np.asarray(last.max(axis=1))
