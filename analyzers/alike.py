"""Which ranks read one clock: those of one host, and those of one file."""

from __future__ import annotations

import numpy as np

from gpuscope.trace.names import NO_NAME
from gpuscope.trace.trace import Trace


def clock_of(trace: Trace) -> dict[int, int]:
    """Per rank, the lowest rank that reads the same clock. Where the host is not recorded, only the ranks of one
    file are known to share one."""
    table = trace["ranks"]
    order = np.argsort(table["rank"], kind="stable")
    lead: dict[tuple[str, int], int] = {}
    found: dict[int, int] = {}
    columns = (table[name][order].tolist() for name in ("rank", "host", "source"))
    for rank, host, source in zip(*columns, strict=True):
        found.setdefault(rank, lead.setdefault(("host", host) if host != NO_NAME else ("file", source), rank))
    return found
