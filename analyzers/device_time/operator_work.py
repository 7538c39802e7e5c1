"""The floating-point operations of kernels, from the shapes of the operators that launched them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy import typing as npt

from gpuscope.analyzers.device_time.attention_flops import (
    RECOMPUTED_SCORES,
    operator_flops,
    recomputed,
    recomputes_scores,
)
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.trace import kernel_categories
from gpuscope.trace.kernel_categories import (
    CATEGORIES,
    CONVOLUTION,
    MULTIPLYING,
    OPTIMIZER,
    TRITON,
    encloses,
    is_optimizer_step,
    kernel_category,
    operator_category,
)
from gpuscope.trace.kinds import is_step_range
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import NO_NAME, NamePool, PerName
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.table import (
    Array,
    Mask,
    Times,
    among,
    blocks,
    constant,
    distinct_pairs,
    distinct_values,
    looked_up,
    quarters,
)
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Which operator launched each kernel, and so what the kernel does.

Labels = npt.NDArray[np.int8] | npt.NDArray[np.int32]
_LABELS = tuple(kind.name.lower() for kind in Kind) + CATEGORIES
"""Communication and memory are labels by kind; the label `compute` occurs nowhere."""
_CODE = {label: code for code, label in enumerate(_LABELS)}


def label(code: int) -> str:
    """The category that a code of `categories` stands for."""
    return _LABELS[code]


def codes(*labels: str) -> Labels:
    """The codes of categories, to compare with those of `categories`."""
    return np.array([_CODE[one] for one in labels], np.int32)


def categories(trace: Trace, rows: Times) -> Labels:
    """The category of each of these device events, as a code, shape (n,).

    Communication and memory go by kind. A kernel launched inside an optimizer's step is the optimizer's, unless the
    step's closure launched it. Of the
    operators around the launch (a backward kernel is launched on autograd's thread, inside its operator there) those
    that own whatever runs inside them come first, the innermost of them, then the innermost of all; where that does not
    say, or was not recorded, the kernel's name decides. Inductor's fused loops stay what they are.
    """
    device, result = trace["device_events"], np.empty(len(rows), np.int8)
    by_name = PerName(trace.names, lambda text: _CODE[kernel_category(text)])
    by_operator = _by_operator(trace, rows)
    for block in blocks(0, len(rows)):
        kind, name = device["kind"][rows[block]], device["name"][rows[block]]
        compute = np.flatnonzero(kind == Kind.COMPUTE)
        said = by_name(name[compute])
        if by_operator is not None:
            found = by_operator[block][compute]
            kept = (said == _CODE[TRITON]) & (found != _CODE[OPTIMIZER])
            said = np.where((found == NO_NAME) | kept, said, found)
        kind[compute] = said
        result[block] = kind
    return result


def operators(trace: Trace, rows: Times) -> Labels:
    """The name of what launched each of these device events, shape (n,): its innermost operator, where there is none
    its innermost range, else `NO_NAME`. Ranges of whole steps are none."""
    host, device = trace["host_events"], trace["device_events"]
    steps = trace.names.matching(is_step_range)
    layers: list[Mask] = []
    for category in (Category.OP, Category.ANNOTATION):
        candidates = host["category"] == category
        candidates[candidates] = ~steps[host["name"][candidates]]
        layers += [candidates] if candidates.any() else []
    if not layers:
        return constant(NO_NAME, len(rows), np.int32)
    found = np.full(len(rows), NO_NAME, np.int32)
    for part in quarters(len(rows)):
        launch, own = device.at("launch", rows[part]), found[part]
        left = np.flatnonzero(launch != NA)
        for candidates in layers:
            own_launch = launch[left]
            around = innermost(host, candidates, host.at("thread", own_launch), host["start"][own_launch])
            own[left] = np.where(around == NA, NO_NAME, host["name"][np.maximum(around, 0)])
            left = left[around == NA]
    return found


def _by_operator(trace: Trace, rows: Times) -> Labels | None:
    """What the operators around the launch of each compute kernel among these device events say, else `NO_NAME`; None
    where no operators were recorded."""
    host, device, names = trace["host_events"], trace["device_events"], trace.names
    operator = host["category"] == Category.OP
    steps = names.matching(is_optimizer_step)
    is_step = looked_up(steps, host["name"]) if steps.any() else np.zeros(len(host), np.bool_)
    is_step &= operator | (host["category"] == Category.ANNOTATION)
    if not operator.any() and not is_step.any():
        return None
    result = np.full(len(rows), NO_NAME, np.int32)
    linked = np.flatnonzero((device["kind"][rows] == Kind.COMPUTE) & device.known("launch")[rows])
    said = _operator_codes(names)
    layers = (operator, operator & looked_up(names.matching(encloses), host["name"]), is_step)
    steps_at = np.flatnonzero(is_step)
    updates = update_begins(host, names, steps_at)
    for own in (linked[part] for part in quarters(len(linked))):
        launch = device.at("launch", rows[own])
        thread, start = host.at("thread", launch), host["start"][launch]
        for candidates in layers:
            around = innermost(host, candidates, thread, start)  # a later one overrides
            inside = np.flatnonzero(around != NA)
            around = around[inside]
            if candidates is is_step:  # what its closure launches is not the optimizer's
                updating = start[inside] >= updates[np.searchsorted(steps_at, around)]
                inside, around = inside[updating], around[updating]
            says = np.where(is_step[around], np.int32(_CODE[OPTIMIZER]), said(host["name"][around]))
            known = says != NO_NAME
            result[own[inside[known]]] = says[known]
    return result


def _operator_codes(names: NamePool) -> PerName:
    def ask(name: str) -> int:
        category = operator_category(name)
        return NO_NAME if category is None else _CODE[category]

    return PerName(names, ask)


_NAMED_BY_KERNEL = ("fp8", "int8", "tf32", "fp64")
"""Precisions that a kernel's name tells better than its operator's inputs: these may be converted on the way."""
SINGLE_UNKNOWN = "fp32 or tf32"
"""Inputs are float, and the kernel's name does not say whether it multiplied them as TF32."""


@dataclass(frozen=True)
class Work:
    """Per device event asked for: its FLOPs (0 for helpers), at which precision, and whether they are known.

    `known` holds for every kernel of an operator whose FLOPs are counted.
    """

    flops: Array
    again: Array
    """Of `flops` those that the forward pass computed already."""
    known: Mask
    precision: Array
    """Places in `precisions`."""
    precisions: Sequence[str | None]
    """The first stands for those without FLOPs."""
    operator: Times
    """The host event of the operator whose FLOPs are counted, of each of its kernels; `NA` of others."""


def operator_work(trace: Trace, rows: Times, category: Labels) -> Work:
    """FLOPs of the compute kernels among device events `rows`, whose categories are given.

    Each operator is counted once: where one lies in another (`aten::addmm` in `aten::linear`), the innermost. Its FLOPs
    stand at its longest multiplying kernel, those of a convolution at all of them by their time (its two gradients run
    in kernels of their own); the others (layout, split-K sums) only help.
    """
    device, host = trace["device_events"], trace["host_events"]
    if not len(trace["shapes"]):
        none = constant(0, len(rows), np.float64)
        unknown = constant(False, len(rows), np.bool_)
        return Work(none, none, unknown, constant(0, len(rows), np.int8), (None,), constant(NA, len(rows), np.int64))
    flops, again = np.zeros((2, len(rows)), np.float64)
    of = np.full(len(rows), NA, np.int64)
    work = Work(flops, again, np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.int8), (None,), of)
    linked = np.flatnonzero((device.at("launch", rows) != NA) & (device["kind"][rows] == Kind.COMPUTE))
    shape_of, counted = _counted(trace)
    counts = shape_of >= 0
    if not len(linked) or not counts.any():
        return work
    counts &= host["category"] == Category.OP
    launch = device.at("launch", rows[linked])
    operator = innermost(host, counts, host["thread"][launch], host["start"][launch])
    on_host = np.flatnonzero(device.at("device", rows[linked]) == NA)
    within = np.full(len(linked), np.nan)
    if len(on_host):
        operator[on_host], within[on_host] = _leaves(trace, np.flatnonzero(counts), shape_of, counted, launch[on_host])
    del launch, counts
    linked, operator, within = linked[operator != NA], operator[operator != NA], within[operator != NA]
    work.known[linked] = True
    work.operator[linked] = operator
    inner = np.zeros(len(host), np.bool_)
    inner[_without_outer(trace, distinct_values(operator))] = True
    keep = inner[operator]
    linked, operator, within = linked[keep], operator[keep], within[keep]
    duration = device["end"][rows] - device["start"][rows]
    order = np.lexsort((-duration[linked], operator))  # each operator's kernels together, the longest first
    linked, operator, within = linked[order], operator[order], within[order]
    chosen, share = _shares(trace, rows, linked, operator, category, duration)
    linked, operator, within = linked[chosen], operator[chosen], within[chosen]
    shape = shape_of[operator]
    work.flops[linked] = np.where(np.isnan(within), counted[shape], within) * share
    scores = trace.names.matching(recomputes_scores)[host["name"][operator]]
    again = np.where(recomputed(trace, operator), 1.0, np.where(scores, RECOMPUTED_SCORES, 0.0))
    work.again[linked] = work.flops[linked] * again
    said, which = _precisions(trace, rows[linked], trace["shapes"]["types"][shape])
    known = list(dict.fromkeys([None, *said]))
    work.precision[linked] = np.array([known.index(one) for one in said], np.int8)[which]
    return replace(work, precisions=known)


