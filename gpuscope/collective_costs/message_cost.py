"""The cost of a message, T(S) = α + S·factor/B, fitted to what the trace shows or else assumed.

The model is NCCL's and nccl-tests': a fixed cost and a cost per byte of bus traffic.
"""

from __future__ import annotations

import numpy as np

from gpuscope.hardware.link_rates import base_latency_ns, gpu_pcie, links
from gpuscope.schema.provenance import Provenance
from gpuscope.trace.columns.table import Array, Mask, Times
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
