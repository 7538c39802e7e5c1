"""Bytes that an operator at least moves between the device and its memory, from the shapes, types and strides of its
inputs.

Each input is read once and each output written once: the traffic of an operator alone, from which a fused kernel is
spared what stays in registers. A convolution's two gradients are kernels of their own, so each reads its inputs. What
the inputs do not tell (how many experts are touched, how long a paged cache is) is not counted, and neither is an
operator without a formula: it is never taken for an elementwise one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod

from gpuscope.analyzers.device_time.attention_flops import attention_shapes
from gpuscope.analyzers.device_time.operator_inputs import (
    Inputs,
    decoded,
    gradients_asked,
    is_floating,
    nested,
    output_size,
    product_of,
    routed_experts,
)
from gpuscope.trace import name_pool as families
from gpuscope.trace.name_pool import plain_name

_Formula = Callable[[Inputs], int]


def operator_bytes(
    name: str, dims: str, types: str, element: int | None = None, concrete: str = "", strides: str = ""
) -> int | None:
    """Bytes of one call, or None for an operator or inputs that are not understood.

    All but the name are what the profiler recorded, as JSON; where types were not recorded, `element` is taken as the
    bytes of an element of every tensor.
    """
    low, high = operator_bytes_range(name, dims, types, element, concrete, strides) or (0, 0)
    return low if low == high and low else None


def operator_bytes_range(
    name: str, dims: str, types: str, element: int | None = None, concrete: str = "", strides: str = ""
) -> tuple[int, int] | None:
    """The least and the most that one call has to move: they differ where its inputs leave open how much of them it
    uses (experts)."""
    try:
        inputs = decoded(dims, types, concrete, strides, element)
        if (experts := routed_experts(name, inputs)) is not None:
            return experts.least_bytes, experts.most_bytes
        formula = _formula(name)
        if formula is None:
            return None
        count = int(formula(inputs))
        return (count, count) if count > 0 else None
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None


def _formula(name: str) -> _Formula | None:
    plain = plain_name(name)
    if not name.startswith("aten::"):
        return _of_library(name)
    if plain in _FORMULAS:
        return _FORMULAS[plain]
    if attention_shapes(plain) is not None:
        return lambda inputs: _attention(plain, inputs)
    if plain.endswith("_") and not plain.endswith("__") and (plain[:-1] in _MAPPED):
        return lambda inputs: _in_place(plain[:-1], inputs)
    if plain in _MAPPED:
        return lambda inputs: _mapped(plain, inputs)
    if _LISTS.match(plain):
        return lambda inputs: _over_lists(plain, inputs)
    return None


# -- elementwise

_MAPPED = families.UNARY | families.BINARY | families.TERNARY
_ARGUMENTS = {
    **dict.fromkeys(families.UNARY, 1),
    **dict.fromkeys(families.BINARY, 2),
    **dict.fromkeys(families.TERNARY, 3),
    "add": 3,
    "sub": 3,
    "rsub": 3,
    "addcmul": 4,
    "addcdiv": 4,
    "clamp": 3,
    "clamp_min": 2,
    "clamp_max": 2,
    "pow": 2,
    "threshold": 3,
    "gelu": 2,
    "elu": 4,
    "leaky_relu": 2,
    "hardtanh": 3,
    "softplus": 3,
    "threshold_backward": 3,
    "gelu_backward": 3,
    "elu_backward": 6,
    "leaky_relu_backward": 4,
    "hardtanh_backward": 4,
    "softplus_backward": 4,
    "native_dropout_backward": 3,
    "mse_loss_backward": 4,
    "smooth_l1_loss_backward": 5,
    "huber_loss_backward": 5,
    "binary_cross_entropy_with_logits": 5,
    "_softmax_backward_data": 4,
    "_log_softmax_backward_data": 4,
    "dropout": 3,
    "native_dropout": 3,
    "to": 5,
    "_to_copy": 7,
    "clone": 2,
    "logit": 2,
    "_softmax": 3,
    "_log_softmax": 3,
    "softmax": 3,
    "log_softmax": 3,
    "cumsum": 3,
    "cumprod": 3,
    "round": 2,
    "div": 2,
    "nan_to_num": 4,
}
"""How many arguments an operator has at most (torch/csrc, native_functions.yaml) before an output that it is given:
`mul(self, other, out)`."""
_TRUTHS = families.named(
    "eq ne lt gt le ge logical_and logical_or logical_xor logical_not isnan isinf isfinite isposinf isneginf"
)
_FLOATS = families.named(
    "div true_divide sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sin cos tan tanh sigmoid erf erfc reciprocal "
    "asin acos atan sinh cosh logit"
)
"""Whose result of integers is floating-point."""
_LIKE_FIRST = families.named("masked_fill masked_fill_backward clamp clamp_min clamp_max threshold threshold_backward")
_COMPUTED_TOGETHER = families.named(
    "mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy dist binary_cross_entropy_with_logits"
)
"""Whose result is a number, unless asked otherwise."""


def _operands(plain: str, inputs: Inputs) -> list[int]:
    """The places that are read: without an output at the end."""
    most = _ARGUMENTS.get(plain, len(inputs))
    return list(range(min(len(inputs), most)))


def _mapped(plain: str, inputs: Inputs) -> int:
    """Every operand once, and the output of their broadcast shape and promoted type."""
    operands = _operands(plain, inputs)
    read = sum(map(inputs.read, operands))
    if plain in _COMPUTED_TOGETHER:
        return read
    shape = inputs.broadcast(operands)
    if plain == "to" or plain == "_to_copy":
        return 0 if len(operands) == 1 else 2 * read  # the type it converts to is a number in its arguments
    if plain in _TRUTHS:
        size = 1
    elif plain in _LIKE_FIRST:
        size = inputs.sizes[0]
    elif plain == "where":
        size = inputs.promoted(operands[1:]) or max(inputs.sizes)
    else:
        size = inputs.promoted(operands)
        if plain in _FLOATS and not any(is_floating(inputs.types[place]) for place in operands if inputs.types[place]):
            size = 4 if any(inputs.types) else size
    extra = prod(shape) if plain in ("native_dropout", "_fused_dropout") else 0  # the mask
    if not shape:  # numbers alone
        read = sum(inputs.sizes[place] for place in operands)
    return read + int(prod(shape)) * size + extra


def _in_place(plain: str, inputs: Inputs) -> int:
    return sum(map(inputs.read, _operands(plain, inputs))) + inputs.whole(0)


def _copied(inputs: Inputs) -> int:
    return inputs.whole(0) + inputs.read(1)


def _written(inputs: Inputs) -> int:
    return inputs.whole(0)


def _reduced(inputs: Inputs) -> int:
    """The input, and a result over the axes that stay; `max(self, other)` is elementwise."""
    if len(inputs) in (2, 3) and inputs.is_tensor(1) and inputs.shapes[0] == inputs.shapes[1]:
        return inputs.read(0) + inputs.read(1) + inputs.whole(0)
    return inputs.read(0) + _reduced_to(inputs) * inputs.sizes[0]


def _reduced_to(inputs: Inputs) -> int:
    """Elements of the result of a reduction over the axes that its list or number names; 1 where none is named."""
    shape = inputs.shapes[0]
    axes: list[int] = []
    for place in range(1, len(inputs)):
        if inputs.types[place : place + 1] == ["ScalarList"] or inputs.scalar(place).startswith("["):
            axes = inputs.numbers(place)
            break
    if not axes:
        return 1
    gone = {axis % len(shape) for axis in axes}
    return int(prod(size for axis, size in enumerate(shape) if axis not in gone))


# -- normalisation


def _normalised(inputs: Inputs) -> int:
    """Input, weights and statistics read, an output like the input written."""
    return sum(map(inputs.read, inputs.tensors())) + inputs.whole(0)


def _normalised_backward(inputs: Inputs) -> int:
    """Gradient, input, statistics and weight read; the input's gradient, and one as large as the weight, written."""
    first, second = inputs.shapes[0], inputs.shapes[1]
    if first != second:
        raise ValueError("no gradient of a normalisation")
    small = [inputs.whole(place) for place in inputs.tensors() if inputs.numel(place) * 2 <= inputs.numel(0)]
    return sum(map(inputs.read, inputs.tensors())) + inputs.whole(0) + max(small, default=0)


