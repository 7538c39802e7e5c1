"""Where device time goes, kernel by kernel: count, time, share, category, achieved FLOP rate."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpuscope.analyzers.device_time.flops import operator_flops
from gpuscope.analyzers.frame.analyzer import FileAnalyzer, Result
from gpuscope.analyzers.frame.lanes import LaneView
from gpuscope.analyzers.frame.needs import DEVICE_EVENTS
from gpuscope.analyzers.frame.sections import KERNELS
from gpuscope.report.schema.document import KernelEntry
from gpuscope.trace.columns.name_pool import NO_NAME
from gpuscope.trace.columns.table import Array, Times
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace

_CATEGORIES = (
    ("attention", re.compile(r"flash|fmha|attention|attn|softmax_warp|mha_", re.IGNORECASE)),
    ("matmul", re.compile(
        r"(?<!fb)gemm|gemv|matmul|addmm|\bmm\b|aten::(mm|bmm|linear)|conv|wgrad|dgrad|xmma|cutlass|cublas|Cijk_|nvjet|splitK"
        r"|wmma|MatMul", re.IGNORECASE)),
    ("normalisation", re.compile(r"norm|\bbn_|batchnorm|rms", re.IGNORECASE)),
    ("optimizer", re.compile(r"multi_tensor|adam|sgd|lamb|optimizer", re.IGNORECASE)),
    ("embedding", re.compile(r"embedding|_embs_|index_select|gather|scatter", re.IGNORECASE)),
    ("reduction", re.compile(r"reduce|softmax|cross_entropy|nll_loss|sum|argmax|topk|sort|scan", re.IGNORECASE)),
    ("elementwise", re.compile(
        r"elementwise|vectorized|pointwise|triton_poi|CatArray|fill|copy|add|mul|relu|gelu|dropout|cast|SubTensorOp"
        r"|Op[123]d|aten::", re.IGNORECASE)),
)  # fmt: skip
"""What a kernel does, by its name; the first that matches. Communication and memory are known by kind."""


def category(name: str, kind: int) -> str:
    """`communication`, `memory`, or what a compute kernel does by its name, else `other`."""
    if kind != Kind.COMPUTE:
        return Kind(kind).name.lower()
    return next((label for label, pattern in _CATEGORIES if pattern.search(name)), "other")


def run(trace: Trace, lanes: Sequence[LaneView]) -> Result:
    """The table of kernels over the lanes' windows, the costliest first."""
    device = trace["device_events"]
    inside = [
        view.rows[(device["end"][view.rows] > view.window[0]) & (device["start"][view.rows] < view.window[1])]
        for view in lanes
    ]
    rows = np.concatenate(inside) if inside else np.empty(0, np.int64)
    duration = device["end"][rows] - device["start"][rows]
    keys = device["name"][rows].astype(np.int64) * len(Kind) + device["kind"][rows]
    unique, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    total = np.zeros(len(unique), np.int64)
    np.add.at(total, inverse, duration)
    flops, counted = _flops(trace, rows, inverse, len(unique), duration)
    everything = int(duration.sum())
    entries: list[KernelEntry] = []
    for index in np.argsort(-total, kind="stable").tolist():
        name = trace.names[int(unique[index] // len(Kind))]
        rate = float(flops[index] / counted[index] * 1e9) if counted[index] else None
        entries.append({
            "name": name, "category": category(name, int(unique[index] % len(Kind))), "count": int(counts[index]),
            "dur_ns": int(total[index]), "mean_ns": int(total[index] // counts[index]),
            "share_frac": int(total[index]) / everything if everything else 0.0, "flops_per_s": rate,
        })  # fmt: skip
    result = Result(ANALYZER.name)
    result.sections[KERNELS] = entries
    return result


def _flops(trace: Trace, rows: Times, group: Times, groups: int, duration: Times) -> tuple[Array, Times]:
    """Per group of kernels: FLOPs of their operators, and the time of the kernels that did them."""
    flops, counted = np.zeros(groups, np.float64), np.zeros(groups, np.int64)
    device, host, shapes = trace["device_events"], trace["host_events"], trace["shapes"]
    multiplying = trace.names.matching(lambda name: category(name, Kind.COMPUTE) in ("matmul", "attention"))
    linked = np.flatnonzero(
        (device["launch"][rows] != NA) & (device["kind"][rows] == Kind.COMPUTE) & multiplying[device["name"][rows]]
    )
    if not len(shapes) or not len(linked):
        return flops, counted
    known: dict[int, int] = {}
    texts: dict[tuple[int, int, int], int | None] = {}
    for row in range(len(shapes)):
        event, dims, concrete = (int(shapes[column][row]) for column in ("event", "dims", "concrete"))
        key = (int(host["name"][event]), dims, concrete)
        if key not in texts:
            scalars = trace.names[concrete] if concrete != NO_NAME else ""
            texts[key] = operator_flops(trace.names[key[0]], trace.names[dims], scalars)
        count = texts[key]
        if count:
            known[event] = count
    launch = device["launch"][rows[linked]]
    candidates = np.zeros(len(host), np.bool_)
    candidates[list(known)] = host["category"][list(known)] == Category.OP
    operator = innermost(host, candidates, host["thread"][launch], host["start"][launch])
    found = np.flatnonzero(operator != NA)
    if not len(found):
        return flops, counted
    # An operator's work is done by its longest matrix kernel; the others (layout, split-K sums) only help.
    order = np.lexsort((-duration[linked[found]], operator[found]))
    first = np.concatenate(([True], np.diff(operator[found][order]) != 0))
    for index in found[order[first]].tolist():
        flops[group[linked[index]]] += known[int(operator[index])]
        counted[group[linked[index]]] += duration[linked[index]]
    return flops, counted


ANALYZER = FileAnalyzer("kernels", run, (DEVICE_EVENTS,), (KERNELS,))
