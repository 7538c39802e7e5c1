"""Operators of inference libraries (vLLM, SGLang, aiter, DeepGEMM…) whose recorded tensors tell what they multiply."""

from __future__ import annotations

import re
from dataclasses import dataclass
from math import prod

from gpuscope.analyzers.device_time.kernels.operator_inputs import Inputs, is_floating
from gpuscope.trace.naming.shaped_operators import LIBRARIES

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
