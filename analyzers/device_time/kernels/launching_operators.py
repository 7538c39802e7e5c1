"""Which operator launched each kernel, and so what the kernel does."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpuscope.trace.columns.name_pool import NO_NAME, NamePool, PerName
from gpuscope.trace.columns.table import Mask, Times, blocks, constant, looked_up, quarters
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming.kernel_categories import (
    CATEGORIES,
    OPTIMIZER,
    TRITON,
    encloses,
    is_optimizer_step,
    kernel_category,
    operator_category,
)
from gpuscope.trace.naming.kinds import is_step_range
from gpuscope.trace.optimizer_ranges import update_begins
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

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
