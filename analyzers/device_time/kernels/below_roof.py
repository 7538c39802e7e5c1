"""Operators that hold a tenth of the step and run below half of what their device could do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.analyzers.base.evidence import identity
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.analyzers.device_time.kernels.kernel_facts import PRECISIONS, KernelFacts
from gpuscope.analyzers.device_time.kernels.kernel_roofs import peak_rate
from gpuscope.analyzers.device_time.kernels.launching_operators import label
from gpuscope.analyzers.device_time.kernels.operator_table import shape_text
from gpuscope.analyzers.device_time.kernels.roof_reasons import Operation, reason_of
from gpuscope.hardware.device_peaks import memory_bandwidth, peaks_of
from gpuscope.schema.compute_section import BelowRoofEntry
from gpuscope.trace.columns.distinct import distinct_rows
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.intervals import intersect, union
from gpuscope.trace.schema import NA
from gpuscope.trace.trace import Trace

HALF = 0.5
"""Share of its roof below which an operator is told of."""
LEAST = 0.1
"""Share of the judged time that such operators of one name hold at least."""
KNOWN = 0.5
"""Share of an operator's time that kernels with known work make at least, its helpers counted with them."""
SHAPES_SHOWN = 3
"""Shapes of one operator that have entries, those that leave most first."""


def below_roof(trace: Trace, view: LaneView, facts: KernelFacts, rows: Times, model: str) -> Iterator[BelowRoofEntry]:
    """Of the compute kernels `rows` of a lane, by operator and inputs, on a device of this model."""
    window = view.judged_spans.total
    rows, model = rows[facts.roofs.operator[rows] != NA], model or facts.roofs.assumed or ""
    if not len(rows) or not window:
        return
    device, host, names = trace["device_events"], trace["host_events"], trace.names
    spent = (device["end"] - device["start"])[rows].astype(np.float64)
    operator = facts.roofs.operator[rows]
    recorded = _inputs(trace, operator)
    first, which = distinct_rows(host["name"][operator], *recorded)
    groups = len(first)

    def summed(values: Array) -> Array:
        return np.bincount(which, np.asarray(values, np.float64), groups)

    whole, floor = summed(spent), summed(facts.roofs.needed[rows])
    known = summed(np.where(facts.roofs.known[rows], spent, 0))
    rate = np.divide(floor, whole, out=np.zeros(groups), where=whole > 0)
    low = np.flatnonzero((floor > 0) & (rate < HALF) & (known >= KNOWN * whole))
    of_name = host["name"][operator][first]
    for name in np.unique(of_name[low]).tolist():
        own = low[of_name[low] == name]
        if whole[own].sum() < LEAST * window:
            continue
        own = own[np.argsort(floor[own] - whole[own])]
        for place in own[:SHAPES_SHOWN].tolist():
            texts = [_text(trace, int(column[first[place]])) for column in recorded]
            yield _entry(trace, view, facts, rows[which == place], names[name], texts, model)


def _inputs(trace: Trace, operator: Times) -> tuple[Array, Array, Array, Array]:
    """Codes of the dimensions, types, numbers and strides of operators' inputs."""
    shapes = trace["shapes"]
    place = np.zeros(len(trace["host_events"]), np.int64)
    place[shapes["event"]] = np.arange(len(shapes))
    row = place[operator]
    dims, types, concrete, strides = (shapes[name][row] for name in ("dims", "types", "concrete", "strides"))
    return dims, types, concrete, strides


def _text(trace: Trace, code: int) -> str:
    return "" if code == NO_NAME else trace.names[code]


def _entry(
    trace: Trace, view: LaneView, facts: KernelFacts, rows: Times, name: str, recorded: list[str], model: str
) -> BelowRoofEntry:
    """Of the kernels `rows` of one operator with these inputs (dimensions, types, numbers, strides)."""
    device, names, roofs = trace["device_events"], trace.names, facts.roofs
    start, end = device["start"][rows], device["end"][rows]
    whole, floor = float((end - start).sum()), float(roofs.needed[rows].sum())
    longest, main = int(rows[np.argmax(end - start)]), int(rows[np.argmax(roofs.needed[rows])])
    by_memory, precision = bool(roofs.by_memory[main]), PRECISIONS[int(facts.precision[main])]
    kernel, category = names[int(device["name"][longest])], label(int(facts.category[main]))
    chained = float((end - start)[facts.chain[rows] >= 0].sum()) > whole / 2
    dims, types, concrete, strides = recorded
    operation = Operation(name, dims, types, concrete, strides, kernel, category, precision, by_memory, model, chained)
    reason = reason_of(operation, floor / whole)
    # Kernels beside each other have each a part of the time that they cover together.
    covered = intersect(union(start, end), view.judged_spans).total
    return {
        "operator": name,
        "shapes": shape_text(dims),
        "kernel": kernel,
        "category": category,
        "kernels": sorted({names[code] for code in np.unique(device["name"][rows]).tolist()}),
        "calls": len(np.unique(roofs.operator[rows])) / len(view.judged_steps),
        "dur_ns": covered,
        "floor_ns": round(floor * covered / whole),
        "roof": "memory" if by_memory else "compute",
        "precision": precision,
        "device_name": model,
        "device_assumed": facts.roofs.assumed is not None,
        "peak_per_s": (memory_bandwidth(model) or 0.0) if by_memory else peak_rate(peaks_of(model), precision),
        "reason": reason.code if reason else None,
        "reaches": reason.reaches if reason else None,
        "figures": dict(reason.figures) if reason else {},
        "start_ns": int(device["start"][longest]),
        "longest_ns": int((end - start).max()),
        "event": identity(trace, "device_events", longest),
    }
