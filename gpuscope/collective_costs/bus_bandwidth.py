"""Bandwidth of a collective as nccl-tests defines it: `algbw` and `busbw`, both in GB/s (1e9 B/s).

`algbw` is size over time. `busbw` corrects it by a factor of the operation and the number of ranks, so
that it can be compared with the peak of the link, whatever the number of ranks. Source of the factors:
NVIDIA/nccl-tests, doc/PERFORMANCE.md, «Summary», and the `GetBw` function of each test's `.cu` file
(gather, scatter, send/receive and all-to-all are only there).

The size is that of the whole array: for an all-gather what each rank ends up with, for a reduce-scatter
what each rank starts from, for an all-to-all what each rank sends in all (its own part included).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _one(n: int) -> float:  # noqa: ARG001 - every factor is a function of the number of ranks
    return 1.0


def _others_share(n: int) -> float:
    # A rank keeps its own n-th of the array, the rest crosses its link.
    return (n - 1) / n


def _there_and_back(n: int) -> float:
    # A reduce-scatter and then an all-gather.
    return 2 * (n - 1) / n


FACTORS: Mapping[str, Callable[[int], float]] = {
    "all_reduce": _there_and_back,
    "all_gather": _others_share,
    "reduce_scatter": _others_share,
    "all_to_all": _others_share,
    "gather": _others_share,
    "scatter": _others_share,
    "broadcast": _one,
    "reduce": _one,
    "send": _one,
    "recv": _one,
    "send_recv": _one,
}
"""The factor of each operation, as a function of the number of ranks."""


def algbw(nbytes: float, ns: float) -> float:
    """Size over time in GB/s: bytes per nanosecond are 1e9 bytes per second. NaN where no time passed."""
    return nbytes / ns if ns > 0 else float("nan")


def busbw_factor(op: str, n: int) -> float | None:
    """What `algbw` is multiplied by to get `busbw` for `op` over `n` ranks.

    None for an operation that moves no array (a barrier) or that nccl-tests does not define, and for a
    group of less than one rank. A group of one rank has factor 0 where only others' parts are moved.
    """
    factor = FACTORS.get(op)
    return factor(n) if factor is not None and n >= 1 else None


def bus_bytes(op: str, nbytes: float, n: int) -> float | None:
    """The bytes of an array that cross a rank's link, by that factor; None where it is."""
    factor = busbw_factor(op, n)
    return None if factor is None else nbytes * factor


def busbw(op: str, nbytes: float, ns: float, n: int) -> float:
    """Bus bandwidth in GB/s; NaN where `busbw_factor` knows none or no time passed."""
    factor = busbw_factor(op, n)
    return float("nan") if factor is None else algbw(nbytes, ns) * factor
