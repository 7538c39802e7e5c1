"""Floating-point operations of an operator from its recorded input shapes.

Counted as PyTorch's own FLOP counter does (torch/utils/flop_counter.py): a multiply-add is two; bias,
softmax and masking are left out; causal attention counts as full.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec


def operator_flops(name: str, dims: str, concrete: str) -> int | None:
    """FLOPs of one call, or None for an operator or shapes that are not understood."""
    try:
        shapes: Any = msgspec.json.decode(dims)
        scalars: Any = msgspec.json.decode(concrete) if concrete else None
    except msgspec.DecodeError:
        return None
    if not isinstance(shapes, list):
        return None
    op = name.removeprefix("aten::")
    try:
        if op in ("mm", "matmul", "_scaled_mm"):
            return _matmul(shapes[0], shapes[1])
        if op == "addmm":
            return _matmul(shapes[1], shapes[2])
        if op == "bmm":
            return _matmul(shapes[0], shapes[1])
        if op == "baddbmm":
            return _matmul(shapes[1], shapes[2])
        if op == "linear":
            return 2 * prod(shapes[0]) * int(shapes[1][0])
        if op in ("convolution", "_convolution"):
            return _convolution(shapes, scalars)
        if "attention" in op and "backward" not in op:
            return _attention(shapes[0], shapes[1], shapes[2])
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return None
    return None


def _matmul(a: Sequence[int], b: Sequence[int]) -> int | None:
    """(…, m, k) @ (…, k, n), with broadcast of the leading dimensions."""
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        return None
    batch = max(prod(a[:-2]), prod(b[:-2]))
    return 2 * batch * a[-2] * a[-1] * b[-1]


def _attention(query: Sequence[int], key: Sequence[int], value: Sequence[int]) -> int | None:
    """(batch, heads, queries, d) with (batch, heads, keys, d) and (batch, heads, keys, dv)."""
    if not len(query) == len(key) == len(value) == 4:
        return None
    batch, heads, queries, depth = query
    return 2 * batch * heads * queries * key[2] * (depth + value[3])


def _convolution(shapes: Sequence[Sequence[int]], scalars: Any) -> int | None:
    """Needs stride, padding and dilation: recorded as scalar inputs 3 to 5."""
    image, weight = shapes[0], shapes[1]
    if not isinstance(scalars, list) or len(image) != len(weight) or len(image) < 3:
        return None
    stride, padding, dilation = (msgspec.json.decode(scalars[i]) for i in (3, 4, 5))
    transposed = scalars[6].lower() == "true" if len(scalars) > 6 else False
    if transposed:
        return int(2 * prod(image) * prod(weight[1:]))
    out = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return int(2 * image[0] * weight[0] * prod(out) * prod(weight[1:]))