def _leaves(trace: Trace, operators: Times, shape_of: Array, counted: Array, calls: Times) -> tuple[Times, Array]:
    """Of operators that are the device's work themselves (a training thread's): the first innermost one within each
    whose FLOPs can be counted, or NA, and the FLOPs of all of them. An outer one may have the shapes of more than its
    rank computes (DTensor's has those of the whole layer)."""
    host = trace["host_events"]
    leaves = _without_outer(trace, operators)
    first, flops = np.full(len(calls), NA, np.int64), np.zeros(len(calls))
    for thread in distinct_values(host["thread"][calls]).tolist():
        own = np.flatnonzero(host["thread"][calls] == thread)
        inner = leaves[host["thread"][leaves] == thread]
        inner = inner[np.argsort(host["start"][inner], kind="stable")]
        if not len(inner):
            continue
        total = np.concatenate(([0.0], np.cumsum(counted[shape_of[inner]])))
        low, high = (np.searchsorted(host["start"][inner], host[bound][calls[own]]) for bound in ("start", "end"))
        flops[own] = total[high] - total[low]
        first[own] = np.where(high > low, inner[np.minimum(low, len(inner) - 1)], NA)
    return first, flops


def _shares(
    trace: Trace, rows: Times, kernels: Times, operator: Times, category: Labels, duration: Times
) -> tuple[Times, Array]:
    """Which of the kernels (by operator, the longest first) did its FLOPs, and how much of them each."""
    if not len(kernels):
        return kernels, np.empty(0)
    multiplies = PerName(trace.names, lambda name: kernel_category(name) in MULTIPLYING)
    multiplying = multiplies(trace["device_events"]["name"][rows[kernels]]) != 0
    group = np.cumsum(np.diff(operator, prepend=operator[0]) != 0)
    any_multiplying = np.bincount(group, weights=multiplying) > 0
    chosen = np.flatnonzero(multiplying | ~any_multiplying[group])
    longest = np.diff(group[chosen], prepend=-1) != 0
    convolves = category[kernels[chosen[longest]]] == codes(CONVOLUTION)[0]
    by_time = convolves[group[chosen]]
    chosen, kept = chosen[longest | by_time], by_time[longest | by_time]
    spent = duration[kernels[chosen]]
    whole = np.zeros(len(convolves), np.int64)
    np.add.at(whole, group[chosen], spent)
    number = np.bincount(group[chosen], minlength=len(whole))
    whole, number = whole[group[chosen]], number[group[chosen]]
    parts = np.where(whole > 0, spent / np.maximum(whole, 1), 1 / np.maximum(number, 1))
    return chosen, np.where(kept, parts, 1.0)


