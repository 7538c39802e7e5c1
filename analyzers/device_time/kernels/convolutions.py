"""Floating-point operations and output sizes of convolutions, in all their spellings.

The input is (N, C, …), without a batch (C, …); the weight (out, C / groups, …), of a transposed convolution
(C, out / groups, …). Each input point of a transposed convolution meets the whole filter, each output point of any
other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec


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
