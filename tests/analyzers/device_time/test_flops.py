"""FLOPs of recorded operators, worked by hand; without torch."""

from __future__ import annotations

import json

import pytest

from gpuscope.analyzers.device_time.attention_flops import operator_flops


def flops(name: str, *dims: list[int]) -> int | None:
    return operator_flops(name, json.dumps(dims), "")


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([12, 5], [3, 5, 7], 2 * 12 * 5 * 7),  # each of 12 rows by its own group's matrix
        ([3, 4, 5], [5, 21], 2 * 4 * 5 * 21),  # each of 21 columns by its own group's
        ([4, 15], [15, 7], 2 * 4 * 15 * 7),  # the 15 are cut: three products of 4 × 5 by 5 × 7
        ([3, 4, 5], [3, 5, 7], 3 * 2 * 4 * 5 * 7),
    ],
)
def test_grouped_products(a: list[int], b: list[int], expected: int) -> None:
    assert flops("aten::_grouped_mm", a, b, [3]) == expected
    assert flops("aten::_scaled_grouped_mm", a, b, [3]) == expected


def test_flash_attention_of_qwen() -> None:
    """16 sequences of 559 tokens, 16 heads of 64: 2 · 2 · 16 · 16 · 559² · 64, whichever layout tells it."""
    heads_first, heads_inside = [[16, 16, 559, 64]] * 3, [[16, 559, 16, 64]] * 3
    assert flops("aten::_scaled_dot_product_flash_attention", *heads_first) == 20_478_754_816
    assert flops("aten::_flash_attention_forward", *heads_inside, [], []) == 20_478_754_816


def test_broadcast_products() -> None:
    assert flops("aten::matmul", [8, 1, 3, 4], [6, 4, 5]) == 48 * 2 * 3 * 4 * 5


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("aten::mm", [[3, 5], [6, 7]]),
        ("aten::mm", [[3, 5]]),
        ("aten::add", [[3, 5], [3, 5]]),
        ("aten::convolution", [[2, 6, 9, 9], [4, 6, 3, 3]]),  # its stride is not recorded
        ("aten::convolution_backward", [[2, 4, 9, 9], [2, 6, 9, 9], [4, 6, 3, 3]]),
        ("aten::_scaled_dot_product_flash_attention", [[2, 8, 4, 16], [2, 3, 4, 16], [2, 3, 4, 16]]),
        ("flash_attn::_flash_attn_forward", [[48, 8, 16]]),
    ],
)
def test_not_understood(name: str, dims: list[list[int]]) -> None:
    assert flops(name, *dims) is None


def test_malformed_arguments() -> None:
    assert operator_flops("aten::mm", "[[3, 5", "") is None
    assert operator_flops("aten::mm", "null", "") is None
