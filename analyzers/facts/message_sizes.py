"""The gradients of a rank as its backward passes make them, and the hooks that send them.

DDP's reducer and FSDP hook on the accumulation of each gradient; operators recorded with their shapes give its elements
(torch/csrc/autograd/functions/accumulate_grad.h, torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

import numpy as np

from gpuscope.analyzers.base.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.base.lanes import LaneView
from gpuscope.problems import job
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.kinds import kernel_item_bytes
from gpuscope.trace.name_pool import NO_NAME
from gpuscope.trace.schema import NA, Category
from gpuscope.trace.table import Mask, Table, Times, distinct_values
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

EVALUATED = "autograd::engine::evaluate_function"
"""How PyTorch names the range around each node of a backward pass, hooks on it included."""
_ACCUMULATED = "torch::autograd::AccumulateGrad"


@dataclass(frozen=True)
class Gradients:
    """The gradients of a rank in the order in which it accumulated them; shape (n,) each."""

    at: Times
    """When, ns."""
    elements: Times
    """0 where they are not recorded."""
    undefined: Mask
    """Whether the gradient was none (a parameter without use): what is sent for it has the parameter's size."""


def accumulated(trace: Trace, rank: int) -> Gradients:
    """The gradients of a rank whose shapes are recorded."""
    host, shapes = trace["host_events"], trace["shapes"]
    named = trace.names.matching(lambda name: name == _ACCUMULATED)
    events = shapes["event"]
    own = np.flatnonzero(named[host["name"][events]] & (host["rank"][events] == rank))
    counts = {code: _elements(trace.names[code]) for code in distinct_values(shapes["dims"][own]).tolist()}
    at = host["start"][events[own]]
    order = np.argsort(at, kind="stable")
    elements = np.array([counts[code] for code in shapes["dims"][own].tolist()], np.int64)
    types = shapes["types"][own]
    nothing = np.array([code == NO_NAME or trace.names[code] == '[""]' for code in types.tolist()], np.bool_)
    return Gradients(at[order], elements[order], (nothing & (elements == 1))[order])


def _elements(dims: str) -> int:
    """Of the first input; 0 where it is not recorded."""
    try:
        return prod(int(size) for size in json.loads(dims)[0])
    except (ValueError, TypeError, IndexError):
        return 0


def gradient_hooks(trace: Trace, rows: Times) -> Spans:
    """When hooks on accumulated gradients ran: what they issue (DDP's reducer) is waited for behind the backward."""
    host = trace["host_events"]
    named = trace.names.matching(lambda name: name.startswith(EVALUATED) and name.endswith("AccumulateGrad"))
    picked = rows[named[host["name"][rows]]]
    return union(host["start"][picked], host["end"][picked])


def in_hooks(hooks: Spans, issued: Times) -> Mask:
    """Per collective, whether a gradient's hook issued it."""
    # Issued as the hook's operator ends, by the profiler's rounding at its very end.
    return np.asarray((measure_within(hooks, issued, issued + 1) > 0) | (measure_within(hooks, issued - 1, issued) > 0))


def outside_backward(trace: Trace, rows: Times) -> Times:
    """When operators began that are no part of a backward pass, ns, ascending: between two of them lies at most one."""
    host = trace["host_events"]
    evaluated = trace.names.matching(lambda name: name.startswith(EVALUATED))[host["name"][rows]]
    inside = union(host["start"][rows[evaluated]], host["end"][rows[evaluated]])
    start = host["start"][rows[(host["category"][rows] == Category.OP) & ~evaluated]]
    return np.sort(start[~in_hooks(inside, start)])


# Sizes of messages that no argument, payload or range records, from the shapes of the gradients that they carry.
#
# DDP all-reduces a bucket, and FSDP reduce-scatters a unit, from the hook of the last gradient in it; so it holds the
# gradients that were accumulated since the one before, in the element type that the kernel's name tells. Where
# that can't be, nothing is estimated: gradients without shapes, gradients that were not sent, passes that differ.

BASIS = "gradients' shapes"
_SENT = ("all_reduce", "reduce_scatter")
LEFT_OVER = 0.05
"""Share of a pass's elements that no message took, from which it is unknown what its messages hold."""
ALIKE = 0.01
"""By which sizes at one place of two passes may differ: a gradient that came before or after its neighbour."""
USUAL = 0.5
"""Share of the passes that must agree; DDP's first pass has other buckets than those after it."""


