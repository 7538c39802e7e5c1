"""The floating-point operations of kernels, from the shapes of the operators that launched them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuscope.analyzers.device_time.kernels.attention_flops import RECOMPUTED_SCORES
from gpuscope.analyzers.device_time.kernels.flops import operator_flops, recomputes_scores
from gpuscope.analyzers.device_time.kernels.launching_operators import Labels, codes
from gpuscope.analyzers.device_time.kernels.recomputation import recomputed
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.trace.columns.distinct import among, distinct_pairs, distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME, PerName
from gpuscope.trace.columns.table import Array, Mask, Times, constant
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import precisions
from gpuscope.trace.naming.kernel_categories import CONVOLUTION, MULTIPLYING, kernel_category
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

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
    said = precisions.of_kernel(kernel)
    inputs = [precisions.of_type(text) for text in types.strip("[]").replace('"', "").split(",")] if types else []
    first = next((precision for precision in inputs if precision), None)
    if said in _NAMED_BY_KERNEL:
        return said
    if first != precisions.SINGLE:
        return first or said
    peaks = peaks_of(model)
    return said or (precisions.SINGLE if peaks and "tf32" not in peaks else SINGLE_UNKNOWN)


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
