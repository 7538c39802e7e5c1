"""When ranges of an optimizer's step begin to update: behind the forward and backward that a closure runs inside them.

Lightning, LBFGS and SAM call `optimizer.step(closure)`: the range then holds the whole step, of which only what follows
the last backward pass is the optimizer's own.
"""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Table, Times, rows_of_rank, rows_where
from gpuscope.trace.naming import kinds
from gpuscope.trace.naming.kernel_categories import ENGINE, is_optimizer_step
from gpuscope.trace.schema import Category


def _is_backward(name: str) -> bool:
    return name.startswith(ENGINE) or (kinds.phase(name) in ("forward", "backward") and not is_optimizer_step(name))


def update_begins(host: Table, names: NamePool, rows: Times) -> Times:
    """For each of these host events, ranges of optimizers' steps: its start, or the end of the last forward or backward
    of its rank that lies within it, on whichever thread."""
    begins = host["start"][rows].copy()
    training = names.matching(_is_backward)
    if not len(rows) or not training.any():
        return begins
    for rank in distinct_values(host["rank"][rows]).tolist():
        inner = rows_where(
            *rows_of_rank(host, rank),
            lambda part: (
                training[host["name"][part]] & among(host["category"][part], (Category.OP, Category.ANNOTATION))
            ),
        )
        if not len(inner):
            continue
        start, end = host["start"][inner], host["end"][inner]
        for place in np.flatnonzero(host["rank"][rows] == rank).tolist():
            begin, until = int(host["start"][rows[place]]), int(host["end"][rows[place]])
            low, high = np.searchsorted(start, [begin, until])
            ends = end[low:high]
            ends = ends[ends <= until]
            if len(ends):
                begins[place] = int(ends.max())
    return begins