# -- lookups and movements


def _embedding(inputs: Inputs) -> int:
    """Rows of the table that can differ at most, the indices, the result."""
    rows, width = inputs.shapes[0][0], prod(inputs.shapes[0][1:])
    looked_up = inputs.numel(1)
    return (min(rows, looked_up) + looked_up) * width * inputs.sizes[0] + inputs.read(1)


def _embedding_backward(inputs: Inputs) -> int:
    rows = int(inputs.scalar(2))
    return inputs.read(0) + inputs.read(1) + rows * inputs.shapes[0][-1] * inputs.sizes[0]


def _index_select(inputs: Inputs) -> int:
    axis = int(inputs.scalar(1) or "0")
    chosen, shape = inputs.numel(2), inputs.shapes[0]
    rest = prod(shape) // shape[axis]
    return (min(shape[axis], chosen) + chosen) * rest * inputs.sizes[0] + inputs.read(2)


def _gather(inputs: Inputs) -> int:
    if not inputs.is_tensor(2):
        raise ValueError("no index")
    return 2 * inputs.numel(2) * inputs.sizes[0] + inputs.read(2)


def _scatter(inputs: Inputs) -> int:
    """In place: what the index names is read (where it is added to) and written."""
    source = inputs.read(3) if inputs.is_tensor(3) else 0
    return inputs.read(2) + source + inputs.numel(2) * inputs.sizes[0]


