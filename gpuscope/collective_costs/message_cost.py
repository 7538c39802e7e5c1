"""The cost of a message, T(S) = α + S·factor/B, fitted to what the trace shows or else assumed.

The model is NCCL's and nccl-tests': a fixed cost and a cost per byte of bus traffic.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import exp, log

import numpy as np

from gpuscope.collective_costs.bus_bandwidth import BASE_LATENCY, RING_STEPS, STEP_LATENCY, Hardware
from gpuscope.hardware.link_rates import base_latency_ns, gpu_fabric, gpu_pcie, links
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.schema import NS_PER_US
from gpuscope.trace.table import Array, Mask, Times
from gpuscope.when_used import dataclass

MIN_SIZES = 3
MIN_RANGE = 4.0
MAX_ERROR = 0.3
"""A fit needs this many distinct sizes over this range, and this relative error (root mean square) at most."""

OTHER_GROUP_ERROR = 0.25
"""Of a link's measured cost, for other sizes and groups than those measured."""
PLAUSIBLE = 10
"""An assumed fixed cost is trusted within this factor."""
SURELY_NOT_FIXED_NS = 400_000
"""Four times what NCCL's fixed cost is at most inside a node: a longer transfer is its bytes' (definitions)."""
RANKS_IN_A_NODE = 8
NODE_LATENCY_NS = 100_000
"""NCCL's fixed cost inside a node is at most this (definitions: «Stalls», details)."""
_GLOO_LATENCY_NS = 1_000_000
"""A gloo collective costs 0.5–2 ms whatever its size (measured with torch 2.13 on CPU)."""


@dataclass(frozen=True)
class CostModel:
    """`alpha` in ns, `beta` in ns per byte of bus traffic; `error` relative, None where assumed."""

    alpha: float
    beta: float
    error: float | None
    basis: str
    alpha_error: float | None = None
    beta_error: float | None = None
    """Standard errors; None where assumed, and for a part that the fit had to hold at 0."""
    provenance: Provenance = "inferred"
    """`inferred` by a fit to the trace, or `assumed` from a link's figures."""
    divided: bool = True
    """Whether what is known divides the cost into its two parts, within the error; else only their sum is known."""

    @property
    def assumed(self) -> bool:
        """Whether it rests on a link's assumed figures, not on the trace."""
        return self.provenance == "assumed"

    def expected(self, bus_bytes: float) -> int:
        """ns that a transfer of so many bytes takes once everyone has arrived."""
        return round(self.alpha + self.beta * bus_bytes)

    def fixed_share(self, bus_bytes: float) -> float:
        """The part of such a transfer that is fixed cost."""
        return self.alpha / max(self.expected(bus_bytes), 1)

    def latency_bound(self, bus_bytes: float | Array, transfer: int | Times = 0) -> Mask:
        """Whether the fixed cost exceeds the cost of the bytes (definitions: `latency`), by message.

        Fixed costs differ far less between machines than links do: a `transfer` (ns; 0 where not known) more than
        `PLAUSIBLE` times as long as the assumed fixed cost is a slow link's.
        """
        refuted = np.logical_and(self.assumed, np.asarray(transfer) > max(PLAUSIBLE * self.alpha, SURELY_NOT_FIXED_NS))
        return np.asarray(np.logical_and(self.alpha > self.beta * np.asarray(bus_bytes), ~refuted))


def fit(bus_bytes: Array, duration: Times) -> CostModel | None:
    """Fit to the shortest durations of each size (waiting only ever adds); None where data don't support it."""
    found = fit_or_why(bus_bytes, duration)
    return found if isinstance(found, CostModel) else None


def fit_or_why(bus_bytes: Array, duration: Times) -> CostModel | str:
    """`fit`, or in words why the data don't support one."""
    keep = (bus_bytes > 0) & (duration > 0)
    sizes, inverse = np.unique(bus_bytes[keep], return_inverse=True)
    if len(sizes) < MIN_SIZES:
        return f"{len(sizes)} message size{'' if len(sizes) == 1 else 's'}, a fit needs {MIN_SIZES}"
    if sizes[-1] < MIN_RANGE * sizes[0]:
        return f"message sizes within a factor of {sizes[-1] / sizes[0]:.1f}, a fit needs {MIN_RANGE:g}"
    shortest = _shortest(duration[keep].astype(np.float64), inverse, len(sizes))
    # Relative residuals, so that small messages count as much as large ones.
    design = np.stack((1 / shortest, sizes / shortest), axis=1)
    (alpha, beta), *_ = np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)
    free = [alpha >= 0 or beta < 0, beta >= 0]  # of the two parts, those that need not be held at 0
    if not all(free):
        only = design[:, 1 if free[1] else 0]
        left = float(only.sum() / (only**2).sum())
        alpha, beta = (0.0, left) if free[1] else (left, 0.0)
    residuals = (alpha + beta * sizes) / shortest - 1
    error = float(np.sqrt(np.mean(residuals**2)))
    if error > MAX_ERROR:
        return f"times miss a line over the size by {100 * error:.0f} %: more than one algorithm, or waiting"
    alpha_error, beta_error = _standard_errors(design, residuals, free)
    return CostModel(float(alpha), float(beta), error, f"fitted to {len(sizes)} message sizes", alpha_error, beta_error)


def _shortest(duration: Array, size: Times, sizes: int) -> Array:
    """Of each size the shortest of as many durations as there are of the rarest one: of more the shortest is shorter,
    where a machine is busy several times, which is not the size's doing. Of c durations the shortest of m is on average
    about the (c + 1)/(m + 1)th."""
    order = np.lexsort((duration, size))
    bounds = np.searchsorted(size[order], np.arange(sizes + 1))
    counts = np.diff(bounds)
    place = (counts + 1) // (counts.min() + 1) - 1
    return np.asarray(duration[order][bounds[:-1] + place])