def with_estimated_sizes(trace: Trace) -> tuple[Table, int]:
    """`collectives` with sizes in bytes where they follow from gradients (`size_basis` says so), and how many do."""
    table = trace["collectives"]
    ops = [trace.names.find(op) for op in _SENT]
    open_rows = np.flatnonzero((table["bytes"] == NA) & (table["event"] != NA) & np.isin(table["op"], ops))
    found: dict[int, int] = {}
    for rank in distinct_values(table["rank"][open_rows]).tolist():
        found |= _of_rank(trace, int(rank), open_rows[table["rank"][open_rows] == rank])
    if not found:
        return table, 0
    rows = np.array(list(found), np.int64)
    nbytes, basis = table["bytes"].copy(), table["size_basis"].copy()
    nbytes[rows], basis[rows] = list(found.values()), trace.names.code(BASIS)
    return Table(table.schema, {**table.columns, "bytes": nbytes, "size_basis": basis}), len(found)


@dataclass(frozen=True)
class _Pass:
    """The messages of one backward pass: rows of `collectives` in order of issue, and what each holds, in bytes."""

    rows: tuple[int, ...]
    sizes: tuple[int, ...]

    def like(self, other: _Pass) -> bool:
        """Whether both send as many messages of the same sizes."""
        pairs = zip(self.sizes, other.sizes, strict=False)
        return len(self.sizes) == len(other.sizes) and all(abs(a - b) <= ALIKE * max(a, b) for a, b in pairs)


def _of_rank(trace: Trace, rank: int, rows: Times) -> dict[int, int]:
    """Bytes by row of `collectives`."""
    table, device, host = trace["collectives"], trace["device_events"], trace["host_events"]
    launch = device.at("launch", table["event"][rows])
    rows, launch = rows[launch != NA], launch[launch != NA]
    gradients = accumulated(trace, rank)
    if not len(rows) or not len(gradients.at):
        return {}
    own = np.flatnonzero(host["rank"] == rank)
    issued = host["start"][launch]
    hooked = in_hooks(gradient_hooks(trace, own), issued)
    order = np.argsort(issued[hooked], kind="stable")
    rows, issued = rows[hooked][order], issued[hooked][order]
    passes = _passes(trace, rows, issued, gradients, outside_backward(trace, own))
    usual = max(passes, key=lambda one: sum(map(one.like, passes)), default=None)
    alike = [one for one in passes if usual is not None and usual.sizes and one.like(usual)]
    if len(alike) <= USUAL * len(passes):
        return {}
    typical = np.median(np.array([one.sizes for one in alike], np.int64), axis=0)
    sizes = [round(size) for size in typical.tolist()]
    return {row: size for one in alike for row, size in zip(one.rows, sizes, strict=True)}


def _passes(trace: Trace, rows: Times, issued: Times, gradients: Gradients, outside: Times) -> list[_Pass]:
    """Backward passes that send their gradients; those without sizes have none."""
    pass_of, pass_of_gradient = np.searchsorted(outside, issued), np.searchsorted(outside, gradients.at)
    return [
        _Pass(
            tuple(rows[pass_of == number].tolist()),
            _sizes(
                trace,
                rows[pass_of == number],
                issued[pass_of == number],
                gradients,
                np.flatnonzero(pass_of_gradient == number),
            ),
        )
        for number in np.unique(pass_of).tolist()
    ]


def _sizes(trace: Trace, rows: Times, issued: Times, gradients: Gradients, own: Times) -> tuple[int, ...]:
    """What the messages of one pass hold, in bytes; empty where its gradients (`own`) don't tell."""
    elements = np.where(gradients.undefined[own], 0, gradients.elements[own])
    ends = np.searchsorted(gradients.at[own], issued, "right")
    total = int(elements.sum())
    if not total or int(elements[: ends[-1]].sum()) < (1 - LEFT_OVER) * total:
        return ()
    sums = np.diff(np.concatenate(([0], np.cumsum(elements)))[ends], prepend=0)
    device, table = trace["device_events"], trace["collectives"]
    items = [kernel_item_bytes(trace.names[int(device["name"][event])]) for event in table["event"][rows].tolist()]
    unknown = bool((elements[: ends[-1]] == 0).any()) or bool((sums == 0).any()) or None in items
    return () if unknown else tuple(int(count) * (item or 0) for count, item in zip(sums.tolist(), items, strict=True))


def _estimate(trace: Trace, _: Sequence[LaneView]) -> Result:
    result, (table, count) = Result("message_sizes"), with_estimated_sizes(trace)
    if count:
        result.tables["collectives"] = table
        result.problem(job.SIZES_ESTIMATED, count, basis=BASIS)
    return result


ESTIMATED_SIZES = FileAnalyzer("message_sizes", _estimate)
"""Gives `collectives` where sizes that nothing recorded follow from gradients; all else of a file comes after it."""
