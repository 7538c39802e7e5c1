"""One counter over the recording: its means by time, within what was going on, and its course."""

from __future__ import annotations

import numpy as np

from gpuscope.schema.nccl_sections import LinkCounterEntry
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.intervals import Spans, measure_within
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

BINS = 100
"""Parts of the recording that a counter's course over time is given in."""


def values_of(trace: Trace, rows: Times | Mask) -> Array:
    """The samples' values in whole units, shape (n,)."""
    parts = trace["counters"]["parts"][rows]
    return np.asarray(trace["counters"]["value"][rows] / np.where(parts == NA, 1, parts))


def mean_within(spans: Spans, start: Times, end: Times, value: Array) -> float | None:
    """The mean by time of samples [start, end) inside `spans`; None where no sample is."""
    within = measure_within(spans, start, end)
    return float(np.average(value, weights=within)) if within.any() else None


def counter_entry(trace: Trace, rows: Mask, exposed: Spans) -> LinkCounterEntry:
    """The figures of one counter, whose samples are `rows`; `exposed` is when communication was."""
    table = trace["counters"]
    start, end = (table[name][rows] for name in ("start", "end"))
    value, length = values_of(trace, rows), np.maximum(end - start, 1)
    first = int(np.flatnonzero(rows)[0])
    begin, width = int(start.min()), -(-max(int(end.max() - start.min()), 1) // BINS)
    return {
        "place": trace.names[int(table["place"][first])],
        "counter": trace.names[int(table["counter"][first])],
        "unit": trace.names[int(table["unit"][first])],
        "samples": int(rows.sum()),
        "mean": float(np.average(value, weights=length)),
        "peak": float(value.max()),
        "total": round(float(value.sum())),
        "mean_while_exposed": mean_within(exposed, start, end, value),
        "start_ns": begin,
        "bin_ns": width,
        "course": _course(start - begin, value, length, width),
    }


def _course(offset: Array, value: Array, length: Array, width: int) -> list[float]:
    """The mean value per bin of the recording; a sample counts where it begins."""
    place = np.minimum(offset // width, BINS - 1)
    weight = np.bincount(place, weights=length, minlength=BINS)
    total = np.bincount(place, weights=value * length, minlength=BINS)
    return [float(one) for one in np.divide(total, weight, out=np.zeros(BINS), where=weight > 0)]
