"""What the compute time of a step consists of, what it would take at the device's peaks, and what could be shorter."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.base.analyzer import DEVICE_EVENTS, FileAnalyzer, Result, entries_of_devices
from gpuscope.analyzers.base.evidence import identity
from gpuscope.analyzers.base.lanes import COMPUTE, LaneView, computing
from gpuscope.analyzers.device_time.kernel_facts import PRECISIONS, KernelFacts, kernel_facts
from gpuscope.analyzers.device_time.kernel_roofs import compiled_for, generation_of, peak_rate
from gpuscope.analyzers.device_time.operator_table import shape_text
from gpuscope.analyzers.device_time.operator_work import codes, device_models, is_multiplying, label
from gpuscope.analyzers.device_time.roof_reasons import Operation, reason_of
from gpuscope.hardware.device_peaks import memory_bandwidth, peaks_of
from gpuscope.hardware.link_rates import compute_capability
from gpuscope.problems import device
from gpuscope.schema.call_tree_section import BelowRoofEntry, ComputeEntry, ComputePart, Generation, ReducibleEntry
from gpuscope.trace import kernel_categories
from gpuscope.trace.intervals import intersect, union
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA
from gpuscope.trace.table import Array, Mask, Times, distinct_rows, distinct_values, looked_up, picked
from gpuscope.trace.trace import Trace

# Operators that hold a tenth of the step and run below half of what their device could do.

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
            yield _below_roof_entry(trace, view, facts, rows[which == place], names[name], texts, model)


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


def _below_roof_entry(
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


SIZES_SHOWN = 6
NEAR_PEAK = 0.5
"""Share of the 16-bit peak from which only a faster precision shortens a product."""
COMPILED = 0.1
"""Share of Inductor's kernels among memory-bound ones from which the model is compiled already."""
_ONE_PASS = when_used.pattern(
    r"fused_?(adam|sgd|adagrad|lamb|lion)|multi_tensor_apply.*(Adam|SGD|LAMB|"
    r"Lion|Adagrad)Functor|split_embedding",
    re.IGNORECASE,
)
"""torch's fused optimizers, and those of APEX, whose functors update parameters and states in one pass."""


def _of_lane(trace: Trace, view: LaneView) -> Iterator[ComputeEntry]:
    facts, steps, rows = kernel_facts(trace), view.judged_steps, computing(trace, view)
    if not len(rows):
        return
    model = device_models(trace).get(view.key, "")
    window = sum(step.end - step.start for step in steps)
    yield {
        "rank": view.lane.rank,
        "device": view.lane.device,
        "device_name": model or None,
        "generation": _generation(trace, facts, rows, model),
        "steps": len(steps),
        "window_ns": window,
        "parts": _parts(trace, view, facts, rows),
        "reducible": list(_reducible(trace, view, facts, rows, model)),
        "below_roof": list(below_roof(trace, view, facts, rows, model)),
        "why": _why(facts, rows, model),
    }


def _generation(trace: Trace, facts: KernelFacts, rows: Times, model: str) -> Generation | None:
    """Of an NVIDIA GPU: by its model, else the newest that a kernel was compiled for; newer GPUs run older ones."""
    if compute_capability(model) is not None:
        return generation_of(model)
    products = rows[is_multiplying(facts.category[rows])]
    return compiled_for(trace.names[code] for code in np.unique(trace["device_events"]["name"][products]).tolist())


def _covered(trace: Trace, view: LaneView, rows: Times) -> int:
    """ns of the judged steps in which any of some kernels ran: those beside each other on several streams, or twice in
    a file, count once."""
    device = trace["device_events"]
    return intersect(union(device["start"][rows], device["end"][rows]), view.judged_spans).total


def _parts(trace: Trace, view: LaneView, facts: KernelFacts, rows: Times) -> list[ComputePart]:
    device, steps = trace["device_events"], len(view.judged_steps)
    category, floor = facts.category[rows], picked(facts.roofs.floor, rows)
    spent = device.at("end", rows) - device.at("start", rows)
    counted = picked(facts.roofs.known, rows)
    found: list[ComputePart] = []
    for code in distinct_values(category).tolist():
        own = category == code
        known, bounded = own & counted, own & counted & (floor > 0)
        covered = _covered(trace, view, rows[own])
        # Of kernels beside each other each has its part of the time that they cover together.
        alone = covered / max(int(spent.sum(where=own)), 1)
        needed = int(np.where(floor > 0, floor, spent).sum(where=known))
        found.append(
            {
                "category": label(code),
                "dur_ns": covered // steps,
                "known_ns": int(alone * int(spent.sum(where=known))) // steps,
                "bounded_ns": int(alone * int(spent.sum(where=bounded))) // steps,
                "floor_ns": int(alone * needed) // steps,
            }
        )
    return sorted(found, key=lambda part: -part["dur_ns"])


