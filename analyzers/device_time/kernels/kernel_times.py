"""Where device time goes, kernel by kernel: count, time, share, category, achieved FLOP rate."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.device_time.kernels.kernel_facts import kernel_facts
from gpuscope.analyzers.device_time.kernels.launching_operators import label
from gpuscope.analyzers.device_time.kernels.operator_work import Work, device_models
from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import DEVICE_EVENTS
from gpuscope.analyzers.frame.sections import KERNELS
from gpuscope.hardware.device_peaks import peak_flops
from gpuscope.report.schema.document import KernelEntry
from gpuscope.trace.columns.table import Times
from gpuscope.trace.trace import Trace

_ROOM = 64
"""More than there are categories, so that name and category fit into one key."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table of kernels over the lanes' windows, the costliest first."""
    device = trace["device_events"]
    inside = [
        view.rows[(device["end"][view.rows] > view.window[0]) & (device["start"][view.rows] < view.window[1])]
        for view in lanes
    ]
    rows = np.concatenate(inside) if inside else np.empty(0, np.int64)
    duration = device["end"][rows] - device["start"][rows]
    facts = kernel_facts(trace)
    category = facts.category[rows]
    keys = device["name"][rows].astype(np.int64) * _ROOM + category
    unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, inverse, duration)
    rates = _rates(trace, rows, inverse, facts.work, duration)
    everything = int(duration.sum())
    entries: list[KernelEntry] = []
    for index in np.argsort(-total, kind="stable").tolist():
        rate, precision, peak_frac = rates.get(index, (None, None, None))
        entries.append({
            "name": trace.names[int(unique[index] // _ROOM)], "category": label(int(unique[index] % _ROOM)),
            "count": int(counts[index]), "dur_ns": int(total[index]), "mean_ns": int(total[index] // counts[index]),
            "share_frac": int(total[index]) / everything if everything else 0.0, "flops_per_s": rate,
            "precision": precision, "peak_frac": peak_frac,
        })  # fmt: skip
    result = Result(ANALYZER.name)
    result.sections[KERNELS] = entries
    return result


def _rates(
    trace: Trace, rows: Times, group: Times, work: Work, duration: Times
) -> dict[int, tuple[float, str | None, float | None]]:
    """Per group of kernels (device events `rows`; `work` is of all) whose FLOPs are known: their rate, precision,
    and share of the peak of their device.

    Precision and share are None where kernels of the group differ in them, or they are not known.
    """
    device, models = trace["device_events"], device_models(trace)
    sums: dict[int, list[float]] = {}
    kinds: dict[int, set[tuple[str | None, str]]] = {}
    for index in np.flatnonzero(work.flops[rows]).tolist():
        row = int(rows[index])
        own = sums.setdefault(int(group[index]), [0.0, 0.0])
        own[0] += float(work.flops[row])
        own[1] += float(duration[index])
        model = models.get((int(device["rank"][row]), int(device["device"][row])), "")
        kinds.setdefault(int(group[index]), set()).add((work.precision[row], model))
    rates: dict[int, tuple[float, str | None, float | None]] = {}
    for key, (flops, spent) in sums.items():
        if not spent:
            continue
        rate = flops / spent * 1e9
        precisions = {precision for precision, _ in kinds[key]}
        precision = precisions.pop() if len(precisions) == 1 else None
        peaks = {peak_flops(model, precision) if precision else None for _, model in kinds[key]}
        peak = peaks.pop() if len(peaks) == 1 else None
        rates[key] = (rate, precision, rate / peak if peak else None)
    return rates


ANALYZER = FileAnalyzer("kernels", run, (DEVICE_EVENTS,), (KERNELS,))
