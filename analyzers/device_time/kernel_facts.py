"""What each kernel does and what it would take at the device's peak: asked once per trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.device_time.kernel_roofs import Roofs, kernel_roofs
from gpuscope.analyzers.device_time.operator_work import Labels, Work, categories, codes, is_multiplying, operator_work
from gpuscope.trace import kernel_categories
from gpuscope.trace.kernel_categories import words
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import PerName
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.steps import KERNEL_SEQUENCE
from gpuscope.trace.table import (
    Array,
    Mask,
    Table,
    Times,
    among,
    constant,
    distinct_rows,
    distinct_values,
    is_constant,
    looked_up,
)
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

# Memory-bound kernels that follow each other on a stream: what a compiler could make one kernel of.
#
# A chain is a run of elementwise operations, copies on the device, reductions and normalisations between two kernels
# that
# none of these can be fused into (matrix products, attention, convolutions, collectives). Kernels of Inductor are fused
# already, and so is what else a compiled region launches; updates of parameters, their gradients' accumulation and
# filling belong to the optimizer and are no chain. A chain ends with its step.

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


# Matrix products whose sizes tensor cores handle badly: rows that do not begin at multiples of 16 bytes.
#
# cuBLAS takes any size, but its fastest kernels want each dimension that is contiguous in memory to be a multiple of 16
# bytes: 4 elements of 32 bits, 8 of 16, 16 of 8 (NVIDIA, «Matrix Multiplication Background User's Guide», 3.1). Which
# one
# is contiguous is not recorded: of activations and weights it is the summed or the output one. A weight's gradient is
# summed over the rows of a batch, which are contiguous in neither input; it is known by a sum longer than its output.

ALIGNED = 16
_OPERANDS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "matmul": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "_addmm_activation": (1, 2),
}
_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}


def odd_sizes(name: str, dims: str, precision: str) -> tuple[int, ...]:
    """The summed and output sizes of a product that are no multiples of 16 bytes; empty where all are, or for another
    operator. Sizes of 1 are vectors, which use no tensor cores.

    >>> odd_sizes("aten::mm", "[[1024,9375],[9375,512]]", "tf32")
    (9375,)
    """
    operands = _OPERANDS.get(name.removeprefix("aten::").partition(".")[0])
    if operands is None:
        return ()
    try:
        shapes: Any = msgspec.json.decode(dims)
        first, second = (shapes[place] for place in operands)
        rows, summed, columns = int(first[-2]), int(first[-1]), int(second[-1])
    except (msgspec.DecodeError, IndexError, TypeError, ValueError):
        return ()
    unit = ALIGNED // _BYTES.get(precision, 4)
    if min(rows, summed, columns) < 2:
        return ()
    sizes = (columns,) if operands == (0, 1) and len(first) == 2 and summed > rows else (summed, columns)
    return tuple(dict.fromkeys(size for size in sizes if size % unit))


PRECISIONS = ("", "fp32 or tf32", kernel_categories.SINGLE, "tf32", "bf16", "fp16", "fp8", "fp64", "int8")
"""Of matrix products, by code; the first is not known."""
_LAYOUT = when_used.pattern(r"nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose_\d", re.IGNORECASE)
_FLASH_2 = when_used.pattern(r"flash_(fwd|bwd)(_\w+)*_kernel")
BUCKET_COPIES = ("torch.distributed.ddp.reducer::copy_bucket_to_grad", "torch::distributed::reducer::copy_")


@dataclass(frozen=True)
class KernelFacts:
    """Per device event of a trace, shape (n,)."""

    category: Labels
    work: Work
    precision: Array
    """Place in `PRECISIONS`; of kernels that multiply."""
    roofs: Roofs
    """What its work needs at least."""
    chain: Array
    """Number of the chain of memory-bound kernels that it is part of; `NO_CHAIN` outside one."""
    layout: Mask
    """Whether it converts between the memory layouts of images, for a convolution that wants the other one."""
    attention: Mask
    """Whether it is part of an attention that runs as products with a softmax between them."""
    flash_2: Mask
    """Whether it is FlashAttention 2."""
    odd: Array
    """Place in `sizes`; of matrix products."""
    sizes: Sequence[tuple[int, ...]]
    """Those that are no multiples of 16 bytes; the first has none."""
    gradient_copy: Mask
    """Whether it copies between a gradient and DDP's bucket; copies of the memory engine too."""


