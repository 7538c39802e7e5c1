"""Why an operation runs below its roof: what of its shapes, types and layout keeps it there.

Each reason that its inputs show has an estimate of the share of the roof that it leaves, from how the kernels of
cuBLAS, cuDNN, FlashAttention and their kin cut work into tiles; the one that leaves least is named. Where none explains
it, none is named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from gpuscope.analyzers.device_time.attention_flops import attention_shapes
from gpuscope.analyzers.device_time.kernel_facts import odd_sizes
from gpuscope.analyzers.device_time.operator_inputs import FORWARD, Inputs, convolution, decoded, product_of
from gpuscope.hardware.device_peaks import multiprocessors, peaks_of
from gpuscope.trace.name_pool import BINARY, plain_name

ENOUGH = 0.75
"""Share of the roof from which a reason explains nothing."""
_TILE = re.compile(
    r"(?<![0-9x])(32|64|96|128|160|192|224|256|320|512)x(16|32|64|96|128|160|192|224|256|320|512)(?=[x_\W]|$)"
)
"""The tile of a product by its kernel's name (`…_tilesize128x128x64`, `MT256x128x32`)."""
NVIDIA_TILE, AMD_TILE = (128, 128), (256, 128)
"""Tiles that their libraries take for large products where the name does not tell."""
ATTENTION_TILE = 128
"""Rows of the query that a block of FlashAttention works on."""
WIDE_HEAD = 128
"""Head size from which attention reaches its rate; below it the softmax between the products weighs more."""
LONG_SEQUENCE = 512
"""Keys for which starting and ending a block of attention takes as long as its products."""
ODD = 0.4
"""What products of sizes that are no multiples of 16 bytes reach, about, of aligned ones (NVIDIA, «Matrix
Multiplication Background User's Guide»: a third to a half)."""
WRONG_LAYOUT = 0.4
"""What convolutions in half precision reach on NCCHW inputs, about, of channels-last ones."""
DEPTHWISE = 0.2
"""What depthwise convolutions reach: each channel by itself leaves tensor cores nothing to multiply."""
STRIDED = 0.35
"""What elementwise kernels reach whose neighbours in memory belong to different rows."""
CHAINED = 0.5
"""What single kernels of a chain reach: each starts, fills and drains the device for itself."""
_LAYOUT_FAILS = re.compile(r"nchw(?!.*nhwc)|nhwcTonchw|nchwTonhwc|nchw_to_nhwc", re.IGNORECASE)
_PRODUCTS = {
    "mm": (0, 1),
    "bmm": (0, 1),
    "matmul": (0, 1),
    "_scaled_mm": (0, 1),
    "_int_mm": (0, 1),
    "addmm": (1, 2),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
    "_addmm_activation": (1, 2),
}


@dataclass(frozen=True)
class Operation:
    """An operation whose work is known, as it was recorded."""

    name: str
    dims: str
    types: str = ""
    concrete: str = ""
    strides: str = ""
    kernel: str = ""
    """The kernel with most of its time."""
    category: str = ""
    precision: str = ""
    by_memory: bool = False
    device: str = ""
    """The model of its device."""
    chained: bool = False
    """Whether most of its time lies in chains of memory-bound kernels."""


@dataclass(frozen=True)
class Reason:
    """Why, as a code and the figures that show it; `reaches` is the share of the roof that it leaves, about."""

    code: str
    reaches: float
    figures: dict[str, int] = field(default_factory=dict)


def reason_of(operation: Operation, rate: float) -> Reason | None:
    """The reason that explains most; None where nothing recorded explains it. `rate` is its share of the roof."""
    try:
        inputs = decoded(operation.dims, operation.types, operation.concrete, operation.strides, 2)
        found = list(_reasons(operation, inputs, rate))
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    return min((reason for reason in found if reason.reaches < ENOUGH), key=lambda reason: reason.reaches, default=None)


def _reasons(operation: Operation, inputs: Inputs, rate: float) -> Iterator[Reason]:
    if (reason := _wrong_precision(operation, rate)) is not None:
        yield reason
    plain = plain_name(operation.name)
    if attention_shapes(plain) is not None:
        yield from _of_attention(plain, inputs, operation)
    elif plain in FORWARD:
        yield from _of_convolution(plain, inputs, operation)
    elif plain.startswith("convolution_backward"):
        yield from _of_gradients(inputs, operation)
    elif operation.category == "gemm":
        yield from _of_product(plain, inputs, operation)
    else:
        yield from _of_movement(plain, inputs, operation)


