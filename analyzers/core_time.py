"""How long a training thread waited for a core, as gpuscope's recorder notes it in a trace's metadata.

The form stands in docs/recording.md; other recorders leave nothing like it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuscope.trace.trace import Trace

KEY = "gpuscope_cores"


def waits(trace: Trace, rank: int) -> dict[int, int]:
    """ns that a rank's training thread was runnable without a core, by step; empty where that is not recorded."""
    own = np.flatnonzero(trace["ranks"]["rank"] == rank)
    for source in np.unique(trace["ranks"]["source"][own]).tolist():
        header = trace.sources[source].facts.get("header")
        told = header.get(KEY) if isinstance(header, dict) else None
        found = _by_step(told) if isinstance(told, dict) else {}
        if found:
            return found
    return {}


def _by_step(told: dict[str, Any]) -> dict[int, int]:
    columns, rows = told.get("columns"), told.get("steps")
    if not isinstance(columns, list) or not isinstance(rows, list) or not {"step", "waited_ns"} <= set(columns):
        return {}
    step, waited = columns.index("step"), columns.index("waited_ns")
    pairs = [(row[step], row[waited]) for row in rows if isinstance(row, list) and len(row) == len(columns)]
    return {step: ns for step, ns in pairs if isinstance(step, int) and isinstance(ns, int) and ns >= 0}