def _index(inputs: Inputs) -> int:
    """`index(self, [indices])`: the indices are broadcast, whole rows follow; a mask leaves open how many."""
    indices = [shape for shape in inputs.list_of(1) if shape]
    if not indices or "bool" in inputs.types[1].lower():
        raise ValueError("no index")
    chosen = max(int(prod(shape)) for shape in indices)
    row = prod(inputs.shapes[0][len(inputs.shapes[1]) :])
    return 2 * chosen * row * inputs.sizes[0] + sum(int(prod(shape)) for shape in indices) * 8


def _sorted(inputs: Inputs) -> int:
    """Values in and out, and their places as 64-bit integers."""
    return 2 * inputs.read(0) + inputs.numel(0) * 8


def _top(inputs: Inputs) -> int:
    shape, kept = inputs.shapes[0], int(inputs.scalar(1))
    return inputs.read(0) + prod(shape[:-1]) * kept * (inputs.sizes[0] + 8)


def _concatenated(inputs: Inputs) -> int:
    """A list of tensors, read and written."""
    if not nested(inputs.shapes[0]):
        raise ValueError("no list of tensors")
    size = inputs.sizes[0] or max((inputs.sizes[place] for place in inputs.tensors() if place), default=0)
    return 2 * sum(prod(shape) for shape in inputs.list_of(0) if shape != [0]) * size


_LISTS = re.compile(r"_(fused_(adamw?|sgd|adagrad)|foreach_\w+|amp_foreach_\w+)_?$")
_PASSES = {"adam": 7, "adamw": 7, "sgd": 5, "adagrad": 5}
"""Tensors of the parameters' size that a fused optimizer reads and writes: parameter, gradient, states; all but the
gradient are written (torch/csrc, aten/src/ATen/native/cuda/fused_*_impl.cu)."""


def _over_lists(plain: str, inputs: Inputs) -> int:
    lists = [place for place in range(len(inputs)) if nested(inputs.shapes[place])]
    if not lists or lists[0] != 0:
        raise ValueError("no lists of tensors")
    size = inputs.sizes[0] or max(inputs.sizes)
    counts = [sum(prod(shape) for shape in inputs.list_of(place) if shape) for place in lists]
    if match := re.match(r"_fused_(\w+?)_?$", plain):
        whole = [count for count in counts if count == counts[0]]
        passes = 2 * len(whole) - 1 if match[1] == "sgd" else _PASSES[match[1]]
        return passes * counts[0] * size
    if "norm" in plain:
        return counts[0] * size
    return (sum(count for count in counts if count == counts[0]) + counts[0]) * size


# -- windows: pooling, padding, resizing


