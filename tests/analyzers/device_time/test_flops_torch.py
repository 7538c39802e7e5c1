"""Our FLOPs against PyTorch's own counter, numerically, each operator called on meta tensors in its own layout."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpuscope.analyzers.device_time.attention_flops import ATTENTION, operator_flops

torch = pytest.importorskip("torch")
counter = pytest.importorskip("torch.utils.flop_counter")


def meta(*shape: int) -> Any:
    return torch.empty(*shape, device="meta", dtype=torch.bfloat16)


def ours(name: str, *arguments: Any) -> int | None:
    """As Kineto would have recorded the call: shapes of tensors, scalars as text."""
    dims = [list(a.shape) if isinstance(a, torch.Tensor) else [] for a in arguments]
    scalars = ["" if isinstance(a, torch.Tensor) or a is None else str(a) for a in arguments]
    return operator_flops(name, json.dumps(dims), json.dumps(scalars))


def theirs(op: str, *arguments: Any, out: Any = None) -> int:
    return int(counter.flop_registry[getattr(torch.ops.aten, op)](*arguments, out_val=out))


PRODUCTS: list[tuple[str, tuple[Any, ...]]] = [
    ("mm", (meta(3, 5), meta(5, 7))),
    ("addmm", (meta(7), meta(3, 5), meta(5, 7))),
    ("bmm", (meta(2, 3, 5), meta(2, 5, 7))),
    ("baddbmm", (meta(2, 3, 7), meta(2, 3, 5), meta(2, 5, 7))),
    ("_scaled_mm", (meta(16, 32), meta(32, 48), meta(1), meta(1))),
]


@pytest.mark.parametrize(("op", "arguments"), PRODUCTS, ids=[op for op, _ in PRODUCTS])
def test_matrix_products(op: str, arguments: tuple[Any, ...]) -> None:
    assert ours(f"aten::{op}", *arguments) == theirs(op, *arguments) > 0


def test_linear_is_the_product_it_calls() -> None:
    with counter.FlopCounterMode(display=False) as mode:
        torch.nn.functional.linear(meta(4, 6, 10), meta(3, 10), meta(3))
    assert ours("aten::linear", meta(4, 6, 10), meta(3, 10), meta(3)) == mode.get_total_flops() == 2 * 24 * 10 * 3


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [[True, True, False], [False, True, True]])
def test_convolutions(axes: int, transposed: bool, mask: list[bool]) -> None:
    image, weight = meta(2, 6, *[9] * axes), meta(6, 4, *[3] * axes) if transposed else meta(4, 6, *[3] * axes)
    more = ([2] * axes, [1] * axes, [1] * axes, transposed, [0] * axes, 1)
    out = torch.ops.aten.convolution(image, weight, None, *more)
    assert ours("aten::convolution", image, weight, None, *more) == theirs(
        "convolution", image, weight, None, *more, out=out
    )
    backward = (out, image, weight, [0], *more, mask)
    grads = (image if mask[0] else None, weight if mask[1] else None, None)
    assert ours("aten::convolution_backward", *backward) == theirs("convolution_backward", *backward, out=grads)


def test_a_grouped_convolutions_weight_gradient_counts_once() -> None:
    """torch multiplies every input channel with every output channel there, as if there were no groups."""
    image, weight, more = meta(2, 6, 9, 9), meta(4, 3, 3, 3), ([1, 1], [1, 1], [1, 1], False, [0, 0], 2)
    out = torch.ops.aten.convolution(image, weight, None, *more)
    forward = theirs("convolution", image, weight, None, *more, out=out)
    assert ours("aten::convolution", image, weight, None, *more) == forward == 2 * 2 * 81 * 4 * 3 * 9
    backward = (out, image, weight, [0], *more, [False, True, False])
    assert ours("aten::convolution_backward", *backward) == forward
    assert theirs("convolution_backward", *backward, out=(None, weight, None)) == 2 * forward


B, H, KV, S, T, D = 2, 8, 2, 16, 24, 32
HEADS_FIRST = (meta(B, H, S, D), meta(B, KV, T, D), meta(B, KV, T, D))
"""Query, key and value as torch's formulas take them; 8 query heads share 2 of keys and values."""
HEADS_INSIDE = tuple(tensor.transpose(1, 2).contiguous() for tensor in HEADS_FIRST)
FORWARD = theirs("_scaled_dot_product_flash_attention", *HEADS_FIRST)
BACKWARD = theirs("_scaled_dot_product_flash_attention_backward", HEADS_FIRST[0], *HEADS_FIRST)


