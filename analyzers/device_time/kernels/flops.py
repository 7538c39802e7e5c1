"""Floating-point operations of an operator from its recorded input shapes.

Counted as PyTorch's own FLOP counter does (torch/utils/flop_counter.py): a multiply-add is two; bias, softmax and
masking are left out; an attention's backward pass counts as five products. Unlike there, causal attention counts as
the half that it computes, and shapes are read in each operator's own layout, which that file does not do for
`_flash_attention_forward` and `_efficient_attention_forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import msgspec

from gpuscope.analyzers.device_time.kernels.attention_flops import ATTENTION, is_attention_backward
from gpuscope.analyzers.device_time.kernels.convolutions import BACKWARD, FORWARD, backward_flops, convolution_flops
from gpuscope.analyzers.device_time.kernels.library_operators import library_flops
from gpuscope.analyzers.device_time.kernels.operator_inputs import decoded
from gpuscope.trace.naming.shaped_operators import is_library, plain_name

Shape = Sequence[int]
Formula = Callable[[Sequence[Any], Sequence[str]], int]
"""FLOPs from input shapes and scalar inputs as text, in the operator's order of arguments; a tensor that was not given
has the shape []. Raises for shapes that it does not understand."""


def operator_flops(name: str, dims: str, concrete: str, types: str = "") -> int | None:
    """FLOPs of one call, or None for an operator or shapes that are not understood.

    `dims`, `concrete` and `types` are `Input Dims`, `Concrete Inputs` and `Input type` as JSON, as in the table
    `shapes`; operators of libraries need the types.
    """
    formula = _FORMULAS.get(plain_name(name))
    try:
        if formula is None:
            return library_flops(name, decoded(dims, types, concrete)) if is_library(name) and types else None
        shapes: Any = msgspec.json.decode(dims)
        scalars: Any = msgspec.json.decode(concrete) if concrete else []
        return int(formula(shapes, scalars if isinstance(scalars, list) else []))
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def recomputes_scores(name: str) -> bool:
    """Whether an operator computes again, as one of its products, what the forward pass did."""
    return is_attention_backward(plain_name(name))


def _product(first: int, second: int) -> Formula:
    """Matrix product of two inputs, (…, m, k) @ (…, k, n), leading dimensions broadcast."""

    def formula(shapes: Sequence[Any], scalars: Sequence[str]) -> int:  # noqa: ARG001
        a, b = shapes[first], shapes[second]
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise ValueError("no matrix product")
        return int(2 * _broadcast(a[:-2], b[:-2]) * a[-2] * a[-1] * b[-1])

    return formula


def _broadcast(a: Shape, b: Shape) -> int:
    longest = max(len(a), len(b))
    pairs = zip([1] * (longest - len(a)) + list(a), [1] * (longest - len(b)) + list(b), strict=True)
    return prod(max(pair) for pair in pairs)


def _linear(shapes: Sequence[Any], scalars: Sequence[str]) -> int:  # noqa: ARG001
    """(…, k) by the weight (n, k)."""
    if shapes[0][-1] != shapes[1][-1]:
        raise ValueError("no linear layer")
    return int(2 * prod(shapes[0]) * prod(shapes[1][:-1]))


def _vector_product(matrix: Shape, vector: Shape) -> int:
    if len(matrix) != 2 or list(vector) != [matrix[1]]:
        raise ValueError("no product with a vector")
    return int(2 * prod(matrix))


def _grouped(shapes: Sequence[Any], scalars: Sequence[str]) -> int:  # noqa: ARG001
    """`_grouped_mm(a, b, offsets)`, of which rows, columns or the summed dimension are cut into groups.

    (M, K) @ (G, K, N) and (G, M, K) @ (K, N): a row or column is multiplied by its own group's matrix alone;
    (M, K) @ (K, N): K is cut; (G, M, K) @ (G, K, N): a batched product. Rows behind the last offset (padding) count.
    """
    a, b = shapes[0], shapes[1]
    if a[-1] != b[-2]:
        raise ValueError("no grouped product")
    return int(2 * (prod(a[:-2]) if len(b) == 3 and len(a) == 3 else 1) * a[-2] * a[-1] * b[-1])


_FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mm", "matmul", "bmm", "_int_mm", "_scaled_mm", "_scaled_mm_v2"), _product(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), _product(1, 2)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _grouped),
    **{name: partial(convolution_flops, name) for name in FORWARD},
    **dict.fromkeys(BACKWARD, backward_flops),
    "linear": _linear,
    "mv": lambda shapes, _: _vector_product(shapes[0], shapes[1]),
    "addmv": lambda shapes, _: _vector_product(shapes[1], shapes[2]),
    **ATTENTION,
}
