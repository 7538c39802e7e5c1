"""The gradients of a rank as its backward passes make them, and the hooks that send them.

DDP's reducer and FSDP hook on the accumulation of each gradient; operators recorded with their shapes give its elements
(torch/csrc/autograd/functions/accumulate_grad.h, torch/csrc/distributed/c10d/reducer.cpp).
"""

from __future__ import annotations

import json
from math import prod

import numpy as np

from gpuscope.trace.columns.distinct import distinct_values
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Mask, Times
from gpuscope.trace.intervals import Spans, measure_within, union
from gpuscope.trace.schema import Category
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
