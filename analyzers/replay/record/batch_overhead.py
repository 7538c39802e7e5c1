"""What of a computation does not shrink with its batch, on a rank whose training thread is the device.

Python between operators, and of each operator its dispatch: half of a model's operators are views, reshapes and small
ones that do hardly anything else, so the median of what an operator takes itself is taken for it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope.analyzers.facts.pipeline_facts.flushes import KINDS
from gpuscope.trace.columns.table import Table, Times
from gpuscope.trace.cpu_run.host_device import training_threads
from gpuscope.trace.intervals import union
from gpuscope.trace.schema import Category
from gpuscope.trace.trace import Trace

COMPUTATIONS_KEPT = 100
"""Of a rank, those looked at: enough for a mean."""


def fixed_shares(trace: Trace, rank: int, operations: Table) -> dict[str, float]:
    """By kind of computation (F, B, W), the share of its time that its batch does not change; none without operators.

    `operations` are those of this trace, on the rank's own clock.
    """
    host = trace["host_events"]
    rows = np.flatnonzero(host["rank"] == rank)
    threads = training_threads(host, trace.names, rows)
    rows = rows[(host["category"][rows] == Category.OP) & np.isin(host["thread"][rows], threads)]
    rows = rows[np.lexsort((-host["end"][rows], host["start"][rows]))]
    start, end = host["start"][rows], host["end"][rows]
    found: dict[str, list[float]] = defaultdict(list)
    kinds = {trace.names.find(op): kind for op, kind in KINDS.items()}
    own = np.flatnonzero((operations["rank"] == rank) & np.isin(operations["op"], list(kinds)))[:COMPUTATIONS_KEPT]
    for op, begin, until in zip(*(operations[column][own].tolist() for column in ("op", "start", "end")), strict=True):
        low, high = np.searchsorted(start, [begin, until]).tolist()
        inside = end[low:high] <= until
        first, last = start[low:high][inside], end[low:high][inside]
        if len(first):
            itself = own_times(first, last)
            python = until - begin - union(first, last).total
            dispatch = float(np.minimum(itself, np.median(itself)).sum())
            found[kinds[op]].append((python + dispatch) / (until - begin))
    return {kind: float(np.mean(shares)) for kind, shares in found.items()}


def own_times(start: Times, end: Times) -> Times:
    """ns of each operator less those within it; by start, outer ones first."""
    found = end - start
    around: list[int] = []
    for place, (begin, until) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        while around and end[around[-1]] <= begin:
            around.pop()
        if around:
            found[around[-1]] -= until - begin
        around.append(place)
    return np.asarray(np.maximum(found, 0))
