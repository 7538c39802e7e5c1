"""Memory-bound kernels that follow each other on a stream: what a compiler could make one kernel of.

A chain is a run of elementwise operations, copies on the device, reductions and normalisations between two kernels that
none of these can be fused into (matrix products, attention, convolutions, collectives). Kernels of Inductor are fused
already, and so is what else a compiled region launches; updates of parameters, their gradients' accumulation and
filling belong to the optimizer and are no chain. A chain ends with its step.
"""

from __future__ import annotations

import re

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.device_time.kernels.launching_operators import Labels, codes
from gpuscope.trace.columns.distinct import among, distinct_values
from gpuscope.trace.columns.name_pool import PerName
from gpuscope.trace.columns.table import Array, Mask, Times, constant, is_constant, looked_up
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming.kernel_names import words
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.trace import Trace

NO_CHAIN = -1
_FUSABLE = ("normalisation", "softmax", "reduction", "copy", "elementwise")
_PRODUCTS = ("gemm",)
_LEFT_ALONE = when_used.pattern(
    r"AccumulateGrad$|zero_grad|Optimizer\.|clip_grad|DistributedDataParallel\."
    r"|^Torch-Compiled Region|\bCompiledFunction(Backward)?\b|^AOTDispatcher Runtime Wrapper"
)
"""Ranges of what belongs to parameters, and of code that torch.compile has compiled: what it left unfused it can't fuse
(names as in torch/_dynamo/utils.py and torch/_functorch/_aot_autograd/runtime_wrappers.py)."""
_FILLS = when_used.pattern(r"FillFunctor")
_LIBRARY = when_used.pattern(r"cudnn|miopen|bn_(fw|bw)|batch_norm|distribution_elementwise|reduce_scatter|cub::")
"""Kernels of libraries that a compiler leaves alone; sorting and random numbers too."""
_EXPONENTIAL, _REDUCES = when_used.pattern(r"exp_kernel"), when_used.pattern(r"reduce_kernel")
MIN_KERNELS = 2


def chains(trace: Trace, category: Labels) -> tuple[Array, Mask]:
    """Per device event the number of its chain, or `NO_CHAIN`, and whether it is part of an unfused attention."""
    device = trace["device_events"]
    of_all = _fusable(trace, category)
    kernels = (device["kind"] != Kind.MEMORY) & (device["device"] != NA)
    if not (of_all & kernels).any():
        return constant(NO_CHAIN, len(device), np.int32), constant(False, len(device), np.bool_)
    kernels = np.flatnonzero(kernels)
    number = np.full(len(device), NO_CHAIN, np.int32)
    attention = np.zeros(len(device), np.bool_)
    lanes = [name for name in ("rank", "device", "stream") if not is_constant(device.columns[name])]
    keys = [device["start"][kernels], *(device.at(name, kernels) for name in reversed(lanes))]
    order = kernels[np.lexsort(keys)]
    fusable = of_all[order]
    moved = np.zeros(len(order), np.bool_)
    moved[0] = True
    for name in lanes:
        own = device.at(name, order)
        moved[1:] |= own[1:] != own[:-1]
    step = _steps(trace, order)
    moved[1:] |= step[1:] != step[:-1]
    begins = fusable & (moved | ~np.concatenate(([False], fusable[:-1])))
    run = np.cumsum(begins) - 1
    fills = trace.names.matching(lambda name: _FILLS.search(name) is not None)[device["name"][order]]
    count = np.bincount(run[fusable & ~fills], minlength=max(int(begins.sum()), 1))
    kept = fusable & (count[np.maximum(run, 0)] >= MIN_KERNELS)
    number[order[kept]] = run[kept]
    _mark_attention(trace, category, order, fusable, run, moved, attention)
    return number, attention


def _steps(trace: Trace, rows: Times) -> Times:
    """The place in the trace's steps in which each of these device events was launched (without a call, began), those
    between steps with the step before: what is computed in one step can't be fused into the next."""
    device, host, steps = trace["device_events"], trace["host_events"], trace["steps"]
    found = np.zeros(len(rows), np.int64)
    if not len(steps):
        return found
    at = device["start"][rows]
    # Steps found in the kernels' own sequence have no marks on the host: their bounds are those of kernels.
    if len(host) and trace.names[int(steps["basis"][0])] != KERNEL_SEQUENCE:
        launch = device.at("launch", rows)
        at = np.where(launch != NA, host["start"][np.maximum(launch, 0)], at)
    rank = device.at("rank", rows)
    for number in distinct_values(steps["rank"]).tolist():
        own = rank == number
        begins = np.sort(steps["start"][steps["rank"] == number])
        found[own] = np.searchsorted(begins, at[own], "right")
    return found


