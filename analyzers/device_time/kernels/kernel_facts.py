"""What each kernel does and what it would take at the device's peak: asked once per trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.device_time.kernels.kernel_chains import NO_CHAIN, chains
from gpuscope.analyzers.device_time.kernels.launching_operators import Labels, categories
from gpuscope.analyzers.device_time.kernels.odd_sizes import odd_sizes
from gpuscope.analyzers.device_time.kernels.operator_work import Work, device_models, is_multiplying, operator_work
from gpuscope.hardware.device_peaks import memory_bandwidth, peaks_of
from gpuscope.trace.columns.distinct import distinct, distinct_rows
from gpuscope.trace.columns.name_pool import NO_NAME, Codes, PerName
from gpuscope.trace.columns.table import Array, Mask, Table, Times, constant, is_constant, looked_up
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import precisions
from gpuscope.trace.schema import NA, Category, Kind
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

PRECISIONS = ("", "fp32 or tf32", precisions.SINGLE, "tf32", "bf16", "fp16", "fp8", "fp64", "int8")
"""Of matrix products, by code; the first is not known."""
_LAYOUT = when_used.pattern(r"nchw_?to_?nhwc|nhwc_?to_?nchw|batched_transpose_\d", re.IGNORECASE)
_FLASH_2 = when_used.pattern(r"flash_(fwd|bwd)(_\w+)*_kernel")
BUCKET_COPIES = ("torch.distributed.ddp.reducer::copy_bucket_to_grad", "torch::distributed::reducer::copy_")
_ELEMENT = ((when_used.pattern(r"bfloat16|bf16|half|c10::Half"), 2), (when_used.pattern(r"\bfloat\b"), 4))


@dataclass(frozen=True)
class KernelFacts:
    """Per device event of a trace, shape (n,)."""

    category: Labels
    work: Work
    precision: Array
    """Place in `PRECISIONS`; of kernels that multiply."""
    bytes: Array
    """That its operator moves at least, split over its kernels by time; 0 where not known."""
    needed: Array
    """ns that its FLOPs need at the peak of their precision or its bytes at that of the memory, whichever is more; 0
    where not known."""
    floor: Times
    """The same, no longer than it took: what a cache held was not read from memory."""
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
    moved = _bytes(trace, rows)
    chain, attention = chains(trace, category)
    compute = device["kind"] == Kind.COMPUTE
    layout = _named(device, compute, names.matching(lambda name: _LAYOUT.search(name) is not None))
    flash = _named(device, compute, names.matching(lambda name: _FLASH_2.search(name) is not None))
    needed = _needed(trace, work, moved, precision)
    floor = constant(0, len(device), np.int64)
    if not is_constant(needed):
        floor = np.minimum(np.rint(needed).astype(np.int64), device["end"] - device["start"])
    odd, sizes = _odd(trace, work, precision)
    copied = gradient_copies(trace)
    return KernelFacts(
        category, work, precision, moved, needed, floor, chain, layout, attention, flash, odd, sizes, copied
    )


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
    said = PerName(trace.names, lambda name: code.get(precisions.of_kernel(name) or "", 0))
    multiplying = np.flatnonzero(is_multiplying(category))
    found = np.zeros(len(category), np.int8)
    found[multiplying] = said(trace["device_events"].at("name", multiplying))
    told = np.array([code.get(name or "", 0) for name in work.precisions], np.int8)[work.precision]
    return np.where((told != 0) & (work.flops != 0), told, found)


def _bytes(trace: Trace, rows: Times) -> Array:
    """Bytes per device event, from the innermost operator around its launch whose bytes can be counted."""
    device, host = trace["device_events"], trace["host_events"]
    if not len(trace["shapes"]):
        return constant(0, len(rows), np.float64)
    found = np.zeros(len(rows), np.float64)
    linked = np.flatnonzero(device.known("launch") & (device["kind"] == Kind.COMPUTE) & (device["device"] != NA))
    if not len(linked):
        return found
    shapes = trace["shapes"]
    candidates = np.zeros(len(host), np.bool_)
    candidates[shapes["event"][host["category"][shapes["event"]] == Category.OP]] = True
    launch = device.at("launch", linked)
    operator = innermost(host, candidates, host["thread"][launch], host["start"][launch])
    linked, operator = linked[operator != NA], operator[operator != NA]
    size = _per_operator(trace, operator, device["name"][linked])
    spent = (device["end"] - device["start"])[linked].astype(np.float64)
    _, which = distinct(operator)
    whole = np.bincount(which, spent)[which] if len(which) else spent
    found[linked] = np.where(whole > 0, size * spent / np.maximum(whole, 1), 0.0)
    return found


def _per_operator(trace: Trace, operator: Times, kernel: Codes) -> Array:
    """Bytes of the operator behind each kernel; 0 where they can't be counted."""
    from gpuscope.analyzers.device_time.kernels.operator_bytes import operator_bytes

    host, shapes, names = trace["host_events"], trace["shapes"], trace.names
    place = np.empty(len(host), np.int32 if len(shapes) < 2**31 else np.int64)  # only those asked for are written
    place[shapes["event"]] = np.arange(len(shapes))
    row = place[operator]
    types = shapes["types"][row]
    untyped = np.where(types == NO_NAME, PerName(names, _element_of)(kernel), 0)
    columns = (host["name"][operator], shapes["dims"][row], types, untyped)
    first, which = distinct_rows(*columns)
    sizes = [
        operator_bytes(names[name], names[dims], names[types], element) or 0
        for name, dims, types, element in zip(*(column[first].tolist() for column in columns), strict=True)
    ]  # fmt: skip
    return np.array(sizes, np.float64)[which] if sizes else np.zeros(0)


def _element_of(kernel: str) -> int:
    """Bytes of an element by a kernel's template arguments; 0 where these do not say."""
    return next((size for pattern, size in _ELEMENT if pattern.search(kernel)), 0)


def _needed(trace: Trace, work: Work, moved: Array, precision: Array) -> Array:
    """ns at the peaks of each device."""
    device, models = trace["device_events"], device_models(trace)
    if is_constant(work.flops) and is_constant(moved):  # nothing is known of either
        return constant(0, len(device), np.float64)
    needed = np.zeros(len(device), np.float64)
    for (rank, number), model in models.items():
        own = (device["rank"] == rank) & (device["device"] == number)
        peaks, bandwidth = peaks_of(model), memory_bandwidth(model)
        rate = np.array(
            [peaks.get(name, peaks.get("tf32", 0.0) if name == PRECISIONS[1] else 0.0) for name in PRECISIONS]
        )
        counted = own & (work.flops > 0) & (rate[precision] > 0)
        needed[counted] = work.flops[counted] / rate[precision][counted] * 1e9
        if bandwidth:
            sized = own & (moved > 0)
            needed[sized] = np.maximum(needed[sized], moved[sized] / bandwidth * 1e9)
    return needed


__all__ = ["NO_CHAIN", "PRECISIONS", "KernelFacts", "kernel_facts"]
