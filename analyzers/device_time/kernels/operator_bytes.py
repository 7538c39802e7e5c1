"""Bytes that an operator at least moves between the device and its memory, from the shapes and types of its inputs.

Each input is read once and the output written once: the traffic of an operator alone, from which a fused kernel is
spared what stays in registers. Operators whose output does not follow from their inputs are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import msgspec

_SIZES = {
    "float": 4, "double": 8, "c10::half": 2, "half": 2, "c10::bfloat16": 2, "bfloat16": 2, "long int": 8, "long": 8,
    "int": 4, "short": 2, "short int": 2, "signed char": 1, "unsigned char": 1, "char": 1, "bool": 1,
}  # fmt: skip
Shapes = Sequence[Sequence[int]]
_Formula = Callable[[Shapes, Sequence[int]], int]
"""Bytes from input shapes and the bytes of an element of each; an input that is no tensor has 0."""


def operator_bytes(name: str, dims: str, types: str, element: int | None = None) -> int | None:
    """Bytes of one call, or None for an operator or inputs that are not understood.

    `dims` and `types` are `Input Dims` and `Input type` as JSON; where types were not recorded, `element` is taken as
    the bytes of an element of every tensor.
    """
    plain = name.removeprefix("aten::").partition(".")[0]
    try:
        shapes: Any = msgspec.json.decode(dims)
        kinds: Any = msgspec.json.decode(types) if types else None
        if kinds is None:
            sizes = [(element or 0) if shape else 0 for shape in shapes]
        else:
            sizes = [_element(str(kind)) for kind in kinds]
        if len(sizes) != len(shapes) or not any(sizes) or any(map(_nested, shapes)):
            return None
        return int(_formula(plain)(shapes, sizes)) or None
    except (msgspec.DecodeError, IndexError, TypeError, ValueError):
        return None


def _element(kind: str) -> int:
    key = kind.strip().lower()
    return 1 if "float8" in key else _SIZES.get(key, 0)


def _nested(shape: Any) -> bool:
    """Whether an input is a list of tensors, whose element types are not recorded."""
    return bool(shape) and isinstance(shape[0], list)


def _formula(plain: str) -> _Formula:
    return _FORMULAS.get(plain) or (_in_place if plain.endswith("_") else _mapped)


def _inputs(shapes: Shapes, sizes: Sequence[int]) -> int:
    return sum(prod(shape) * size for shape, size in zip(shapes, sizes, strict=True) if shape)


def _mapped(shapes: Shapes, sizes: Sequence[int]) -> int:
    """Elementwise: the output has the broadcast shape of the inputs and the widest of their types."""
    return _inputs(shapes, sizes) + _broadcast(shapes) * max(sizes)


def _broadcast(shapes: Shapes) -> int:
    return max(prod(shape) for shape in shapes if shape)


def _in_place(shapes: Shapes, sizes: Sequence[int]) -> int:
    return _inputs(shapes, sizes) + prod(shapes[0]) * sizes[0]


def _written(shapes: Shapes, sizes: Sequence[int]) -> int:
    return prod(shapes[0]) * sizes[0]


def _reduced(shapes: Shapes, sizes: Sequence[int]) -> int:
    """Of a reduction the output is small."""
    return prod(shapes[0]) * sizes[0]


def _like_first(shapes: Shapes, sizes: Sequence[int]) -> int:
    return _inputs(shapes, sizes) + prod(shapes[0]) * sizes[0]


def _product(first: int, second: int) -> _Formula:
    def formula(shapes: Shapes, sizes: Sequence[int]) -> int:
        a, b = shapes[first], shapes[second]
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise ValueError("no matrix product")
        out = prod(a[:-2]) * a[-2] * b[-1]
        return prod(a) * sizes[first] + prod(b) * sizes[second] + out * sizes[first]

    return formula


def _linear(shapes: Shapes, sizes: Sequence[int]) -> int:
    out = prod(shapes[0][:-1]) * shapes[1][0]
    return prod(shapes[0]) * sizes[0] + prod(shapes[1]) * sizes[1] + out * sizes[0]


_FORMULAS: dict[str, _Formula] = {
    "copy_": _inputs,
    **dict.fromkeys(("fill_", "zero_"), _written),
    **dict.fromkeys(("sum", "mean"), _reduced),
    **dict.fromkeys(("_softmax", "_log_softmax", "_softmax_backward_data", "_log_softmax_backward_data"), _like_first),
    **dict.fromkeys(
        ("native_layer_norm", "native_group_norm", "native_layer_norm_backward", "native_group_norm_backward",
         "cudnn_batch_norm", "miopen_batch_norm", "native_batch_norm", "cudnn_batch_norm_backward",
         "miopen_batch_norm_backward", "native_batch_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
        _like_first,
    ),
    **dict.fromkeys(("mm", "bmm", "matmul", "_int_mm", "_scaled_mm"), _product(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), _product(1, 2)),
    "linear": _linear,
}  # fmt: skip
