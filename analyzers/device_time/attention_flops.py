"""Floating-point operations of attention, each operator's inputs read in its own layout.

| operator | query, key, value |
|---|---|
| `aten::scaled_dot_product_attention`, `aten::_scaled_dot_product_*`, `aten::_cudnn_attention_*` | (B, H, S, D) |
| `aten::_flash_attention_*` | (B, S, H, D); with `cum_seq_q` (total, H, D) |
| `aten::_efficient_attention_*`, xFormers | (B, S, H, D); with `cu_seqlens_q` (1, total, H, D) |
| `flash_attn::_flash_attn_*`, `FlashAttnFunc`, aiter, FlashAttention 3 | (B, S, H, D); varlen (total, H, D) |

Keys and values may have fewer heads than the query (GQA): each query head does its own products, so only the query's
heads count. A backward pass has five products, the recomputed scores among them. Causal attention computes the pairs
below the diagonal: half of them, and with a window those inside it. How many keys a paged cache holds its shape does
not say, so attention over one is not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, Literal

import msgspec
import numpy as np

from gpuscope import when_used
from gpuscope.analyzers.device_time.operator_inputs import (
    BACKWARD,
    FORWARD,
    backward_flops,
    convolution_flops,
    decoded,
    library_flops,
)
from gpuscope.trace.launch_links import innermost
from gpuscope.trace.name_pool import is_library, plain_name
from gpuscope.trace.table import Mask, Times
from gpuscope.trace.trace import Trace

Layout = Literal["heads first", "heads inside"]
_Formula = Callable[[Sequence[Any], Sequence[str]], int]


def _flops(products: int, heads: int, pairs: float, query_width: int, value_width: int) -> int:
    """`products` is 2 (forward) or 5 (backward): three of the five have the query's width, two the value's.

    `pairs` are those of a query position and a key position, over all sequences of the batch.
    """
    wide = 3 * query_width + 2 * value_width if products == 5 else query_width + value_width
    return int(2 * heads * pairs * wide)


def _dense(
    query: Sequence[int],
    key: Sequence[int],
    value: Sequence[int],
    layout: Layout,
    products: int,
    causal: bool,
    left: int = -1,
) -> int:
    """All sequences of the batch as long as the shapes say."""
    sequence, head = (-2, -3) if layout == "heads first" else (-3, -2)
    if not len(query) == len(key) == len(value) or len(query) < 3:
        raise ValueError("no attention")
    heads, own = query[head], key[head]
    same = key[:-3] == value[:-3] == query[:-3] and key[sequence] == value[sequence] and query[-1] == key[-1]
    if not same or own != value[head] or heads % own:
        raise ValueError("query, key and value do not fit")
    # Where there are more keys than queries, where the diagonal begins is the library's choice.
    long, own_keys = query[sequence], key[sequence]
    if left >= 0:
        if not causal or long != own_keys:
            raise ValueError("a window whose pairs are not known")
        width = min(left + 1, long)
        pairs = width * (width + 1) / 2 + (long - width) * width
    else:
        pairs = long * own_keys * (0.5 if causal and long == own_keys else 1.0)
    return _flops(products, heads, prod(query[:-3]) * pairs, query[-1], value[-1])


def _packed(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], offsets: Sequence[int], products: int, causal: bool
) -> int:
    """(…, total, H, D) with the sequences' offsets (n + 1,): their lengths are not recorded and taken as equal.

    For self-attention that is the least it can be (Σ sᵢ² ≥ total² / n), so that a rate is never overstated.
    """
    if len(offsets) != 1 or offsets[0] < 2 or query[-1] != key[-1] or query[-2] % key[-2]:
        raise ValueError("no packed attention")
    pairs = query[-3] * key[-3] / (offsets[0] - 1) * (0.5 if causal and query[-3] == key[-3] else 1.0)
    return _flops(products, query[-2], pairs, query[-1], value[-1])


@dataclass(frozen=True)
class _Operator:
    """Where an attention has its inputs: query, key and value from `first` on."""

    layout: Layout
    causal: int
    """The place of the argument that says so."""
    first: int = 0
    products: int = 2
    offsets: int | None = None
    """Of the sequences' offsets, where they are packed."""
    mask: int | None = None
    window: int | None = None
    """Of the number of earlier keys that a query sees; −1 for all."""
    pages: int | None = None
    """Of a table of pages: with one, the keys' number is not that of their shape."""

    def flops(self, shapes: Sequence[Any], scalars: Sequence[str]) -> int:
        query, key, value = shapes[self.first : self.first + 3]
        if self.pages is not None and self.pages < len(shapes) and shapes[self.pages]:
            raise ValueError("keys in pages")
        half = self.causal < len(scalars) and scalars[self.causal] not in ("", "False", "0")
        left = self._left(scalars)
        if self.offsets is not None and shapes[self.offsets]:
            if left >= 0:
                raise ValueError("a window over sequences of unknown lengths")
            return _packed(query, key, value, shapes[self.offsets], self.products, half)
        return _dense(query, key, value, self.layout, self.products, half, left)

    def _left(self, scalars: Sequence[str]) -> int:
        text = scalars[self.window] if self.window is not None and self.window < len(scalars) else ""
        return int(text) if text.lstrip("-").isdigit() else -1


