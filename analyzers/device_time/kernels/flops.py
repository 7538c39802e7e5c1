"""Floating-point operations of an operator from its recorded input shapes.

Counted as PyTorch's own FLOP counter does (torch/utils/flop_counter.py): a multiply-add is two; bias, softmax and
masking are left out; an attention's backward pass counts as five products. Unlike there, causal attention counts as
the half that it computes, and shapes are read in each operator's own layout, which that file does not do for
`_flash_attention_forward` and `_efficient_attention_forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

from gpuscope.analyzers.device_time.kernels.attention_flops import ATTENTION, is_attention_backward

Shape = Sequence[int]
Formula = Callable[[Sequence[Any], Sequence[str]], int]
"""FLOPs from input shapes and scalar inputs as text, in the operator's order of arguments; a tensor that was not given
has the shape []. Raises for shapes that it does not understand."""


def operator_flops(name: str, dims: str, concrete: str) -> int | None:
    """FLOPs of one call, or None for an operator or shapes that are not understood.

    `dims` and `concrete` are `Input Dims` and `Concrete Inputs` as JSON, as in the table `shapes`.
    """
    formula = _FORMULAS.get(_plain(name))
    if formula is None:
        return None
    try:
        shapes: Any = msgspec.json.decode(dims)
        scalars: Any = msgspec.json.decode(concrete) if concrete else []
        return int(formula(shapes, scalars if isinstance(scalars, list) else []))
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None


def recomputes_scores(name: str) -> bool:
    """Whether an operator computes again, as one of its products, what the forward pass did."""
    return is_attention_backward(_plain(name))


def _plain(name: str) -> str:
    """Without the namespace of aten and without an overload: `aten::mm.out` → `mm`."""
    return name.removeprefix("aten::").partition(".")[0]


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


def _grouped(shapes: Sequence[Any], scalars: Sequence[str]) -> int:  # noqa: ARG001
    """`_grouped_mm(a, b, offsets)`, of which rows, columns or the summed dimension are cut into groups.

    (M, K) @ (G, K, N) and (G, M, K) @ (K, N): a row or column is multiplied by its own group's matrix alone;
    (M, K) @ (K, N): K is cut; (G, M, K) @ (G, K, N): a batched product. Rows behind the last offset (padding) count.
    """
    a, b = shapes[0], shapes[1]
    if a[-1] != b[-2]:
        raise ValueError("no grouped product")
    return int(2 * (prod(a[:-2]) if len(b) == 3 and len(a) == 3 else 1) * a[-2] * a[-1] * b[-1])


def _convolution(shapes: Sequence[Any], scalars: Sequence[str]) -> int:
    """(N, C, …) with the weight (out, C / groups, …); stride, padding and dilation are scalar inputs 3 to 5."""
    image, weight = shapes[0], shapes[1]
    if len(image) != len(weight) or len(image) < 3:
        raise ValueError("no convolution")
    if _truth(scalars[6]):  # transposed: each input point meets the whole filter
        return int(2 * image[0] * prod(image[2:]) * prod(weight))
    stride, padding, dilation = (_per_axis(scalars[i], len(image) - 2) for i in (3, 4, 5))
    out = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in zip(image[2:], weight[2:], stride, padding, dilation, strict=True)
    ]
    return int(2 * image[0] * prod(out) * prod(weight))


def _convolution_backward(shapes: Sequence[Any], scalars: Sequence[str]) -> int:
    """(grad_out, input, weight, …, output_mask): as much for each gradient asked for as the forward pass.

    torch counts the weight's gradient of a grouped convolution `groups` times.
    """
    grad, image, weight = shapes[0], shapes[1], shapes[2]
    transposed, mask = _truth(scalars[7]), msgspec.json.decode(scalars[10].lower())
    each = 2 * grad[0] * prod((image if transposed else grad)[2:]) * prod(weight)
    return int(each * sum(bool(asked) for asked in mask[:2]))


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("no truth value")
    return text.lower() == "true"


def _per_axis(text: str, axes: int) -> list[int]:
    """A list of one value stands for all axes."""
    values = [int(value) for value in msgspec.json.decode(text)]
    return values * axes if len(values) == 1 else values


_FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("mm", "matmul", "bmm", "_int_mm", "_scaled_mm", "_scaled_mm_v2"), _product(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), _product(1, 2)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _grouped),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _convolution),
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), _convolution_backward),
    "linear": _linear,
    **ATTENTION,
}
