"""Operators that hold a tenth of the step and run below half of what their device could do."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpuscope.analyzers.base.evidence import identity
from gpuscope.analyzers.device_time.kernels.kernel_facts import PRECISIONS, KernelFacts
from gpuscope.analyzers.device_time.kernels.launching_operators import label
from gpuscope.analyzers.device_time.kernels.operator_table import shape_text
from gpuscope.analyzers.device_time.kernels.roof_reasons import Operation, reason_of
from gpuscope.hardware.device_peaks import memory_bandwidth, peaks_of
from gpuscope.schema.compute_section import BelowRoofEntry
from gpuscope.trace.columns.distinct import distinct_rows
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Times
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


def below_roof(
    trace: Trace, facts: KernelFacts, rows: Times, model: str, window: int, steps: int
) -> Iterator[BelowRoofEntry]:
    """Of the compute kernels `rows` of a lane, by operator and inputs; `window` is the judged time, ns."""
    rows = rows[facts.roofs.operator[rows] != NA]
    if not len(rows) or not window:
        return
    device, host, names = trace["device_events"], trace["host_events"], trace.names
    spent = (device["end"] - device["start"])[rows].astype(np.float64)
    operator = facts.roofs.operator[rows]
    recorded = _inputs(trace, operator)
    columns = (host["name"][operator], *recorded, facts.precision[rows] * (facts.work.flops[rows] > 0))
    # A helper (split-K sum, layout copy) counts with its operator's kernels, whatever precision its name tells.
    first, which = distinct_rows(*columns[:-1])
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
            mine = np.flatnonzero(which == place)
            yield _entry(
                trace, facts, rows[mine], names[name], tuple(int(c[first[place]]) for c in recorded), model, steps
            )


def _inputs(trace: Trace, operator: Times) -> tuple[Array, Array, Array, Array]:
    """Codes of the dimensions, types, numbers and strides of operators' inputs."""
    shapes = trace["shapes"]
    place = np.zeros(len(trace["host_events"]), np.int64)
    place[shapes["event"]] = np.arange(len(shapes))
    row = place[operator]
    dims, types, concrete, strides = (shapes[name][row] for name in ("dims", "types", "concrete", "strides"))
    return dims, types, concrete, strides


def _entry(
    trace: Trace, facts: KernelFacts, rows: Times, name: str, recorded: tuple[int, ...], model: str, steps: int
) -> BelowRoofEntry:
    device, names, roofs = trace["device_events"], trace.names, facts.roofs
    spent = device["end"][rows] - device["start"][rows]
    longest = int(rows[np.argmax(spent)])
    main = int(rows[np.argmax(roofs.needed[rows])])
    by_memory = bool(roofs.by_memory[main])
    precision = PRECISIONS[int(facts.precision[main])]
    whole, floor = float(spent.sum()), float(roofs.needed[rows].sum())
    dims, types, concrete, strides = ("" if code == NO_NAME else names[code] for code in recorded)
    kernel = names[int(device["name"][longest])]
    chained = float(spent[facts.chain[rows] >= 0].sum()) > whole / 2
    operation = Operation(
        name,
        dims,
        types,
        concrete,
        strides,
        kernel,
        label(int(facts.category[main])),
        precision,
        by_memory,
        model,
        chained,
    )
    reason = reason_of(operation, floor / whole)
    peak = (
        memory_bandwidth(model)
        if by_memory
        else peaks_of(model).get(
            "tf32"
            if precision == "fp32 or tf32" and "tf32" in peaks_of(model)
            else precision.replace("fp32 or tf32", "fp32")
        )
    )
    calls = len(np.unique(roofs.operator[rows]))
    return {
        "operator": name, "shapes": shape_text(dims), "kernel": kernel, "category": label(int(facts.category[main])),
        "kernels": sorted({names[code] for code in np.unique(device["name"][rows]).tolist()}),
        "calls": calls / steps, "dur_ns": int(whole), "floor_ns": round(floor),
        "roof": "memory" if by_memory else "compute",
        "precision": precision, "peak_per_s": peak or 0.0, "reason": reason.code if reason else None,
        "figures": dict(reason.figures) if reason else {},
        "start_ns": int(device["start"][longest]), "longest_ns": int(spent.max()),
        "event": identity(trace, "device_events", longest),
    }  # fmt: skip