def _counted(trace: Trace) -> tuple[Array, Array]:
    """Of each host event whose FLOPs can be counted its row in `shapes`, else −1; and of these rows the FLOPs."""
    host, shapes, names = trace["host_events"], trace["shapes"], trace.names
    found = np.full(len(host), -1, np.int64 if len(shapes) >= 2**31 else np.int32)
    event = shapes["event"]
    pairs, pair = distinct_pairs(host["name"][event], shapes["dims"])
    inputs, of_inputs = distinct_pairs(shapes["concrete"], shapes["types"])
    keys, key = distinct_pairs(pair, of_inputs)
    counts = np.full(len(keys), np.nan)
    for place, (which, recorded) in enumerate(keys):
        name, dims = pairs[which]
        concrete, types = (names[code] if code != NO_NAME else "" for code in inputs[recorded])
        count = operator_flops(names[name], names[dims], concrete, "" if types == "null" else types)
        if count:
            counts[place] = count
    counted = counts[key]
    known = np.flatnonzero(~np.isnan(counted))
    found[event[known]] = known
    return found, counted


def _without_outer(trace: Trace, operators: Times) -> Times:
    """Those of the operators in which no other of them lies; ranges of one thread nest."""
    host = trace["host_events"]
    start, end, thread = (host[column][operators] for column in ("start", "end", "thread"))
    order = np.lexsort((-end, start, thread))
    holds_next = np.zeros(len(operators), np.bool_)
    here, after = order[:-1], order[1:]
    holds_next[here] = (thread[here] == thread[after]) & (end[after] <= end[here]) & (start[after] < end[here])
    return np.asarray(operators[~holds_next], np.int64)