def _wrong_precision(operation: Operation, rate: float) -> Reason | None:
    """FP32 that may run as TF32 is measured at TF32's peak: where it is no faster than FP32 units are, it did not."""
    peaks = peaks_of(operation.device)
    if operation.by_memory or operation.precision not in ("fp32 or tf32", "fp64"):
        return None
    if operation.precision == "fp64":
        return Reason("wrong_precision", 0.05)
    if "tf32" not in peaks or peaks["fp32"] >= peaks["tf32"] or rate > 1.05 * peaks["fp32"] / peaks["tf32"]:
        return None
    return Reason("wrong_precision", peaks["fp32"] / peaks["tf32"])


# -- products


def _of_product(plain: str, inputs: Inputs, operation: Operation) -> Iterator[Reason]:
    if plain in _PRODUCTS:
        first, second = _PRODUCTS[plain]
        a, b = inputs.shapes[first], inputs.shapes[second]
        batch, rows, columns, summed = inputs.broadcast_of(a[:-2], b[:-2]), a[-2], b[-1], a[-1]
    elif plain == "linear":
        a, b = inputs.shapes[0], inputs.shapes[1]
        batch, rows, columns, summed = 1, prod(a[:-1]), b[0], a[-1]
    else:
        found = product_of(inputs)
        batch, rows, columns, summed = 1, found.rows, found.columns, found.summed
    odd = odd_sizes(operation.name, operation.dims, operation.precision)
    if plain == "linear":
        odd = odd_sizes("mm", f"[[{rows},{summed}],[{summed},{columns}]]", operation.precision)
    if odd:
        yield Reason("odd_sizes", ODD, {"size": odd[0]})
    yield from _tiled(batch, rows, columns, operation)


def _tiled(batch: int, rows: int, columns: int, operation: Operation) -> Iterator[Reason]:
    """By the tiles that its output is cut into: how full they are, and how evenly they fill the device."""
    high, wide = _tile(operation)
    filled = rows * columns / (ceil(rows / high) * high * ceil(columns / wide) * wide)
    thin = min(rows, columns)
    if thin < min(high, wide) and filled < ENOUGH:
        yield Reason("tall_and_skinny", filled, {"size": thin})
    units = multiprocessors(operation.device)
    tiles = batch * ceil(rows / high) * ceil(columns / wide)
    if units is not None:
        waves = ceil(tiles / units)
        yield Reason(
            "few_tiles",
            tiles / (waves * units),
            {
                "tiles": tiles,
                "high": high,
                "wide": wide,
                "units": units,
            },
        )


def _tile(operation: Operation) -> tuple[int, int]:
    if found := _TILE.search(operation.kernel):
        return int(found[1]), int(found[2])
    amd = operation.device.upper().find("MI") >= 0 and "NVIDIA" not in operation.device.upper()
    return AMD_TILE if amd else NVIDIA_TILE


# -- attention


def _of_attention(plain: str, inputs: Inputs, operation: Operation) -> Iterator[Reason]:
    first, _, _ = attention_shapes(plain) or (0, False, None)
    query, key = inputs.shapes[first], inputs.shapes[first + 1]
    heads_first = "scaled_dot_product" in plain or plain.startswith("_cudnn_attention")
    sequence, heads = (-2, -3) if heads_first else (-3, -2)
    packed = len(query) == 3 and not heads_first
    long, keys = (query[0], key[0]) if packed else (query[sequence], key[sequence])
    width = query[-1]
    if width < WIDE_HEAD:
        yield Reason("narrow_head", width / WIDE_HEAD, {"size": width})
    if not packed:
        filled = long / (ceil(long / ATTENTION_TILE) * ATTENTION_TILE)
        yield Reason("short_sequence", filled * keys / (keys + LONG_SEQUENCE), {"size": min(long, keys)})
        units = multiprocessors(operation.device)
        tiles = prod(query[:-3]) * query[heads] * ceil(long / ATTENTION_TILE)
        if units is not None:
            yield Reason(
                "few_tiles",
                tiles / (ceil(tiles / units) * units),
                {
                    "tiles": tiles,
                    "high": ATTENTION_TILE,
                    "wide": width,
                    "units": units,
                },
            )


