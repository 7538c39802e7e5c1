"""What kind of program a trace is of: it decides which advice applies and in whose words."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Literal

from gpuscope import when_used
from gpuscope.trace.naming.frameworks import SERVERS, frameworks

Program = Literal["pytorch", "jax", "native", "server"]
"""`native` is a program that calls CUDA or HIP itself, in C++ or another language; `server` answers requests with a
model and trains nothing."""

_PYTORCH = when_used.pattern(
    # Operators, ATen's kernels, autograd, Inductor's and nvFuser's kernels, files of a recorded stack.
    r"\b(aten|c10d|c10)::|\bat::(native|cuda)::|\btorch(::|\.|/)|^ProfilerStep#|^autograd::engine|^Optimizer\.(step|zero_grad)#"
    r"|^triton_(poi|per|red|tem|for)_fused|\bnvfuser|\bCUDACachingAllocator\b|^enumerate\(DataLoader\)"
)
_JAX = when_used.pattern(
    # XLA's NVTX domain and module ranges, its traces of host functions, what jit names, JAX's own kernels.
    r"^XlaModule\b|^XlaOp\b|^TSL:|\bjit[_(]\w+|\bpjit\b|\bjax(::|/|\.)|\bxla::|^PjRt|^PjitFunction"
)
_TRAINS = when_used.pattern(r"^Optimizer\.(step|zero_grad)#|^autograd::engine|Backward\d*$|_backward\b")
"""Of a job that does both (reinforcement learning) the training part decides."""
_PYTORCH_FORMATS = frozenset({"kineto", "ascend", "flight-recorder", "allocator-snapshot"})
"""Formats that only PyTorch (or its Ascend build) writes."""


def program(names: Iterable[str], formats: Collection[str], any_events: bool) -> Program | None:
    """The kind of program that recorded these names in files of these formats (`trace.sources[].format`).

    Servers are told by their steps and operators, PyTorch's and XLA's names by whole identifiers. XLA goes before
    PyTorch: JAX jobs may use torch to load data. Without any, a program with events is `native`; None where nothing was
    recorded that could tell.
    """
    texts = list(names)
    if frameworks(texts, among=SERVERS) and not any(_TRAINS.search(name) for name in texts):
        return "server"
    if formats and set(formats) & _PYTORCH_FORMATS:
        return "pytorch"
    if any(_JAX.search(name) for name in texts):
        return "jax"
    if frameworks(texts) or any(_PYTORCH.search(name) for name in texts):
        return "pytorch"
    return "native" if any_events else None
