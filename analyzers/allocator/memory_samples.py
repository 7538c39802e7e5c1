"""Memory over time: its timeline thinned out for a report, and what a profiler's memory events hold."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from gpuscope.analyzers.allocator.allocator_settings import variable
from gpuscope.schema.memory_section import MemoryEntry, MemorySample
from gpuscope.trace.columns.table import Times
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

POINTS = 240
"""Of a timeline in the report: more than a terminal or a page shows."""


def timeline(times: Times, allocated: Times, reserved: Times | None) -> list[MemorySample]:
    """At most `POINTS` points: of each stretch the one with most allocated, so that no peak is lost."""
    count = len(allocated)
    edges = np.unique(np.linspace(0, count, min(count, POINTS) + 1).astype(np.int64))
    rows = [low + int(np.argmax(allocated[low:high])) for low, high in pairwise(edges.tolist())]
    return [
        {
            "time_ns": None if times[row] == NA else int(times[row]),
            "allocated_bytes": int(allocated[row]),
            "reserved_bytes": None if reserved is None or reserved[row] == NA else int(reserved[row]),
        }
        for row in rows
    ]


def profiled(trace: Trace) -> list[MemoryEntry]:
    """One entry per rank and device of which a profiler recorded memory events."""
    table, ranks = trace["memory_samples"], trace["ranks"]
    entries: list[MemoryEntry] = []
    for rank, device in sorted(set(zip(table["rank"].tolist(), table["device"].tolist(), strict=True))):
        own = table.take((table["rank"] == rank) & (table["device"] == device))
        sources = ranks["source"][ranks["rank"] == rank]
        path = trace.sources[int(sources[0])].path if len(sources) else ""
        allocated, reserved = own["allocated"], own["reserved"]
        peak = int(np.argmax(allocated))
        known = reserved[reserved != NA]
        entries.append({
            "rank": rank, "device": device, "path": str(path), "kind": "profiler", "events": len(own),
            "from_start": None, "settings": None, "variable": variable(modern=False),
            "end_allocated_bytes": int(allocated[-1]),
            "end_reserved_bytes": None if reserved[-1] == NA else int(reserved[-1]),
            "peak_allocated_bytes": int(allocated[peak]), "peak_active_bytes": None,
            "peak_reserved_bytes": int(known.max()) if len(known) else None,
            "peak_time_ns": int(own["time"][peak]), "at_peak": [],
            "timeline": timeline(own["time"], allocated, reserved),
            "fragmentation": None, "failures": [], "retries": [], "replay": None,
        })  # fmt: skip
    return entries
