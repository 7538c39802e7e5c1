"""How long each rank's training thread ran, and was ready to run without a core, as gpuscope's recorder counts it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gpuscope.trace.trace import Trace

KEY = "gpuscope_cores"


class CoreTimes(NamedTuple):
    """Of a step: ns on a core (None in older recordings), and ns ready to run without one."""

    ran: int | None
    waited: int


def core_times(trace: Trace, rank: int) -> dict[int, CoreTimes]:
    """A rank's times by step; empty where they are not recorded."""
    own = np.flatnonzero(trace["ranks"]["rank"] == rank)
    for source in np.unique(trace["ranks"]["source"][own]).tolist():
        header = trace.sources[source].facts.get("header")
        counted = header.get(KEY) if isinstance(header, dict) else None
        found = _by_step(counted) if isinstance(counted, dict) else {}
        if found:
            return found
    return {}


def core_waits(trace: Trace, rank: int) -> dict[int, int]:
    """ns that a rank's training thread was runnable without a core, by step; empty where that is not recorded."""
    return {step: times.waited for step, times in core_times(trace, rank).items()}


def _by_step(counted: dict[str, Any]) -> dict[int, CoreTimes]:
    columns, rows = counted.get("columns"), counted.get("steps")
    if not isinstance(columns, list) or not isinstance(rows, list) or not {"step", "waited_ns"} <= set(columns):
        return {}
    step, waited = columns.index("step"), columns.index("waited_ns")
    ran = columns.index("ran_ns") if "ran_ns" in columns else None
    found = {}
    for row in rows:
        if (
            isinstance(row, list)
            and len(row) == len(columns)
            and all(isinstance(row[at], int) for at in (step, waited))
        ):
            on_core = row[ran] if ran is not None and isinstance(row[ran], int) and row[ran] > 0 else None
            if row[waited] >= 0:
                found[row[step]] = CoreTimes(on_core, row[waited])
    return found
