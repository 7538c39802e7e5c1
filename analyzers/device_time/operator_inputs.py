"""The recorded inputs of an operator's call, decoded, and what several formulae ask of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import msgspec

from gpuscope.trace.name_pool import LIBRARIES

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


# Operators of inference libraries (vLLM, SGLang, aiter, DeepGEMM…) whose recorded tensors tell what they multiply.

_PRODUCT = re.compile(r"gemm|scaled_mm|matmul")
_EXPERTS = re.compile(r"moe|experts")
MOST_CHOSEN = 64
"""Experts a token is sent to: more than any model has."""
_PACKED = ("unsigned char", "signed char", "char", "int")
"""Types that hold weights of fewer bits."""


@dataclass(frozen=True)
class Product:
    """A matrix product among an operator's inputs."""

    first: int
    second: int
    out: int | None
    """Places; the output where it is one of the inputs."""
    rows: int
    columns: int
    summed: int

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.columns * self.summed


@dataclass(frozen=True)
class RoutedExperts:
    """A fused layer of experts: what it computes, and the least and the most that it reads and writes, by how many
    experts its tokens may be sent to."""

    flops: int
    chosen: int
    """Experts per token."""
    experts: int
    least_bytes: int
    most_bytes: int


def library_flops(name: str, inputs: Inputs) -> int | None:
    """FLOPs of a library's product or experts; None for any other operator. Raises `ValueError` for inputs that are not
    understood."""
    if (experts := routed_experts(name, inputs)) is not None:
        return experts.flops
    if not _own(name, _PRODUCT):
        return None
    return product_of(inputs).flops


def _own(name: str, pattern: re.Pattern[str]) -> bool:
    return LIBRARIES.match(name) is not None and pattern.search(name.rpartition("::")[2]) is not None


def product_of(inputs: Inputs) -> Product:
    """Activations (…, K) by a weight (N, K), as layers keep it, or (K, N); before them may stand the output (…, N).
    Raises `ValueError` where there is no such pair."""
    places = [place for place in inputs.tensors() if len(inputs.shapes[place]) >= 2]
    for at, first in enumerate(places):
        for second in places[at + 1 : at + 3]:
            a, b = inputs.shapes[first], inputs.shapes[second]
            if len(b) != 2:
                continue
            rows = prod(a[:-1])
            for columns, summed in ((b[0], b[1]), (b[1], b[0])):
                if a[-1] != summed or min(rows, columns, summed) < 1:
                    continue
                given = [
                    place
                    for place in places
                    if place not in (first, second)
                    and inputs.shapes[place][-1] == columns
                    and inputs.numel(place) == rows * columns
                ]
                if at and not given:  # what stands before the activations is the output
                    continue
                return Product(first, second, given[0] if given else None, rows, columns, summed)
    raise ValueError("no product")


def routed_experts(name: str, inputs: Inputs) -> RoutedExperts | None:
    """A fused layer of experts: tokens (T, H), weights (E, 2 I or I, H) and (E, H, I), and the chosen experts or their
    weights (T, k). None for another operator. Raises `ValueError` for inputs that are not understood."""
    if not _own(name, _EXPERTS):
        return None
    tensors = inputs.tensors()
    weights = [place for place in tensors if len(inputs.shapes[place]) == 3 and inputs.numel(place) > 1]
    tokens = next((place for place in tensors if len(inputs.shapes[place]) == 2), None)
    if tokens is None or not weights:
        raise ValueError("no experts")
    count, hidden = inputs.shapes[tokens]
    experts = inputs.shapes[weights[0]][0]
    weights = [place for place in weights if inputs.shapes[place][0] == experts][:2]
    chosen = next(
        (
            inputs.shapes[place][1]
            for place in tensors
            if len(inputs.shapes[place]) == 2
            and place != tokens
            and inputs.shapes[place][0] == count
            and 0 < inputs.shapes[place][1] <= min(MOST_CHOSEN, experts)
        ),
        None,
    )
    if chosen is None:
        raise ValueError("how many experts a token is sent to is not recorded")
    per_expert = [prod(inputs.shapes[place][1:]) * _values_per_element(inputs, place, hidden) for place in weights]
    flops = 2 * count * chosen * sum(per_expert)
    moved = 2 * inputs.whole(tokens)
    each = sum(inputs.whole(place) for place in weights) // experts
    return RoutedExperts(
        flops, chosen, experts, moved + min(experts, chosen) * each, moved + min(experts, count * chosen) * each
    )


def _values_per_element(inputs: Inputs, place: int, hidden: int) -> int:
    """Weights of four bits lie two to a byte, eight to an integer: the summed dimension is so much shorter."""
    if inputs.types[place] not in _PACKED or is_floating(inputs.types[place]):
        return 1
    for factor in (2, 4, 8):
        if hidden in [size * factor for size in inputs.shapes[place][1:]]:
            return factor
    return 1


# Floating-point operations and output sizes of convolutions, in all their spellings.
#
# The input is (N, C, …), without a batch (C, …); the weight (out, C / groups, …), of a transposed convolution
# (C, out / groups, …). Each input point of a transposed convolution meets the whole filter, each output point of any
# other one.


@dataclass(frozen=True)
class _Places:
    """Where an operator has its arguments; None for one that it has not."""

    stride: int
    padding: int
    dilation: int | None = None
    groups: int | None = None
    output_padding: int | None = None
    transposed: int | bool = False
    """The place of the argument that says so, or whether it always is."""