def _padded(inputs: Inputs) -> int:
    shape, pads = list(inputs.shapes[0]), inputs.numbers(1)
    for place in range(0, len(pads), 2):
        shape[-1 - place // 2] += pads[place] + pads[place + 1]
    if min(shape) < 0:
        raise ValueError("negative size")
    return inputs.read(0) + prod(shape) * inputs.sizes[0]


def _resized(inputs: Inputs) -> int:
    image, size = inputs.shapes[0], inputs.numbers(1)
    if len(size) != len(image) - 2:
        raise ValueError("no size per axis")
    return inputs.read(0) + prod(image[:2]) * prod(size) * inputs.sizes[0]


def _adaptively_pooled(inputs: Inputs) -> int:
    size = inputs.numbers(1)
    image = inputs.shapes[0]
    return inputs.read(0) + prod(image[: len(image) - len(size)]) * prod(size) * inputs.sizes[0]


def _pooled(with_indices: bool) -> _Formula:
    def formula(inputs: Inputs) -> int:
        image = inputs.shapes[0]
        window = inputs.numbers(1)
        axes = len(image) - 2 if len(image) > 3 else len(window)
        window = window * axes if len(window) == 1 else window
        stride = inputs.numbers(2) if inputs.scalar(2) not in ("", "[]") else window
        padding = inputs.numbers(3) if inputs.scalar(3) else [0]
        stride, padding = (values * len(window) if len(values) == 1 else values for values in (stride, padding))
        sizes = image[-len(window) :]
        out = [
            (size + 2 * pad - each) // step + 1
            for size, each, step, pad in zip(sizes, window, stride, padding, strict=True)
        ]
        written = prod(image[: -len(window)]) * prod(out) * (inputs.sizes[0] + (8 if with_indices else 0))
        return inputs.read(0) + written

    return formula


def _pooled_backward(inputs: Inputs) -> int:
    """The gradient, indices where there are any, and a gradient like the input; a maximum's gradient needs no input."""
    indices = inputs.tensors()[2:]
    return inputs.read(0) + sum(map(inputs.read, indices)) + inputs.whole(1)


# -- products, convolutions, attention


def _product(first: int, second: int) -> _Formula:
    def formula(inputs: Inputs) -> int:
        a, b = inputs.shapes[first], inputs.shapes[second]
        if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
            raise ValueError("no matrix product")
        leading = inputs.broadcast_of(a[:-2], b[:-2])
        added = inputs.read(0) if first else 0
        size = _result_size(inputs, first)
        return inputs.read(first) + inputs.read(second) + added + leading * a[-2] * b[-1] * size

    return formula


def _result_size(inputs: Inputs, first: int) -> int:
    """Of eight-bit inputs the result has 16 bits (`_scaled_mm`), of integers 32 (`_int_mm`)."""
    if inputs.sizes[first] != 1:
        return inputs.sizes[first]
    return 2 if is_floating(inputs.types[first]) or not inputs.types[first] else 4


def _vector_product(first: int) -> _Formula:
    def formula(inputs: Inputs) -> int:
        return inputs.read(first) + inputs.read(first + 1) + inputs.shapes[first][0] * inputs.sizes[first]

    return formula


def _linear(inputs: Inputs) -> int:
    if inputs.shapes[0][-1] != inputs.shapes[1][-1]:
        raise ValueError("no linear layer")
    out = prod(inputs.shapes[0][:-1]) * prod(inputs.shapes[1][:-1])
    bias = inputs.read(2) if inputs.is_tensor(2) else 0
    return inputs.read(0) + inputs.read(1) + bias + out * _result_size(inputs, 0)


def _grouped(inputs: Inputs) -> int:
    """As in `flops._grouped`: of three-dimensional weights all are read."""
    a, b = inputs.shapes[0], inputs.shapes[1]
    if a[-1] != b[-2]:
        raise ValueError("no grouped product")
    groups = b[0] if len(b) == 3 and len(a) == 3 else 1
    if len(a) == len(b) == 2:
        groups = next((inputs.numel(place) for place in range(2, len(inputs)) if inputs.is_tensor(place)), 1)
    return inputs.read(0) + inputs.read(1) + groups * a[-2] * b[-1] * _result_size(inputs, 0)


def _convolved(plain: str) -> _Formula:
    def formula(inputs: Inputs) -> int:
        out = output_size(plain, inputs.shapes, inputs.scalars)
        bias = sum(inputs.read(place) for place in inputs.tensors()[2:3])
        return inputs.read(0) + inputs.read(1) + bias + out * inputs.sizes[0]

    return formula


def _convolved_backward(inputs: Inputs) -> int:
    """The gradient of the input reads gradient and weight, that of the weight gradient and input."""
    grad, image, weight = (inputs.read(place) for place in range(3))
    of_image, of_weight = gradients_asked(inputs.scalars)
    return of_image * (grad + weight + inputs.whole(1)) + of_weight * (grad + image + inputs.whole(2))


def _attention(plain: str, inputs: Inputs) -> int:
    """Query, key, value and a mask read, the output written; backward also the output and its gradient read, and three
    gradients written."""
    first, backward, mask = attention_shapes(plain) or (0, False, None)
    query, key, value = range(first, first + 3)
    if not all(inputs.is_tensor(place) for place in (query, key, value)):
        raise ValueError("no attention")
    out = inputs.numel(query) // inputs.shapes[query][-1] * inputs.shapes[value][-1] * inputs.sizes[query]
    read = sum(map(inputs.read, (query, key, value)))
    if mask is not None and inputs.is_tensor(mask):
        read += inputs.read(mask)
    if not backward:
        return read + out
    return read + 2 * out + sum(map(inputs.whole, (query, key, value)))


# -- operators of libraries


def _of_library(name: str) -> _Formula | None:
    if families.INDUCTOR.match(name):
        return lambda inputs: _inductor(name, inputs)
    if attention_shapes(name) is not None:
        return lambda inputs: _attention(name, inputs)
    if not families.LIBRARIES.match(name):
        return None
    own = name.rpartition("::")[2].partition(".")[0].lower()
    return next((formula for pattern, formula in _LIBRARY if pattern.search(own)), None)


_MOVED_PART = re.compile(r"slice|select|index|gather|embedding|unbind|split|narrow")
_EXTENTS = 3
"""A kernel of Inductor ends its inputs with its extents: `xnumel`, or `ynumel, xnumel`, or `xnumel, rnumel`, or all."""


def _inductor(name: str, inputs: Inputs) -> int:
    """Its pointers, inputs and outputs alike, once each; of a tensor that it takes a part of, no more elements than the
    kernel works on. A pointwise kernel that writes over an input (`in_out_ptr0`, the first) moves that one twice."""
    extents: list[int] = []
    for place in reversed(range(len(inputs))):
        if inputs.shapes[place] or not inputs.scalar(place).isdigit() or len(extents) == _EXTENTS:
            break
        extents.append(int(inputs.scalar(place)))
    work = prod(extents) if extents else None
    most = work if _MOVED_PART.search(name) else None
    tensors, moved = inputs.tensors(), 0
    for place in tensors:
        stored = inputs.stored(place)
        moved += (stored if most is None else min(stored, most)) * inputs.sizes[place]
    if name.startswith("triton_poi") and work is not None and _in_and_out(inputs, tensors, work):
        moved += inputs.read(tensors[0])
    return moved


def _in_and_out(inputs: Inputs, tensors: Sequence[int], work: int) -> bool:
    """Whether the first tensor is input and output: Inductor names such pointers first and pure outputs last, so this
    holds where the last one is too small to be the output, is the first itself, or is a product's result (a matrix
    that the others are views of)."""
    if not tensors or inputs.numel(tensors[0]) != work:
        return False
    first, last = inputs.shapes[tensors[0]], inputs.shapes[tensors[-1]]
    product = len(last) == 2 < len(first) and last[-1] == first[-1]
    return len(tensors) == 1 or inputs.numel(tensors[-1]) < work or product


def _library_product(inputs: Inputs) -> int:
    found = product_of(inputs)
    read = inputs.read(found.first) + inputs.read(found.second)
    others = (place for place in inputs.tensors() if place not in (found.first, found.second, found.out))
    extra = sum(inputs.read(place) for place in others if inputs.numel(place) <= found.columns)  # a bias, scales
    size = inputs.sizes[found.out] if found.out is not None else _result_size(inputs, found.first)
    return read + extra + found.rows * found.columns * size


def _library_norm(inputs: Inputs, passes: int) -> int:
    """At least so many tensors of the largest size are read or written, whether its outputs are among its inputs or
    not; and what else it is given."""
    largest = max(inputs.numel(place) for place in inputs.tensors())
    full = [place for place in inputs.tensors() if inputs.numel(place) == largest]
    small = sum(inputs.read(place) for place in inputs.tensors() if place not in full)
    size = inputs.sizes[full[0]]
    return sum(inputs.whole(place) for place in full) + max(passes - len(full), 0) * largest * size + small


def _gated(inputs: Inputs) -> int:
    """`silu_and_mul(out, input)`, of which the last dimension is halved, or the input alone."""
    tensors = inputs.tensors()
    if len(tensors) == 1:
        return inputs.read(tensors[0]) + inputs.whole(tensors[0]) // 2
    return sum(inputs.whole(place) for place in tensors[:2])


def _rotated(inputs: Inputs) -> int:
    """Query and key in place; positions; of the table of cosines and sines a row for each position."""
    places = [place for place in inputs.tensors() if len(inputs.shapes[place]) >= 2]
    positions = next(place for place in inputs.tensors() if not is_floating(inputs.types[place]))
    tokens = inputs.numel(positions)
    rotated = [place for place in places if prod(inputs.shapes[place][:-1]) % tokens == 0 and place != positions][:2]
    table = [place for place in places if place not in (*rotated, positions)]
    looked_up = sum(
        min(inputs.numel(place), tokens * inputs.shapes[place][-1]) * inputs.sizes[place] for place in table[:1]
    )
    return 2 * sum(inputs.whole(place) for place in rotated) + looked_up + inputs.read(positions)


def _cached(inputs: Inputs) -> int:
    """Keys and values are read and written into the cache, at places that are read."""
    keys, values = inputs.tensors()[:2]
    if inputs.numel(keys) != inputs.numel(values):
        raise ValueError("no keys and values")
    places = sum(
        inputs.read(place)
        for place in inputs.tensors()
        if len(inputs.shapes[place]) == 1 and not is_floating(inputs.types[place])
    )
    return 2 * (inputs.whole(keys) + inputs.whole(values)) + places


def _untold(inputs: Inputs) -> int:  # noqa: ARG001 - one of `_LIBRARY`
    return 0


def _all_once(inputs: Inputs) -> int:
    return sum(inputs.read(place) for place in inputs.tensors())


_LIBRARY: Sequence[tuple[re.Pattern[str], _Formula]] = (
    (re.compile(r"fmha|mha|attention|attn|batch_prefill|moe|experts"), _untold),
    (re.compile(r"(reshape_and_cache|store_cache|store_kv|set_kv)"), _cached),
    (re.compile(r"gemm|scaled_mm|matmul"), _library_product),
    (re.compile(r"norm.*add|add.*norm"), lambda inputs: _library_norm(inputs, 4)),
    (re.compile(r"norm"), lambda inputs: _library_norm(inputs, 2)),
    (re.compile(r"_and_mul|swiglu"), _gated),
    (re.compile(r"rotary|rope"), _rotated),
    (re.compile(r"quant"), _all_once),
    (re.compile(r"silu|gelu"), lambda inputs: _library_norm(inputs, 2)),
)
"""By the operator's own name; the first that fits."""

_FORMULAS: dict[str, _Formula] = {
    "copy_": _copied,
    **dict.fromkeys(("fill_", "zero_", *(f"{name}_" for name in families.WRITES), *families.WRITES), _written),
    **dict.fromkeys(families.REDUCTIONS, _reduced),
    **dict.fromkeys(families.NORMS, _normalised),
    **dict.fromkeys(families.NORMS_BACKWARD, _normalised_backward),
    **dict.fromkeys(("mm", "bmm", "matmul", "_int_mm", "_scaled_mm", "_scaled_mm_v2"), _product(0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "_addmm_activation"), _product(1, 2)),
    **dict.fromkeys(("_grouped_mm", "_scaled_grouped_mm", "_scaled_grouped_mm_v2"), _grouped),
    "mv": _vector_product(0),
    "addmv": _vector_product(1),
    "linear": _linear,
    **{name: _convolved(name) for name in families.CONVOLUTIONS},
    **dict.fromkeys(("convolution_backward", "convolution_backward_overrideable"), _convolved_backward),
    "embedding": _embedding,
    "embedding_dense_backward": _embedding_backward,
    "index_select": _index_select,
    **dict.fromkeys(("gather", "take"), _gather),
    **dict.fromkeys(("scatter_", "scatter_add_", "scatter", "scatter_add"), _scatter),
    "index": _index,
    "sort": _sorted,
    "topk": _top,
    **dict.fromkeys(("cat", "stack"), _concatenated),
    **dict.fromkeys([name for name in families.WINDOWS if "_pad" in name], _padded),
    **dict.fromkeys([name for name in families.WINDOWS if "upsample" in name], _resized),
    **dict.fromkeys([name for name in families.WINDOWS if "adaptive" in name], _adaptively_pooled),
    **{name: _pooled("indices" in name) for name in families.WINDOWS if re.match(r"(max|avg)_pool", name)},
    **dict.fromkeys([name for name in families.WINDOWS if name.endswith("_backward")], _pooled_backward),
}