def test_what_torch_says_of_attention_by_hand() -> None:
    assert FORWARD == 2 * 2 * B * H * S * T * D
    assert BACKWARD == 5 * 2 * B * H * S * T * D


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_scaled_dot_product_has_heads_first(kind: str) -> None:
    op = f"_scaled_dot_product_{kind}_attention"
    assert ours(f"aten::{op}", *HEADS_FIRST) == theirs(op, *HEADS_FIRST) == FORWARD
    backward = (HEADS_FIRST[0], *HEADS_FIRST)
    assert ours(f"aten::{op}_backward", *backward) == theirs(f"{op}_backward", *backward) == BACKWARD


def test_the_math_path_is_its_two_products() -> None:
    query, key, value = meta(B, H, S, D), meta(B, H, T, D), meta(B, H, T, D)
    bmm: Callable[..., Any] = lambda a, b: ours("aten::bmm", meta(B * H, *a), meta(B * H, *b))  # noqa: E731
    both = bmm((S, D), (D, T)) + bmm((S, T), (T, D))
    assert ours("aten::_scaled_dot_product_attention_math", query, key, value) == both


@pytest.mark.parametrize(
    "name",
    [
        "aten::_flash_attention_forward",
        "aten::_efficient_attention_forward",
        "flash_attn::_flash_attn_forward",
        "FlashAttnFunc",
    ],
)
def test_flash_has_heads_inside(name: str) -> None:
    assert ours(name, *HEADS_INSIDE, None, None, None, None) == FORWARD


@pytest.mark.parametrize(
    "name",
    ["aten::_flash_attention_backward", "aten::_efficient_attention_backward", "flash_attn::_flash_attn_backward"],
)
def test_flash_backward_has_heads_inside(name: str) -> None:
    assert ours(name, HEADS_INSIDE[0], *HEADS_INSIDE, None, None, None, None) == BACKWARD


def test_packed_sequences_of_one_length() -> None:
    """As torch counts them from the offsets themselves, which no trace records."""
    packed = tuple(meta(3 * S, heads, D) for heads in (H, KV, KV))
    offsets = torch.arange(0, 4 * S, S)
    expected = theirs("_flash_attention_forward", *packed, offsets, offsets, S, S)
    assert expected == 3 * 2 * 2 * H * S * S * D
    assert ours("aten::_flash_attention_forward", *packed, offsets, offsets, S, S) == expected
    assert ours("flash_attn::_flash_attn_varlen_forward", *packed, offsets, offsets, S, S) == expected
    backward = (packed[0], *packed, meta(3 * S, H, D), meta(H, S))
    expected = theirs("_flash_attention_backward", *backward, offsets, offsets, S, S)
    assert ours("aten::_flash_attention_backward", *backward, offsets, offsets, S, S) == expected


def test_packed_sequences_of_unequal_length_are_never_overstated() -> None:
    packed = tuple(meta(48, H, D) for _ in range(3))
    offsets = torch.tensor([0, 4, 16, 48])
    told = ours("aten::_flash_attention_forward", *packed, offsets, offsets, 32, 32)
    assert told is not None
    assert told <= theirs("_flash_attention_forward", *packed, offsets, offsets, 32, 32)
    assert told == 2 * 2 * H * (48 * 48 // 3) * D


def _names_causal() -> list[tuple[str, int]]:
    """aten's attention operators of this torch, with the place of the argument that makes them causal."""
    found = []
    for name in ATTENTION:
        packet = getattr(torch.ops.aten, name, None)
        if packet is not None and "::" not in name:
            arguments = [argument.name for argument in packet.default._schema.arguments]
            found.append((name, arguments.index("is_causal" if "is_causal" in arguments else "custom_mask_type")))
    return found


@pytest.mark.parametrize(("name", "place"), _names_causal())
def test_causal_attention_computes_half(name: str, place: int) -> None:
    """By the schemas of torch's own operators; only where there are as many keys as queries."""
    sizes = [[B, S, H, D]] * 3 if name.startswith(("_flash", "_efficient")) else [[B, H, S, D]] * 3
    dims = json.dumps([*([sizes[0]] if name.endswith("_backward") else []), *sizes, *[[]] * 16])

    def told(value: str) -> int:
        count = operator_flops(f"aten::{name}", dims, json.dumps([""] * place + [value]))
        assert count is not None
        return count

    no, yes = ("0", "1") if "efficient_attention" in name and "scaled" not in name else ("False", "True")
    assert told(yes) == told(no) // 2 > 0
    crossed = json.loads(dims)
    keys = 2 if name.endswith("_backward") else 1
    for key in (keys, keys + 1):
        crossed[key] = [B, T, H, D] if name.startswith(("_flash", "_efficient")) else [B, H, T, D]
    whole = operator_flops(f"aten::{name}", json.dumps(crossed), json.dumps([""] * place + [yes]))
    assert whole == operator_flops(f"aten::{name}", json.dumps(crossed), json.dumps([""] * place + [no]))