# -- convolutions


def _of_convolution(plain: str, inputs: Inputs, operation: Operation) -> Iterator[Reason]:
    found = convolution(plain, inputs.shapes, inputs.scalars)
    yield from _by_channels(found.channels, found.filters, found.groups, inputs.shapes[0], _steps(inputs, 0), operation)
    if found.groups == 1:
        yield from _tiled(1, found.batch * prod(found.sizes), found.filters, operation)


def _of_gradients(inputs: Inputs, operation: Operation) -> Iterator[Reason]:
    image, weight = inputs.shapes[1], inputs.shapes[2]
    groups = image[1] // weight[1]
    yield from _by_channels(image[1], weight[0], groups, image, _steps(inputs, 1), operation)


def _by_channels(
    channels: int, filters: int, groups: int, image: Sequence[int], strides: Sequence[int], operation: Operation
) -> Iterator[Reason]:
    if groups > 1 and groups == channels:
        yield Reason("depthwise", DEPTHWISE, {"size": channels})
        return
    if (
        operation.precision in ("bf16", "fp16")
        and len(image) >= 4
        and (_channels_outside(image, strides) if strides else _LAYOUT_FAILS.search(operation.kernel) is not None)
    ):
        yield Reason("channels_last", WRONG_LAYOUT)
    unit = 4 if operation.precision.startswith(("fp32", "tf32")) else 8
    per_group = channels // groups, filters // groups
    padded = [size / (ceil(size / unit) * unit) for size in per_group]
    if min(padded) < ENOUGH:
        yield Reason("odd_sizes", min(padded), {"size": per_group[padded.index(min(padded))]})


def _channels_outside(image: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether channels lie outside an image's rows in memory (NCHW), and there are several."""
    return len(strides) == len(image) and image[1] > 1 and prod(image[2:]) > 1 and strides[1] != 1


def _steps(inputs: Inputs, place: int) -> Sequence[int]:
    return inputs.strides[place] if place < len(inputs.strides) else []


# -- what moves data


def _of_movement(plain: str, inputs: Inputs, operation: Operation) -> Iterator[Reason]:
    if _strided(plain, inputs):
        yield Reason("strided_input", STRIDED)
    if operation.chained:
        yield Reason("unfused_chain", CHAINED)
    units = multiprocessors(operation.device)
    if operation.category in ("normalisation", "softmax") and units is not None and inputs.shapes[0]:
        rows = prod(inputs.shapes[0][:-1])
        if "layer_norm" in plain or "rms" in plain or "softmax" in plain:
            yield Reason(
                "few_tiles",
                rows / (ceil(rows / units) * units) if rows < units else 1.0,
                {
                    "tiles": rows,
                    "high": 1,
                    "wide": inputs.shapes[0][-1],
                    "units": units,
                },
            )


def _strided(plain: str, inputs: Inputs) -> bool:
    """Whether neighbours of one operand lie apart in memory while those of another, or of the output, do not."""
    places = [place for place in inputs.tensors() if _steps(inputs, place) and len(inputs.shapes[place]) >= 2]
    if not places:
        return False
    largest = max(inputs.numel(place) for place in places)
    orders = {_order(inputs.shapes[place], _steps(inputs, place)) for place in places if inputs.numel(place) == largest}
    gaps = any(
        inputs.numel(place) == largest and _smallest_step(inputs.shapes[place], _steps(inputs, place)) > 1
        for place in places
    )
    rowwise = plain not in BINARY and plain.endswith(("norm", "softmax", "norm_backward"))
    crosswise = rowwise and any(order and order[-1] != len(inputs.shapes[places[0]]) - 1 for order in orders)
    return gaps or len(orders) > 1 or crosswise


def _order(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The axes from the outermost in memory to the innermost; axes of one element or without a step say nothing."""
    axes = [axis for axis, size in enumerate(shape) if size > 1 and strides[axis]]
    return tuple(sorted(axes, key=lambda axis: (-strides[axis], axis)))


def _smallest_step(shape: Sequence[int], strides: Sequence[int]) -> int:
    return min((step for size, step in zip(shape, strides, strict=True) if size > 1 and step), default=1)