def _fusable(trace: Trace, category: Labels) -> Mask:
    device, names = trace["device_events"], trace.names
    left = names.matching(lambda name: _LIBRARY.search(name) is not None)
    found = among(category, codes(*_FUSABLE).tolist()) & (device["kind"] == Kind.COMPUTE)
    found &= ~looked_up(left, device["name"])
    left_alone = names.matching(lambda name: _LEFT_ALONE.search(name) is not None)
    rows = np.flatnonzero(found & device.known("launch")) if left_alone.any() else np.empty(0, np.int64)
    if len(rows):
        host = trace["host_events"]
        launch = device.at("launch", rows)
        candidates = left_alone[host["name"]]
        around = innermost(host, candidates, host["thread"][launch], host["start"][launch])
        outside = names.matching(lambda name: name == "DistributedDataParallel.forward")[host["name"]]
        found[rows[(around != NA) & ~outside[np.maximum(around, 0)]]] = False
    return np.asarray(found)


def _mark_attention(
    trace: Trace, category: Labels, order: Times, fusable: Mask, run: Times, moved: Mask, attention: Mask
) -> None:
    """Runs with a softmax between two products of one stream, and these two."""
    device, names = trace["device_events"], trace.names
    product = np.isin(category[order], codes(*_PRODUCTS))
    name = device["name"][order]
    says = {
        "softmax": np.isin(category[order], codes("softmax")) & PerName(names, _softmax_by_name)(name).astype(np.bool_),
        "exp": PerName(names, lambda text: _EXPONENTIAL.search(text) is not None)(name).astype(np.bool_),
        "reduce": PerName(names, lambda text: _REDUCES.search(text) is not None)(name).astype(np.bool_),
    }
    total = int(run.max(initial=-1)) + 1
    if not total:
        return
    own = np.flatnonzero(fusable)
    counts = {key: np.bincount(run[own], mask[own], total) for key, mask in says.items()}
    soft = (counts["softmax"] > 0) | ((counts["exp"] > 0) & (counts["reduce"] >= 2))
    first = np.full(total, len(order), np.int64)
    np.minimum.at(first, run[own], own)
    last = np.full(total, -1, np.int64)
    np.maximum.at(last, run[own], own)
    soft &= (first > 0) & (last + 1 < len(order))
    before, inner, after = first[soft] - 1, first[soft], last[soft] + 1
    whole = ~moved[inner] & ~moved[after] & product[before] & product[after]
    before, after = before[whole], after[whole]
    batched = _batched(trace, order[before], order[after])
    for low, high in zip(before[batched].tolist(), after[batched].tolist(), strict=True):
        attention[order[low : high + 1]] = True


def _softmax_by_name(name: str) -> bool:
    return "log_softmax" not in words(name) and "nll" not in words(name)


def _batched(trace: Trace, before: Times, after: Times) -> Mask:
    """Of each two products, whether both are batched ones, as those of attention heads are, where operators were
    recorded around either."""
    device, host, names = trace["device_events"], trace["host_events"], trace.names
    rows = np.concatenate((before, after))
    launch = device.at("launch", rows)
    linked = launch != NA
    operators = names.matching(_is_product)[host["name"]]
    around = np.full(len(rows), NA, np.int64)
    around[linked] = innermost(host, operators, host["thread"][launch[linked]], host["start"][launch[linked]])
    known = around != NA
    batched = np.zeros(len(rows), np.bool_)
    batched[known] = names.matching(_is_batched)[host["name"][around[known]]]
    (l0, l1), (k0, k1), (b0, b1) = (np.split(mask, 2) for mask in (linked, known, batched))
    return np.asarray(l0 & l1 & ((~k0 & ~k1) | (b0 & b1)))


def _is_product(name: str) -> bool:
    return re.match(r"aten::(b?addb?mm|bmm|mm|matmul|linear)$", name) is not None


def _is_batched(name: str) -> bool:
    return name in ("aten::bmm", "aten::baddbmm", "aten::matmul")