_FIRST: Layout = "heads first"
_INSIDE: Layout = "heads inside"
_OPERATORS: dict[str, _Operator] = {
    "scaled_dot_product_attention": _Operator(_FIRST, 5, mask=3),
    "_scaled_dot_product_attention_math": _Operator(_FIRST, 5, mask=3),
    "_scaled_dot_product_flash_attention": _Operator(_FIRST, 4),
    "_scaled_dot_product_flash_attention_for_cpu": _Operator(_FIRST, 4),
    "_scaled_dot_product_efficient_attention": _Operator(_FIRST, 6, mask=3),
    "_scaled_dot_product_cudnn_attention": _Operator(_FIRST, 6, mask=3),
    "_scaled_dot_product_fused_attention_overrideable": _Operator(_FIRST, 5, mask=3),
    "_cudnn_attention_forward": _Operator(_FIRST, 10, mask=3),
    "_scaled_dot_product_flash_attention_backward": _Operator(_FIRST, 11, 1, 5),
    "_scaled_dot_product_efficient_attention_backward": _Operator(_FIRST, 11, 1, 5, mask=4),
    "_scaled_dot_product_cudnn_attention_backward": _Operator(_FIRST, 14, 1, 5),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _Operator(_FIRST, 7, 1, 5),
    "_scaled_dot_product_fused_attention_overrideable_backward": _Operator(_FIRST, 13, 1, 5),
    "_cudnn_attention_backward": _Operator(_FIRST, 14, 1, 5),
    "_flash_attention_forward": _Operator(_INSIDE, 8, offsets=3, window=11),
    "_flash_attention_backward": _Operator(_INSIDE, 11, 1, 5, offsets=6, window=15),
    # `custom_mask_type`: 1 and 2 are causal
    "_efficient_attention_forward": _Operator(_INSIDE, 9, offsets=4, mask=3),
    "_efficient_attention_backward": _Operator(_INSIDE, 14, 1, 5, offsets=6, mask=4),
    "xformers::efficient_attention_forward_cutlass": _Operator(_INSIDE, 9, offsets=4, mask=3),
    # (q, k, v, dropout_p, softmax_scale, causal, window_size_left, …), flash_attn/flash_attn_interface.py
    "flash_attn::_flash_attn_forward": _Operator(_INSIDE, 5, window=6),
    "flash_attn::_flash_attn_backward": _Operator(_INSIDE, 11, 1, 5, window=12),
    "flash_attn::_flash_attn_varlen_forward": _Operator(_INSIDE, 9, offsets=3, window=10),
    # (dout, q, k, v, out, lse, dq, dk, dv, cu_seqlens_q, …)
    "flash_attn::_flash_attn_varlen_backward": _Operator(_INSIDE, 15, 1, 5, offsets=9, window=16),
    "FlashAttnFunc": _Operator(_INSIDE, 5),
    "FlashAttnVarlenFunc": _Operator(_INSIDE, 9, offsets=3),
    # aiter/ops/mha.py
    **dict.fromkeys(("aiter::fmha_v3_fwd", "aiter::mha_fwd"), _Operator(_INSIDE, 5, window=6)),
    **dict.fromkeys(("aiter::fmha_v3_bwd", "aiter::mha_bwd"), _Operator(_INSIDE, 8, 1, 5, window=9)),
    "aiter::mha_varlen_fwd": _Operator(_INSIDE, 12, offsets=3, window=13),
    # FlashAttention 3 (hopper/flash_api.cpp) and vLLM's and SGLang's copies of it
    **dict.fromkeys(
        ("flash_attn_3::fwd", "_vllm_fa3_C::fwd", "sgl_kernel::fwd"),
        _Operator(_INSIDE, 24, offsets=7, window=25, pages=14),
    ),
    "_vllm_fa2_C::varlen_fwd": _Operator(_INSIDE, 15, offsets=4, window=16, pages=8),
    "_vllm_fa2_C::fwd_kvcache": _Operator(_INSIDE, 13, pages=9),
}
"""By the operator's name; aten's without namespace, `plain_name`."""
ATTENTION: dict[str, _Formula] = {name: operator.flops for name, operator in _OPERATORS.items()}


