"""The recorded inputs of an operator's call, decoded, and what several formulae ask of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import msgspec

Shape = Sequence[int]

_SIZES = {
    "float": 4,
    "double": 8,
    "c10::half": 2,
    "half": 2,
    "c10::bfloat16": 2,
    "bfloat16": 2,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short": 2,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "char": 1,
    "bool": 1,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "unsigned int": 4,
    "unsigned short": 2,
    "unsigned long": 8,
    "at::float4_e2m1fn_x2": 1,
    "c10::float4_e2m1fn_x2": 1,
}
_KINDS = {
    "bool": 0,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "short": 1,
    "short int": 1,
    "int": 1,
    "long": 1,
    "long int": 1,
    "unsigned int": 1,
    "unsigned short": 1,
    "unsigned long": 1,
}
_FLOATING, _COMPLEX = 2, 3
DEFAULT_BYTES = 4
"""Of torch's default dtype, which a Python number brings to integers."""


@dataclass(frozen=True)
class Inputs:
    """Of each input its shape, the bytes of an element (0: no tensor), its type as the profiler writes it, its strides
    (empty where they were not recorded) and, of what is no tensor, its value as text."""

    shapes: list[list[int]]
    sizes: list[int]
    types: list[str]
    strides: list[list[int]]
    scalars: list[str]

    def __len__(self) -> int:
        return len(self.shapes)

    def is_tensor(self, place: int) -> bool:
        """Whether an input is a tensor of one dimension or more."""
        return place < len(self.shapes) and bool(self.shapes[place]) and self.sizes[place] > 0

    def list_of(self, place: int) -> list[list[int]]:
        """The shapes of a list of tensors."""
        return cast(list[list[int]], self.shapes[place])

    def tensors(self) -> list[int]:
        """Places of all tensors of one dimension or more."""
        return [place for place in range(len(self)) if self.is_tensor(place)]

    def numel(self, place: int) -> int:
        """Elements of a tensor; 1 of one without dimensions."""
        return int(prod(self.shapes[place]))

    def stored(self, place: int) -> int:
        """Elements in memory: a dimension along which the stride is 0 (an expanded tensor) holds one."""
        shape = self.shapes[place]
        strides = self.strides[place] if place < len(self.strides) else []
        if len(strides) != len(shape):
            return int(prod(shape))
        return int(prod(size for size, stride in zip(shape, strides, strict=True) if stride != 0))

    def read(self, place: int) -> int:
        """Bytes that reading a tensor once takes; 0 of what is none."""
        return self.stored(place) * self.sizes[place] if self.is_tensor(place) else 0

    def whole(self, place: int) -> int:
        """Bytes of a tensor of this shape and type, as of one that is written."""
        return self.numel(place) * self.sizes[place]

    def scalar(self, place: int) -> str:
        """The value of an input that is no tensor, as text; empty where it was not recorded."""
        return self.scalars[place] if 0 <= place < len(self.scalars) else ""

    def numbers(self, place: int) -> list[int]:
        """A list of integers. Raises `ValueError` where it was not recorded."""
        values = msgspec.json.decode(self.scalar(place)) if self.scalar(place) else None
        if isinstance(values, int) and not isinstance(values, bool):
            values = [values]
        if not isinstance(values, list) or not all(isinstance(value, int) for value in values):
            raise ValueError("no list of integers")
        return values

    def broadcast(self, places: Sequence[int]) -> list[int]:
        """The shape that these inputs are broadcast to. Raises `ValueError` where they do not fit."""
        shapes = [self.shapes[place] for place in places if self.shapes[place]]
        rank = max((len(shape) for shape in shapes), default=0)
        result = [1] * rank
        for shape in shapes:
            for axis, size in enumerate(shape, rank - len(shape)):
                if size != 1 and result[axis] not in (1, size):
                    raise ValueError("shapes that can't be broadcast")
                result[axis] = size if size != 1 else result[axis]
        return result

    def broadcast_of(self, a: Shape, b: Shape) -> int:
        """Elements of what two shapes (the batches of two matrices) are broadcast to."""
        longest = max(len(a), len(b))
        pairs = zip([1] * (longest - len(a)) + list(a), [1] * (longest - len(b)) + list(b), strict=True)
        return int(prod(max(pair) for pair in pairs))

    def promoted(self, places: Sequence[int]) -> int:
        """Bytes of an element of what torch makes of these inputs.

        Tensors with dimensions decide among themselves; one without, and a Python number, only across kinds (bool,
        integer, floating-point, complex), and then a floating-point number brings the default dtype.
        """
        dimensional = [place for place in places if self.shapes[place] and self.sizes[place]]
        others = [place for place in places if not self.shapes[place] and self.types[place] not in ("", "ScalarList")]
        kind = max((_kind(self.types[place]) for place in dimensional), default=-1)
        size = max((self.sizes[place] for place in dimensional if _kind(self.types[place]) == kind), default=0)
        if size == 2 and len({self.types[place].lower() for place in dimensional if self.sizes[place] == 2}) > 1:
            size = DEFAULT_BYTES if kind == _FLOATING else size  # bfloat16 with half is float
        for place in others:
            own = _number_kind(self.types[place], self.scalar(place))
            if own > kind and dimensional:
                size, kind = (8 if own == 1 else DEFAULT_BYTES if own == _FLOATING else 8), own
        if not dimensional:
            size = max((self.sizes[place] for place in others), default=0)
        return size


def decoded(dims: str, types: str = "", concrete: str = "", strides: str = "", element: int | None = None) -> Inputs:
    """The inputs that a profiler recorded as JSON. Where types were not recorded, as those of lists of tensors are not,
    `element` is taken as the bytes of an element.

    Raises `ValueError` (which `msgspec.DecodeError` is) or `TypeError` for what is no list of inputs.
    """
    shapes: Any = msgspec.json.decode(dims)
    if not isinstance(shapes, list):
        raise TypeError("no list of shapes")
    recorded: Any = msgspec.json.decode(types) if types else None
    if recorded is not None:
        kinds = [str(kind) for kind in recorded]
        sizes = [(element or 0) if kind == "TensorList" else _element(kind) for kind in kinds]
    else:
        kinds, sizes = [""] * len(shapes), [(element or 0) if shape else 0 for shape in shapes]
    if len(sizes) != len(shapes):
        raise ValueError("as many types as shapes are needed")
    scalars: Any = msgspec.json.decode(concrete) if concrete else []
    steps: Any = msgspec.json.decode(strides) if strides else []
    return Inputs(
        shapes,
        sizes,
        kinds,
        steps if isinstance(steps, list) and len(steps) == len(shapes) else [],
        [str(value) for value in scalars] if isinstance(scalars, list) else [],
    )


def nested(shape: Any) -> bool:
    """Whether an input is a list of tensors."""
    return bool(shape) and isinstance(shape[0], list)


def is_floating(dtype: str) -> bool:
    """Whether a type, as the profiler writes it, is a floating-point or complex one."""
    return _kind(dtype) >= _FLOATING


def _element(kind: str) -> int:
    key = kind.strip().lower()
    return 1 if "float8" in key else _SIZES.get(key, 0)


def _kind(dtype: str) -> int:
    key = dtype.strip().lower()
    return _COMPLEX if "complex" in key else _KINDS.get(key, _FLOATING)


def _number_kind(dtype: str, value: str) -> int:
    if dtype != "Scalar":
        return _kind(dtype)
    if value.lower() in ("true", "false", ""):
        return 0
    return 1 if value.lstrip("+-").isdigit() else _FLOATING
