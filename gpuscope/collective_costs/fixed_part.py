"""How much of a transfer is fixed cost where all messages have one size, so that no line can be fitted.

The recording gives T = α + S/B alone. Which α and B are likely follows from the links there can be: NCCL's own
latencies, and what the links carry. With ln α and ln B as likely anywhere within a link's figures, what T leaves is
uniform in the logit of α/T, over the part of it that the link allows. The links' shares are as likely as T is over each
of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import exp, log

from gpuscope.collective_costs.message_cost import NODE_LATENCY_NS
from gpuscope.collective_costs.nccl_constants import BASE_LATENCY, STEP_LATENCY, Hardware
from gpuscope.collective_costs.nccl_model import RING_STEPS
from gpuscope.hardware.link_rates import gpu_fabric, gpu_pcie, links
from gpuscope.trace.schema import NS_PER_US
from gpuscope.when_used import dataclass

LARGEST_FIXED_NS = 500_000
"""What a collective's fixed cost may be at worst: a ring over a network of sockets."""
LEAST_USED = 0.2
"""Share of what a link can carry that a transfer reaches at least."""
LATENCY_SPREAD = 4.0
"""By which fixed costs exceed NCCL's own figures for protocol Simple at most: these are of an idle machine."""
STRANGE = 0.3
"""Likelihood that none of the links explains a transfer: its cost may then be anything up to the largest."""
_SLOWEST = 0.5
"""GB/s that such a transfer reaches at least."""


@dataclass(frozen=True)
class FixedPart:
    """ns of a transfer that do not depend on its size: nine times in ten from `least` to `most`, as likely more than
    `expected` as less."""

    least: float
    expected: float
    most: float


@dataclass(frozen=True)
class _Link:
    """Bounds of α in ns and of B in bytes per ns, and how likely it is that the transfer goes over it."""

    alpha: tuple[float, float]
    rate: tuple[float, float]
    weight: float


def fixed_part(transfer: float, bus_bytes: float, op: str, ranks: int, gpu: str, inside: bool | None) -> FixedPart:
    """Of a transfer of so many ns and bytes on the bus; `inside` tells whether its ranks are in one host, as far as
    that is known."""
    found = [
        part
        for link in _links(op, ranks, gpu, inside)
        if link.weight and (part := _allowed(link, transfer, bus_bytes)) is not None
    ]
    if not found:  # faster than any link of the table
        return FixedPart(0.0, transfer / 2, transfer)
    return FixedPart(*(_share(_quantile(found, mass)) * transfer for mass in (0.05, 0.5, 0.95)))


@dataclass(frozen=True)
class _Allowed:
    """Bounds of the logit of α/T that a link allows, and how likely each value between them is."""

    low: float
    high: float
    density: float


def _links(op: str, ranks: int, gpu: str, inside: bool | None) -> Iterator[_Link]:
    fabric, pcie = gpu_fabric(gpu), gpu_pcie(gpu) or links()["pcie4"]
    within = 0.5 if inside is None else float(inside)
    fastest = fabric.usable if fabric else links()["nvlink5"].usable
    if fabric:
        yield _Link(_alpha("nvlink", op, ranks), (LEAST_USED * fabric.usable, fabric.usable), within * 2 / 3)
    yield _Link(_alpha("pcie", op, ranks), (LEAST_USED * pcie.usable, pcie.usable), within / (3 if fabric else 1))
    slow, fast = links()["ethernet_10"].usable, links()["ib_xdr"].usable
    yield _Link(_alpha("net", op, ranks), (LEAST_USED * slow, fast), 1 - within)
    least = _alpha("nvlink" if fabric else "pcie", op, ranks)[0]
    yield _Link((least, LARGEST_FIXED_NS), (_SLOWEST, fastest), STRANGE)


def _alpha(hardware: Hardware, op: str, ranks: int) -> tuple[float, float]:
    steps = RING_STEPS.get(op, 0) * (ranks - 1) or 1
    (fast, _, slow), (step_fast, _, step_slow) = BASE_LATENCY["ring"], STEP_LATENCY[hardware]["ring"]
    least, most = fast + steps * step_fast, LATENCY_SPREAD * (slow + steps * step_slow)
    cap = LARGEST_FIXED_NS if hardware == "net" else NODE_LATENCY_NS
    least_ns = least * NS_PER_US
    return least_ns, max(min(most * NS_PER_US, cap), 2 * least_ns)


def _allowed(link: _Link, transfer: float, size: float) -> _Allowed | None:
    slowest, fastest = (transfer - size / rate for rate in link.rate)
    low, high = max(link.alpha[0], slowest), min(link.alpha[1], fastest)
    if not 0 < low < high < transfer:
        return None
    area = log(link.alpha[1] / link.alpha[0]) * log(link.rate[1] / link.rate[0])
    return _Allowed(log(low / (transfer - low)), log(high / (transfer - high)), link.weight / area)


def _quantile(found: list[_Allowed], mass: float) -> float:
    """Of a mixture of uniform values, the one below which that share of them lies."""
    left = mass * sum(one.density * (one.high - one.low) for one in found)
    bounds = sorted({bound for one in found for bound in (one.low, one.high)})
    for low, high in pairwise(bounds):
        density = sum(one.density for one in found if one.low <= low and high <= one.high)
        if density * (high - low) >= left > 0:
            return low + left / density
        left -= density * (high - low)
    return bounds[-1]


def _share(logit: float) -> float:
    return 1 / (1 + exp(-logit))
