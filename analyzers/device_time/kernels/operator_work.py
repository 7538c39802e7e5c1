"""The floating-point operations of kernels, from the shapes of the operators that launched them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuscope.analyzers.device_time.kernels.flops import operator_flops
from gpuscope.analyzers.device_time.kernels.launching_operators import Labels, codes
from gpuscope.hardware.device_peaks import peaks_of
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Mask, Times
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import precisions
from gpuscope.trace.naming.kernel_categories import CONVOLUTION, MULTIPLYING, kernel_category
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

SINGLE_UNKNOWN = "fp32 or tf32"
"""Inputs are float, and the kernel's name does not say whether it multiplied them as TF32."""


@dataclass(frozen=True)
class Work:
    """Per device event asked for: its FLOPs (0 for helpers), at which precision, and whether they are known.

    `known` holds for every kernel of an operator whose FLOPs are counted; `precision` is set where `flops` is.
    """

    flops: Array
    known: Mask
    precision: list[str | None]


def operator_work(trace: Trace, rows: Times, category: Labels) -> Work:
    """FLOPs of the compute kernels among device events `rows`, whose categories are given.

    Each operator is counted once: where one lies in another (`aten::addmm` in `aten::linear`), the inner one. Its FLOPs
    stand at its longest multiplying kernel, those of a convolution at all of them by their time (its two gradients run
    in kernels of their own); the others (layout, split-K sums) only help.
    """
    device, host = trace["device_events"], trace["host_events"]
    work = Work(np.zeros(len(rows), np.float64), np.zeros(len(rows), np.bool_), [None] * len(rows))
    linked = np.flatnonzero((device["launch"][rows] != NA) & (device["kind"][rows] == Kind.COMPUTE))
    counted, types = _counted(trace)
    if not len(linked) or not counted:
        return work
    launch = device["launch"][rows[linked]]
    candidates = np.zeros(len(host), np.bool_)
    candidates[list(counted)] = host["category"][list(counted)] == Category.OP
    operator = innermost(host, candidates, host["thread"][launch], host["start"][launch])
    linked, operator = linked[operator != NA], operator[operator != NA]
    work.known[linked] = True
    keep = np.isin(operator, _without_outer(trace, np.unique(operator)))
    linked, operator = linked[keep], operator[keep]
    duration = device["end"][rows] - device["start"][rows]
    order = np.lexsort((-duration[linked], operator))  # each operator's kernels together, the longest first
    linked, operator = linked[order], operator[order]
    first = np.flatnonzero(np.diff(operator, prepend=NA))
    precision = _precisions(trace)
    for event, kernels in zip(operator[first].tolist(), np.split(linked, first[1:]), strict=len(first) > 0):
        for index, share in _shares(trace, rows, kernels, category, duration):
            work.flops[index] = counted[event] * share
            work.precision[index] = precision(types[event], int(rows[index]))
    return work


def _shares(trace: Trace, rows: Times, kernels: Times, category: Labels, duration: Times) -> list[tuple[int, float]]:
    """Which of an operator's kernels, the longest first, did its FLOPs, and how much of them each."""
    names = trace["device_events"]["name"][rows[kernels]].tolist()
    multiplies = [kernel_category(trace.names[name]) in MULTIPLYING for name in names]
    chosen = kernels[np.array(multiplies)] if any(multiplies) else kernels
    if category[chosen[0]] != codes(CONVOLUTION)[0]:
        return [(int(chosen[0]), 1.0)]
    spent = duration[chosen]
    whole = int(spent.sum())
    parts = spent / whole if whole else np.full(len(chosen), 1 / len(chosen))
    return list(zip(chosen.tolist(), parts.tolist(), strict=True))


def _counted(trace: Trace) -> tuple[dict[int, int], dict[int, str]]:
    """FLOPs and input types (JSON) of each operator whose FLOPs can be counted, by its row in `host_events`."""
    host, shapes, names = trace["host_events"], trace["shapes"], trace.names
    found: dict[int, int] = {}
    types: dict[int, str] = {}
    known: dict[tuple[int, int, int], int | None] = {}
    for event, dims, kinds, concrete in zip(
        *(shapes[column].tolist() for column in ("event", "dims", "types", "concrete")), strict=True
    ):
        key = (int(host["name"][event]), dims, concrete)
        if key not in known:
            known[key] = operator_flops(names[key[0]], names[dims], names[concrete] if concrete != NO_NAME else "")
        if count := known[key]:
            found[event] = count
            types[event] = names[kinds] if kinds != NO_NAME else ""
    return found, types


def _without_outer(trace: Trace, operators: Times) -> Times:
    """Those of the operators in which no other of them lies; ranges of one thread nest."""
    host = trace["host_events"]
    start, end, thread = (host[column][operators] for column in ("start", "end", "thread"))
    order = np.lexsort((-end, start, thread))
    holds_next = np.zeros(len(operators), np.bool_)
    here, after = order[:-1], order[1:]
    holds_next[here] = (thread[here] == thread[after]) & (end[after] <= end[here]) & (start[after] < end[here])
    return np.asarray(operators[~holds_next], np.int64)


def _precisions(trace: Trace) -> Callable[[str, int], str | None]:
    """The precision of a device event's row by its operator's input types, asked once per kernel, types and model."""
    device, models = trace["device_events"], device_models(trace)
    known: dict[tuple[str, int, str], str | None] = {}

    def ask(types: str, row: int) -> str | None:
        model = models.get((int(device["rank"][row]), int(device["device"][row])), "")
        key = (types, int(device["name"][row]), model)
        if key not in known:
            known[key] = _precision(types, trace.names[key[1]], model)
        return known[key]

    return ask


def _precision(types: str, kernel: str, model: str) -> str | None:
    """Of an operator with these input types (JSON), whose work this kernel did on a device of this model."""
    said = precisions.of_kernel(kernel)
    inputs = [precisions.of_type(text) for text in types.strip("[]").replace('"', "").split(",")] if types else []
    first = next((precision for precision in inputs if precision), None)
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
    return np.isin(category, codes(*MULTIPLYING))