_CONVOLUTION = _Places(3, 4, 5, 8, 7, 6)
_CONV = _Places(3, 4, 5, 6)
_LIBRARY = _Places(4, 3, 5, 6)
_WITH_KERNEL = _Places(4, 5, 6)
_PLACES: dict[str, _Places] = {
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _CONVOLUTION),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "cudnn_convolution_relu", "miopen_convolution_relu"), _CONV),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _Places(3, 4, 7, 6, 5, True)),
    "cudnn_convolution": _Places(3, 2, 4, 5),
    "cudnn_convolution_transpose": _Places(4, 2, 5, 6, 3, True),
    **dict.fromkeys(("miopen_convolution", "miopen_depthwise_convolution", "mkldnn_convolution"), _LIBRARY),
    "miopen_convolution_transpose": _Places(5, 3, 6, 7, 4, True),
    **dict.fromkeys(
        ("_conv_depthwise2d", "conv_depthwise3d", "slow_conv_dilated2d", "slow_conv_dilated3d"), _WITH_KERNEL
    ),
    **dict.fromkeys(("thnn_conv2d", "_slow_conv2d_forward", "slow_conv3d", "slow_conv3d_forward"), _Places(4, 5)),
    **dict.fromkeys(("slow_conv_transpose2d", "slow_conv_transpose3d"), _Places(4, 5, 7, None, 6, True)),
}
"""By the plain name; arguments as in aten/src/ATen/native/native_functions.yaml."""
FORWARD = tuple(_PLACES)
BACKWARD = ("convolution_backward", "convolution_backward_overrideable")


@dataclass(frozen=True)
class Convolution:
    """What a forward convolution does."""

    batch: int
    channels: int
    """Of the input."""
    filters: int
    """Channels of the output."""
    groups: int
    window: Sequence[int]
    sizes: Sequence[int]
    """Of the output, per axis."""
    flops: int

    @property
    def output(self) -> int:
        """Elements."""
        return self.batch * self.filters * prod(self.sizes)


def convolution(plain: str, shapes: Sequence[Any], scalars: Sequence[str]) -> Convolution:
    """The convolution of an operator's inputs. Raises `ValueError` or `IndexError` for what is none, or where its
    stride and padding were not recorded."""
    places = _PLACES[plain]
    image, weight = list(shapes[0]), list(shapes[1])
    if len(image) == len(weight) - 1:
        image.insert(0, 1)
    if len(image) != len(weight) or len(image) < 3:
        raise ValueError("no convolution")
    axes, window = len(image) - 2, weight[2:]
    transposed = places.transposed if isinstance(places.transposed, bool) else truth(scalars[places.transposed])
    stride = _per_axis(scalars[places.stride], axes)
    dilation = [1] * axes if places.dilation is None else _per_axis(scalars[places.dilation], axes)
    padding = _padding(scalars[places.padding], axes, window, dilation)
    groups = image[1] // weight[1] if not transposed else 1
    if transposed:
        groups = int(scalars[places.groups]) if places.groups is not None else 1
        extra = [0] * axes if places.output_padding is None else _per_axis(scalars[places.output_padding], axes)
        sizes = [
            (size - 1) * step - 2 * pad + gap * (kernel - 1) + more + 1
            for size, kernel, step, pad, gap, more in zip(
                image[2:], window, stride, padding, dilation, extra, strict=True
            )
        ]
        if image[1] != weight[0]:
            raise ValueError("no transposed convolution")
        flops = 2 * image[0] * prod(image[2:]) * prod(weight)
        return Convolution(image[0], image[1], weight[1] * groups, groups, window, sizes, flops)
    if image[1] != weight[1] * groups:
        raise ValueError("no convolution")
    sizes = [
        (size + 2 * pad - gap * (kernel - 1) - 1) // step + 1
        for size, kernel, step, pad, gap in zip(image[2:], window, stride, padding, dilation, strict=True)
    ]
    if min(sizes) < 1:
        raise ValueError("no output")
    return Convolution(image[0], image[1], weight[0], groups, window, sizes, 2 * image[0] * prod(sizes) * prod(weight))


def output_size(plain: str, shapes: Sequence[Any], scalars: Sequence[str]) -> int:
    """Elements of the output."""
    return convolution(plain, shapes, scalars).output


def convolution_flops(plain: str, shapes: Sequence[Any], scalars: Sequence[str]) -> int:
    """Of a forward convolution."""
    return convolution(plain, shapes, scalars).flops


def backward_flops(shapes: Sequence[Any], scalars: Sequence[str]) -> int:
    """(grad_out, input, weight, …, output_mask): as much for each gradient asked for as the forward pass.

    torch counts the weight's gradient of a grouped convolution `groups` times.
    """
    grad, image, weight = shapes[0], shapes[1], shapes[2]
    transposed = truth(scalars[7])
    each = 2 * grad[0] * prod((image if transposed else grad)[2:]) * prod(weight)
    return int(each * sum(gradients_asked(scalars)))


def gradients_asked(scalars: Sequence[str]) -> tuple[bool, bool]:
    """Whether a backward convolution computes the gradient of its input and of its weight."""
    mask = msgspec.json.decode(scalars[10].lower())
    return bool(mask[0]), bool(mask[1])


def truth(text: str) -> bool:
    """Of a truth value as the profiler writes it. Raises `ValueError` for any other text."""
    if text.lower() not in ("true", "false"):
        raise ValueError("no truth value")
    return text.lower() == "true"


def _padding(text: str, axes: int, window: Sequence[int], dilation: Sequence[int]) -> list[int]:
    """In elements at each side, also where it was given as a word."""
    if text == "valid":
        return [0] * axes
    if text == "same":
        return [gap * (kernel - 1) // 2 for kernel, gap in zip(window, dilation, strict=True)]
    return _per_axis(text, axes)


def _per_axis(text: str, axes: int) -> list[int]:
    """A list of one value stands for all axes."""
    values = msgspec.json.decode(text)
    numbers = [int(value) for value in (values if isinstance(values, list) else [values])]
    return numbers * axes if len(numbers) == 1 else numbers