def _why(facts: KernelFacts, rows: Times, model: str) -> str:
    from gpuscope.analyzers.device_time.efficiency import HOW_SHAPES

    if not model:
        return "the model of the device is not recorded, so its peaks are unknown"
    if not peaks_of(model):
        return f"no peaks are known for {model!r}"
    if not (picked(facts.roofs.floor, rows) > 0).any():
        return f"no operator that launched these kernels has recorded shapes; {HOW_SHAPES}"
    return ""


def _reducible(trace: Trace, view: LaneView, facts: KernelFacts, rows: Times, model: str) -> Iterator[ReducibleEntry]:
    """What other settings would shorten; nothing where the kernels show that it is set already."""
    device, names = trace["device_events"], trace.names
    category, precision, name = facts.category[rows], facts.precision[rows], device.at("name", rows)
    products = is_multiplying(category)
    for code, precise in (("single_precision", kernel_categories.SINGLE), ("tf32_products", "tf32")):
        yield from _entry(trace, view, code, rows, products & (precision == PRECISIONS.index(precise)), precise)
    spent = device.at("end", rows) - device.at("start", rows)
    triton = int(spent[category == codes("triton_fused")[0]].sum())
    chained = picked(facts.chain, rows) >= 0
    if triton < COMPILED * max(int(spent[chained].sum()) + triton, 1):
        yield from _entry(trace, view, "unfused_kernels", rows, chained, "")
    odd = facts.odd[rows] > 0
    sizes = sorted({size for place in distinct_values(facts.odd[rows]).tolist() for size in facts.sizes[place]})
    yield from _entry(trace, view, "odd_sizes", rows, odd, ", ".join(map(str, sizes[:SIZES_SHOWN])))
    if "fp8" in peaks_of(model):
        halves = [PRECISIONS.index(name) for name in ("bf16", "fp16")]
        busy = products & np.isin(precision, halves) & (picked(facts.roofs.floor, rows) >= NEAR_PEAK * spent)
        yield from _entry(trace, view, "half_precision_products", rows, busy, "")
    yield from _entry(trace, view, "layout_conversion", rows, facts.layout[rows], "")
    yield from _entry(trace, view, "unfused_attention", rows, facts.attention[rows] & ~products, "")
    if _generation(trace, facts, rows, model) == "hopper":
        yield from _entry(trace, view, "flash_attention_2", rows, facts.flash_2[rows], "")
    optimizer = category == codes("optimizer")[0]
    passes = optimizer & ~looked_up(names.matching(lambda text: _ONE_PASS.search(text) is not None), name)
    if int(spent[passes].sum()) * 2 > int(spent[optimizer].sum()):
        yield from _entry(trace, view, "optimizer_passes", rows, passes, ", ".join(_optimizers(trace)))


def _optimizers(trace: Trace) -> list[str]:
    """Classes whose steps the profiler named (`Optimizer.step#SGD.step`)."""
    found = (_STEP.match(trace.names[code]) for code in distinct_values(trace["host_events"]["name"]).tolist())
    return sorted({match[1] for match in found if match})


_STEP = when_used.pattern(r"Optimizer\.step#(\w+)\.step")


def _entry(trace: Trace, view: LaneView, code: str, rows: Times, own: Mask, detail: str) -> Iterator[ReducibleEntry]:
    if not own.any():
        return
    device = trace["device_events"]
    rows = rows[own]
    spent = device["end"][rows] - device["start"][rows]
    longest = int(np.argmax(spent))
    yield {
        "code": code,
        "dur_ns": _covered(trace, view, rows),
        "count": len(rows),
        "detail": detail,
        "name": trace.names[int(device["name"][rows[longest]])],
        "start_ns": int(device["start"][rows[longest]]),
        "longest_ns": int(spent[longest]),
        "event": identity(trace, "device_events", int(rows[longest])),
    }


MOST_NAMED = 3
"""Operators that the problem of floors above the measurement names."""


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The entries of all lanes, and floors that exceed the measurement as a problem."""
    result = _entries(trace, lanes)
    judged = [computing(trace, view) for view in lanes if view.lane.device != NA]
    rows = np.concatenate(judged) if judged else np.empty(0, np.int64)
    roofs = kernel_facts(trace).roofs
    rows = rows[picked(roofs.too_high, rows)] if len(rows) else rows
    if len(rows):
        host, names = trace["host_events"], trace.names
        operators, count = np.unique(host["name"][roofs.operator[rows]], return_counts=True)
        named = [names[code] for code in operators[np.argsort(-count)][:MOST_NAMED].tolist()]
        result.problem(device.FLOOR_ABOVE_MEASUREMENT, len(rows), operators=", ".join(named))
    return result


_entries = entries_of_devices("compute", COMPUTE, _of_lane)
ANALYZER = FileAnalyzer("compute", run, (DEVICE_EVENTS,), (COMPUTE,), cost=2, large=True)