def attention_shapes(name: str) -> tuple[int, bool, int | None] | None:
    """The place of the query, whether it is a backward pass, and the place of a mask; None for another operator."""
    operator = _OPERATORS.get(name)
    return None if operator is None else (operator.first, operator.products == 5, operator.mask)


RECOMPUTED_SCORES = 0.2
"""Share of a backward pass's FLOPs that the forward pass computed already: one of five products."""


def is_attention_backward(name: str) -> bool:
    """Whether an operator's FLOPs hold the recomputed scores."""
    return name.endswith("_backward") and name in ATTENTION


# Floating-point operations of an operator from its recorded input shapes.
#
# Counted as PyTorch's own FLOP counter does (torch/utils/flop_counter.py): a multiply-add is two; bias, softmax and
# masking are left out; an attention's backward pass counts as five products. Unlike there, causal attention counts as
# the half that it computes, and shapes are read in each operator's own layout, which that file does not do for
# `_flash_attention_forward` and `_efficient_attention_forward`.

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


# Operators that activation checkpointing runs again in the backward pass: their FLOPs are no model FLOPs.

_NODE = when_used.pattern(r"^autograd::engine::evaluate_function: ")
_AGAIN = when_used.pattern(r"^autograd::engine::evaluate_function: \w*[Cc]heckpoint\w*Backward")
"""Nodes that run the forward pass of a part again (torch/utils/checkpoint.py `CheckpointFunction`, Megatron's)."""
_OWN = when_used.pattern(r"^autograd::engine::evaluate_function: \w+Backward\d+$")
"""Nodes of PyTorch's own operators: their formulas call no composite operator…"""
_COMPOSITE = when_used.pattern(
    r"^aten::(linear|matmul|einsum|conv(_transpose)?[123]d|convolution|scaled_dot_product_attention)$"
)
"""… so where one runs in them, unpacking a saved tensor ran the forward pass again (`checkpoint` without reentry)."""
_MARKS = when_used.pattern(r"CheckpointFunction|torch/utils/checkpoint\.py|checkpoint_wrapper\.py")


def recomputed(trace: Trace, operators: Times) -> Mask:
    """Which of these host events run again what the forward pass ran, shape as `operators`."""
    host, names = trace["host_events"], trace.names
    found = np.zeros(len(operators), np.bool_)
    nodes = names.matching(lambda name: _NODE.match(name) is not None)[host["name"]]
    if not len(operators) or not nodes.any():
        return found
    thread, start = host["thread"][operators], host["start"][operators]
    node = innermost(host, nodes, thread, start)
    inside = np.flatnonzero(node >= 0)
    name_of_node = host["name"][node[inside]]
    found[inside] = names.matching(lambda name: _AGAIN.match(name) is not None)[name_of_node]
    own = inside[names.matching(lambda name: _OWN.match(name) is not None)[name_of_node]]
    composite = innermost(
        host, names.matching(lambda name: _COMPOSITE.match(name) is not None)[host["name"]], thread[own], start[own]
    )
    within = composite >= 0
    found[own] = within & (host["start"][np.where(within, composite, 0)] >= host["start"][node[own]])
    return found


def is_checkpointed(trace: Trace) -> bool:
    """Whether a name tells that activations are computed again."""
    return bool(trace.names.matching(lambda name: _MARKS.search(name) is not None).any())
