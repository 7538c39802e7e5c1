"""What each kernel does and what it would take at the device's peak: asked once per trace."""

from __future__ import annotations

import re
from collections.abc import Sequence
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.device_time.kernels.kernel_chains import NO_CHAIN, chains
from gpuscope.analyzers.device_time.kernels.kernel_roofs import Roofs, kernel_roofs
from gpuscope.analyzers.device_time.kernels.launching_operators import Labels, categories
from gpuscope.analyzers.device_time.kernels.odd_sizes import odd_sizes
from gpuscope.analyzers.device_time.kernels.operator_work import Work, is_multiplying, operator_work
from gpuscope.trace.columns.distinct import distinct_rows
from gpuscope.trace.columns.name_pool import PerName
from gpuscope.trace.columns.table import Array, Mask, Table, constant, looked_up
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.naming import precisions
from gpuscope.trace.schema import NA, Kind
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass

PRECISIONS = ("", "fp32 or tf32", precisions.SINGLE, "tf32", "bf16", "fp16", "fp8", "fp64", "int8")
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
    said = PerName(trace.names, lambda name: code.get(precisions.of_kernel(name) or "", 0))
    multiplying = np.flatnonzero(is_multiplying(category))
    found = np.zeros(len(category), np.int8)
    found[multiplying] = said(trace["device_events"].at("name", multiplying))
    told = np.array([code.get(name or "", 0) for name in work.precisions], np.int8)[work.precision]
    return np.where((told != 0) & (work.flops != 0), told, found)


__all__ = ["NO_CHAIN", "PRECISIONS", "KernelFacts", "kernel_facts"]