_KNOWN: WeakKeyDictionary[Trace, KernelFacts] = WeakKeyDictionary()
_FINDING = Lock()
"""Several analyses need them, which may run at once."""


def kernel_facts(trace: Trace) -> KernelFacts:
    """The facts of a trace's device events, found at the first call."""
    with _FINDING:
        found = _KNOWN.get(trace)
        if found is None:
            found = _KNOWN[trace] = _facts(trace)
        return found


def _facts(trace: Trace) -> KernelFacts:
    device, names = trace["device_events"], trace.names
    rows = np.arange(len(device))
    category = categories(trace, rows)
    work = operator_work(trace, rows, category)
    precision = _precision(trace, category, work)
    chain, attention = chains(trace, category)
    compute = device["kind"] == Kind.COMPUTE
    layout = _named(device, compute, names.matching(lambda name: _LAYOUT.search(name) is not None))
    flash = _named(device, compute, names.matching(lambda name: _FLASH_2.search(name) is not None))
    roofs = kernel_roofs(trace, work, precision, PRECISIONS)
    odd, sizes = _odd(trace, work, precision)
    copied = gradient_copies(trace)
    return KernelFacts(category, work, precision, roofs, chain, layout, attention, flash, odd, sizes, copied)


def _named(device: Table, own: Mask, wanted: Mask) -> Mask:
    """Which of a lane's `own` events have a name that is wanted."""
    return own & looked_up(wanted, device["name"]) if wanted.any() else constant(False, len(device), np.bool_)


def gradient_copies(trace: Trace) -> Mask:
    """Per device event, whether it was launched within a range of DDP's reducer that copies between a gradient and its
    bucket (torch/csrc/distributed/c10d/reducer.cpp); there are none where gradients are views of the buckets."""
    device, host = trace["device_events"], trace["host_events"]
    found = np.zeros(len(device), np.bool_)
    names = [code for name in BUCKET_COPIES if (code := trace.names.find(name)) >= 0]
    if not names:
        return found
    copying = np.isin(host["name"], names)
    linked = np.flatnonzero((device["launch"] != NA) & (device["kind"] != Kind.COMMUNICATION))
    if copying.any() and len(linked):
        launch = device.at("launch", linked)
        found[linked] = innermost(host, copying, host["thread"][launch], host["start"][launch]) != NA
    return found


def _odd(trace: Trace, work: Work, precision: Array) -> tuple[Array, list[tuple[int, ...]]]:
    """Odd sizes of the products whose FLOPs are known: the place of each device event's, and what is there."""
    device, host, names, shapes = trace["device_events"], trace["host_events"], trace.names, trace["shapes"]
    rows = np.flatnonzero(work.flops)
    if not len(rows):
        return constant(0, len(device), np.int32), [()]
    shaped, place = np.zeros(len(host), np.bool_), np.zeros(len(host), np.int32)
    shaped[shapes["event"]] = True
    place[shapes["event"]] = np.arange(len(shapes))
    launch = device.at("launch", rows)
    operator = innermost(host, shaped, host["thread"][launch], host["start"][launch])
    rows, operator = rows[operator != NA], operator[operator != NA]
    columns = host["name"][operator], shapes["dims"][place[operator]], precision[rows]
    first, which = distinct_rows(*columns)
    each = zip(*(column[first].tolist() for column in columns), strict=True)
    told = [odd_sizes(names[name], names[dims], PRECISIONS[code]) for name, dims, code in each]
    known = list(dict.fromkeys([(), *told]))
    found = np.zeros(len(device), np.int32)
    found[rows] = np.array([known.index(sizes) for sizes in told], np.int32)[which]
    return found, known


def _precision(trace: Trace, category: Labels, work: Work) -> Array:
    """By the operator's types where its FLOPs are known, else by the kernel's name."""
    code = {name: place for place, name in enumerate(PRECISIONS)}
    said = PerName(trace.names, lambda name: code.get(kernel_categories.of_kernel(name) or "", 0))
    multiplying = np.flatnonzero(is_multiplying(category))
    found = np.zeros(len(category), np.int8)
    found[multiplying] = said(trace["device_events"].at("name", multiplying))
    told = np.array([code.get(name or "", 0) for name in work.precisions], np.int8)[work.precision]
    return np.where((told != 0) & (work.flops != 0), told, found)


__all__ = ["NO_CHAIN", "PRECISIONS", "KernelFacts", "kernel_facts"]