def _standard_errors(design: Array, residuals: Array, free: list[bool]) -> tuple[float | None, float | None]:
    """Of ordinary least squares, for the parts that were fitted: √ of the diagonal of s²(XᵀX)⁻¹."""
    used = design[:, free]
    variance = float((residuals**2).sum()) / max(len(residuals) - used.shape[1], 1)
    found = iter(np.sqrt(np.diag(variance * np.linalg.inv(used.T @ used))).tolist())
    alpha, beta = (float(next(found)) if one else None for one in free)
    return alpha, beta


def assume(backend: str, gpu: str, ranks: int) -> CostModel:
    """From a link's assumed figures: the GPU's PCI Express (the slowest it can have), or 10 Gbit/s for gloo."""
    if "gloo" in backend and not gpu:
        link = links()["ethernet_10"]
        basis = f"assumed: gloo over {link.name}"
        return CostModel(_GLOO_LATENCY_NS, 1 / link.usable, None, basis, provenance="assumed")
    pcie = gpu_pcie(gpu) or links()["pcie4"]
    alpha = base_latency_ns() + 2 * max(ranks - 1, 1) * pcie.latency_ns
    if ranks <= RANKS_IN_A_NODE:
        alpha = min(alpha, NODE_LATENCY_NS)
    return CostModel(alpha, 1 / pcie.usable, None, f"assumed: {pcie.name}", provenance="assumed")


# How much of a transfer is fixed cost where all messages have one size, so that no line can be fitted.
#
# The recording gives T = α + S/B alone. Which α and B are likely follows from the links there can be: NCCL's own
# latencies, and what the links carry. With ln α and ln B as likely anywhere within a link's figures, what T leaves is
# uniform in the logit of α/T, over the part of it that the link allows. The links' shares are as likely as T is over
# each
# of them.

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


# α and β where a trace's transfers are too few or too alike for a fit: from what is assumed or was measured elsewhere,
# and what they took. Sizes are bytes on the bus, `taken` ns, both of shape (n,).

MIN_RANGE_OF_TWO = 2.0
"""By which two sizes must differ for a line through them."""
AGREEMENT = 2.0
"""Factor within which transfers must take what a benchmark measured for their size, for its line to be theirs."""
TWO_SIZES_ERROR = 0.1
"""Relative error of such a line, which nothing checks."""


def with_measured_bandwidth(assumed: CostModel, sizes: Array, taken: Times) -> CostModel:
    """The assumed fixed cost with the bandwidth that the transfers showed.

    Fixed costs differ far less between machines than links do: what goes beyond them is the bytes'.
    """
    beyond = float(taken.sum()) - assumed.alpha * len(taken)
    if not len(taken) or beyond <= 0 or sizes.sum() <= 0:
        return assumed
    basis = f"with the fixed cost {assumed.basis} and the bandwidth as measured"
    return CostModel(assumed.alpha, beyond / float(sizes.sum()), None, basis, provenance="assumed")


def scaled(assumed: CostModel, sizes: Array, taken: Times) -> CostModel:
    """The assumed cost as many times as the transfers took.

    Within a host there is no link: its cores carry out the fixed part and the bytes, and are as busy for both.
    """
    expected = sum(assumed.expected(size) for size in sizes.tolist())
    if not expected or not taken.sum():
        return assumed
    scale = float(taken.sum()) / expected
    basis = f"{assumed.basis}, scaled {scale:.1f} times to the measured transfers"
    return CostModel(assumed.alpha * scale, assumed.beta * scale, None, basis, provenance="assumed")


def divided(
    sizes: Array,
    taken: Times,
    measured: CostModel | None,
    op: str,
    ranks: int,
    gpu: str,
    inside: bool | None,
    bias: int,
) -> CostModel | None:
    """A line through the shortest transfers of two sizes, else through those of one, as a benchmark (`measured`)
    divides it or as far as links allow: the least (`bias` 1), expected (0) or largest (−1) fixed part.
    None without transfers."""
    kept = (sizes > 0) & (taken > 0)
    each = np.unique(sizes[kept])
    if not len(each):
        return None
    shortest = np.array([taken[kept & (sizes == size)].min() for size in each.tolist()], np.float64)
    if len(each) > 1 and each[-1] >= MIN_RANGE_OF_TWO * each[0]:
        beta = float((shortest[-1] - shortest[0]) / (each[-1] - each[0]))
        alpha = float(shortest[0] - beta * each[0])
        if beta > 0 and alpha > 0:
            basis = f"on the line through {len(each)} message sizes"
            return CostModel(alpha, beta, TWO_SIZES_ERROR, basis, provenance="inferred")
    whole = float(np.average(taken[kept], weights=sizes[kept]))
    size = float(np.average(sizes[kept], weights=sizes[kept]))
    if measured is not None and 1 / AGREEMENT <= measured.expected(size) / whole <= AGREEMENT:
        scale = whole / measured.expected(size)
        basis = f"of one size, divided as a benchmark's: {measured.basis}"
        return replace(measured, alpha=measured.alpha * scale, beta=measured.beta * scale, basis=basis)
    part = fixed_part(whole, size, op, ranks, gpu, inside)
    alpha = {-1: part.most, 0: part.expected, 1: part.least}[bias]
    basis = "of one size, whose fixed part is not in the trace: anything that the links there can be allow"
    return CostModel(alpha, (whole - alpha) / size, 0.0, basis, provenance="assumed", divided=False)
