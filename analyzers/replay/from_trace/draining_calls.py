"""Allocator calls that return only when the device has done all that was launched before them."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.columns.table import Times
from gpuscope.trace.naming import kinds
from gpuscope.trace.schema import Category
from gpuscope.trace.trace import Trace

FREES = frozenset({"cudaFree", "cudaFreeHost", "cuMemFree", "cuMemFree_v2", "hipFree", "hipHostFree"})
"""Calls that are known to wait for the device («implicit synchronization» in NVIDIA's CUDA programming guide): they do
also where the recording never shows it, because the host had waited before each."""
FEWEST = 3
"""Calls from which it shows that others of a name do."""


def draining_calls(trace: Trace, rows: Times, launched: Times, ended: Times, clock_ns: int) -> Times:
    """Of a rank's host events (`rows`) the allocator calls that wait for its device, whose operations were `launched`
    and `ended` then.

    A call that returned while earlier work was unfinished shows that those of its name don't. One of another name than
    `FREES` is shown to wait where its calls' time behind the last work's end varies less than their whole time.
    """
    host = trace["host_events"]
    named = trace.names.matching(kinds.is_allocator_call)[host["name"][rows]]
    calls = rows[named & (host["category"][rows] == Category.RUNTIME)]
    begin, end = host["start"][calls], host["end"][calls]
    order = np.argsort(launched, kind="stable")
    done = np.append(0, np.maximum.accumulate(ended[order]))[np.searchsorted(launched[order], begin, "right")]
    held, name = done > begin + clock_ns, host["name"][calls]
    found = np.zeros(len(calls), np.bool_)
    for which in np.unique(name).tolist():
        own = name == which
        if not (done[own] > end[own] + clock_ns).any():
            known = trace.names[which] in FREES
            found |= own & (known or _seen(begin[own & held], end[own & held], done[own & held]))
    return np.asarray(calls[found])


def _seen(begin: Times, end: Times, done: Times) -> bool:
    return len(begin) >= FEWEST and bool(np.std(end - done) < np.std(end - begin))
