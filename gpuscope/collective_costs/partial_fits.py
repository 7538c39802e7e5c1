"""α and β where a trace's transfers are too few or too alike for a fit: from what is assumed or was measured elsewhere,
and what they took. Sizes are bytes on the bus, `taken` ns, both of shape (n,)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuscope.collective_costs.fixed_part import fixed_part
from gpuscope.collective_costs.message_cost import CostModel
from gpuscope.trace.columns.table import Array, Times

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
