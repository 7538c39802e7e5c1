"""What the host of a rank did, of a recording that holds its launches and not one of their kernels."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NamePool
from gpuscope.trace.columns.table import Mask, Table, looked_up, rows_of_rank
from gpuscope.trace.intervals import union
from gpuscope.trace.launch_links import outermost
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category


def what_the_host_did(host: Table, names: NamePool, rank: int) -> dict[str, Any] | None:
    """Where the time of the thread with most runtime calls went, in % of it; None where the rank made no call."""
    rows = np.arange(*rows_of_rank(host, rank))
    calls = rows[host["category"][rows] == Category.RUNTIME]
    if not len(calls):
        return None
    threads = distinct_values(host["thread"][calls])
    counts = [int(np.count_nonzero(host["thread"][calls] == thread)) for thread in threads.tolist()]
    own = rows[host["thread"][rows] == threads[int(np.argmax(counts))]]
    window = int(host["end"][own].max() - host["start"][own].min())
    category, name = host["category"][own], host["name"][own]
    operator, runtime = category == Category.OP, category == Category.RUNTIME
    waiting = runtime & looked_up(names.matching(kinds.is_blocking_call), name)

    def percent(picked: Mask) -> float:
        return 100 * union(host["start"][own[picked]], host["end"][own[picked]]).total / max(window, 1)

    return {
        "window_ms": window / 1e6,
        "operators": percent(operator),
        "calls": percent(runtime),
        "waits": percent(waiting),
        "most": _most(host, names, own[operator] if operator.any() else own[runtime]),
    }


def _most(host: Table, names: NamePool, rows: np.ndarray) -> str:
    """The name with most time among the outermost of `rows`."""
    rows = outermost(host, rows)
    codes, lasts = host["name"][rows], host["end"][rows] - host["start"][rows]
    return names[max(distinct_values(codes).tolist(), key=lambda code: int(lasts[codes == code].sum()))]
