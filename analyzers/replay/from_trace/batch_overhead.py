"""What of a computation does not shrink with its batch.

On a rank whose training thread is the device: Python between operators, and of each operator its dispatch. Half of a
model's operators are views, reshapes and small ones that do hardly anything else, so the median of what an operator
takes itself is taken for it. On a GPU: the pauses between its kernels, and what each takes to begin and end.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from gpuscope import native
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.facts.pipeline_facts.flushes import KINDS
from gpuscope.trace.columns.distinct import among
from gpuscope.trace.columns.table import Table, Times, rows_of_rank
from gpuscope.trace.cpu_run.host_device import training_threads
from gpuscope.trace.intervals import measure_within, union
from gpuscope.trace.launch_links import longer_first
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

COMPUTATIONS_KEPT = 100
"""Of a rank, those looked at: enough for a mean."""
KERNEL_NS = 1_000
"""What a kernel takes whatever it does: profilers show 1 to 2 us for an empty one."""


def fixed_shares(trace: Trace, rank: int, operations: Table) -> dict[str, float]:
    """By kind of computation (F, B, W), the share of its time that its batch does not change; none without operators.

    `operations` are those of this trace, on the rank's own clock.
    """
    host = trace["host_events"]
    kinds = {trace.names.find(op): kind for op, kind in KINDS.items()}
    own = np.flatnonzero((operations["rank"] == rank) & np.isin(operations["op"], list(kinds)))[:COMPUTATIONS_KEPT]
    if not len(own):
        return {}
    low, high = rows_of_rank(host, rank)
    threads = training_threads(host, trace.names, np.arange(low, high))
    between = [operations["start"][own].min(), operations["end"][own].max()]
    rows = np.arange(*(low + np.searchsorted(host["start"][low:high], between)))
    rows = rows[(host["category"][rows] == Category.OP) & among(host["thread"][rows], threads)]
    rows = longer_first(host, rows)
    start, end = host["start"][rows], host["end"][rows]
    found: dict[str, list[float]] = defaultdict(list)
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


def fixed_shares_on_device(
    trace: Trace, view: LaneView, operations: Table, kernel_ns: int = KERNEL_NS
) -> dict[str, float]:
    """The same of a rank with a GPU, of whose kernels each takes `kernel_ns` whatever it does; `operations` on the
    rank's own clock."""
    device = trace["device_events"]
    rows = view.rows[device["kind"][view.rows] == Kind.COMPUTE]
    start, busy = device["start"][rows], union(device["start"][rows], device["end"][rows])
    kinds = {trace.names.find(op): kind for op, kind in KINDS.items()}
    own = np.flatnonzero((operations["rank"] == view.lane.rank) & np.isin(operations["op"], list(kinds)))
    own = own[:COMPUTATIONS_KEPT]
    begin, until = operations["start"][own], operations["end"][own]
    kernels = np.searchsorted(start, until) - np.searchsorted(start, begin)
    fixed = until - begin - measure_within(busy, begin, until) + kernels * kernel_ns
    found: dict[str, list[float]] = defaultdict(list)
    for op, ns, whole in zip(operations["op"][own].tolist(), fixed.tolist(), (until - begin).tolist(), strict=True):
        if whole > 0:
            found[kinds[op]].append(min(1.0, ns / whole))
    return {kind: float(np.mean(shares)) for kind, shares in found.items()}


def own_times(start: Times, end: Times) -> Times:
    """ns of each operator less those within it; by start, outer ones first."""
    spent = end - start
    around = native.parents(start, end, np.zeros(len(start), np.int64), spent > 0)
    inside = np.flatnonzero(around != NA)
    found = spent.copy()
    np.subtract.at(found, around[inside], spent[inside])
    return np.asarray(np.maximum(found, 0))