def _precisions(trace: Trace, rows: Times, types: Times) -> tuple[list[str | None], Times]:
    """The precision of device events by their operators' input types (codes), asked once per kernel: what was found,
    and for each event its place there."""
    device, models, names = trace["device_events"], device_models(trace), trace.names
    lanes, lane = distinct_pairs(device["rank"][rows], device["device"][rows])
    pairs, pair = distinct_pairs(device["name"][rows], types)
    keys, key = distinct_pairs(lane, pair)
    found = [_precision(names[pairs[of][1]], names[pairs[of][0]], models.get(lanes[where], "")) for where, of in keys]
    return found, key


def _precision(types: str, kernel: str, model: str) -> str | None:
    """Of an operator with these input types (JSON), whose work this kernel did on a device of this model."""
    said = kernel_categories.of_kernel(kernel)
    inputs = (
        [kernel_categories.of_type(text) for text in types.strip("[]").replace('"', "").split(",")] if types else []
    )
    first = next((precision for precision in inputs if precision), None)
    if said in _NAMED_BY_KERNEL:
        return said
    if first != kernel_categories.SINGLE:
        return first or said
    peaks = peaks_of(model)
    return said or (kernel_categories.SINGLE if peaks and "tf32" not in peaks else SINGLE_UNKNOWN)


def device_models(trace: Trace) -> dict[tuple[int, int], str]:
    """The model of each device by (rank, device); those not recorded are left out."""
    ranks = trace["ranks"]
    return {
        (rank, device): trace.names[code]
        for rank, device, code in zip(
            ranks["rank"].tolist(), ranks["device"].tolist(), ranks["device_name"].tolist(), strict=True
        )
        if code != NO_NAME
    }


def is_multiplying(category: Labels) -> Mask:
    """Which categories' floating-point operations are counted."""
    return among(category, codes(*MULTIPLYING).tolist())
