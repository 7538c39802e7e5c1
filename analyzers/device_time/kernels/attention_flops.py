"""Floating-point operations of attention, each operator's inputs read in its own layout.

| operator | query, key, value |
|---|---|
| `aten::scaled_dot_product_attention`, `aten::_scaled_dot_product_*`, `aten::_cudnn_attention_*` | (B, H, S, D) |
| `aten::_flash_attention_*` | (B, S, H, D); with `cum_seq_q` (total, H, D) |
| `aten::_efficient_attention_*`, xFormers | (B, S, H, D); with `cu_seqlens_q` (1, total, H, D) |
| `flash_attn::_flash_attn_*`, `FlashAttnFunc` | (B, S, H, D); varlen (total, H, D) |

Keys and values may have fewer heads than the query (GQA): each query head does its own products, so only the query's
heads count. A backward pass has five products, the recomputed scores among them. Causal attention computes the pairs
below the diagonal: half of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, Literal

Layout = Literal["heads first", "heads inside"]
_Formula = Callable[[Sequence[Any], Sequence[str]], int]


def _flops(products: int, heads: int, pairs: float, query_width: int, value_width: int) -> int:
    """`products` is 2 (forward) or 5 (backward): three of the five have the query's width, two the value's.

    `pairs` are those of a query position and a key position, over all sequences of the batch.
    """
    wide = 3 * query_width + 2 * value_width if products == 5 else query_width + value_width
    return int(2 * heads * pairs * wide)


def _dense(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], layout: Layout, products: int, causal: bool
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
    half = 0.5 if causal and query[sequence] == key[sequence] else 1.0
    return _flops(products, heads, half * prod(query[:-3]) * query[sequence] * key[sequence], query[-1], value[-1])


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


def _attention(
    layout: Layout, first: int = 0, products: int = 2, *, causal: int, offsets: int | None = None
) -> _Formula:
    """Query, key and value are the inputs from `first` on; `causal` is the place of the argument that says so;
    `offsets` is given where sequences are packed."""

    def formula(shapes: Sequence[Any], scalars: Sequence[str]) -> int:
        query, key, value = shapes[first : first + 3]
        half = causal < len(scalars) and scalars[causal] not in ("", "False", "0")
        if offsets is not None and shapes[offsets]:
            return _packed(query, key, value, shapes[offsets], products, half)
        return _dense(query, key, value, layout, products, half)

    return formula


_FIRST: Layout = "heads first"
_INSIDE: Layout = "heads inside"
ATTENTION: dict[str, _Formula] = {
    **{
        name: _attention(_FIRST, causal=causal)
        for name, causal in (
            ("scaled_dot_product_attention", 5), ("_scaled_dot_product_flash_attention", 4),
            ("_scaled_dot_product_efficient_attention", 6), ("_scaled_dot_product_cudnn_attention", 6),
            ("_scaled_dot_product_attention_math", 5), ("_scaled_dot_product_flash_attention_for_cpu", 4),
            ("_scaled_dot_product_fused_attention_overrideable", 5), ("_cudnn_attention_forward", 10),
        )
    },
    **{
        name: _attention(_FIRST, 1, 5, causal=causal)
        for name, causal in (
            ("_scaled_dot_product_flash_attention_backward", 11),
            ("_scaled_dot_product_efficient_attention_backward", 11),
            ("_scaled_dot_product_cudnn_attention_backward", 14),
            ("_scaled_dot_product_flash_attention_for_cpu_backward", 7),
            ("_scaled_dot_product_fused_attention_overrideable_backward", 13), ("_cudnn_attention_backward", 14),
        )
    },
    "_flash_attention_forward": _attention(_INSIDE, causal=8, offsets=3),
    "_flash_attention_backward": _attention(_INSIDE, 1, 5, causal=11, offsets=6),
    # `custom_mask_type`: 1 and 2 are causal
    "_efficient_attention_forward": _attention(_INSIDE, causal=9, offsets=4),
    "_efficient_attention_backward": _attention(_INSIDE, 1, 5, causal=14, offsets=6),
    "xformers::efficient_attention_forward_cutlass": _attention(_INSIDE, causal=9, offsets=4),
    # (q, k, v, dropout_p, softmax_scale, causal, …), flash_attn/flash_attn_interface.py
    "flash_attn::_flash_attn_forward": _attention(_INSIDE, causal=5),
    "flash_attn::_flash_attn_backward": _attention(_INSIDE, 1, 5, causal=11),
    "flash_attn::_flash_attn_varlen_forward": _attention(_INSIDE, causal=9, offsets=3),
    # (dout, q, k, v, out, lse, dq, dk, dv, cu_seqlens_q, …)
    "flash_attn::_flash_attn_varlen_backward": _attention(_INSIDE, 1, 5, causal=15, offsets=9),
    "FlashAttnFunc": _attention(_INSIDE, causal=5),
    "FlashAttnVarlenFunc": _attention(_INSIDE, causal=9, offsets=3),
}  # fmt: skip
"""By the operator's name; aten's without namespace, `flops._plain`."""


RECOMPUTED_SCORES = 0.2
"""Share of a backward pass's FLOPs that the forward pass computed already: one of five products."""


def is_attention_backward(name: str) -> bool:
    """Whether an operator's FLOPs hold the recomputed scores."""
    return name.endswith("_backward") and name in ATTENTION
