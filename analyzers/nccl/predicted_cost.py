"""What a collective would take by another algorithm, protocol or number of channels.

The model gives only the ratio of two choices; the level comes from the α–β fit to the trace. Nothing is
predicted where the fit or NCCL's present choice is missing: a ratio of two guesses is no prediction.
"""

from __future__ import annotations

from math import sqrt

from gpuscope.analyzers.changes import Algorithm, Refused
from gpuscope.collective_costs.bus_bandwidth import busbw_factor
from gpuscope.collective_costs.message_cost import CostModel
from gpuscope.collective_costs.nccl_constants import BASE_LATENCY, PROTOCOLS
from gpuscope.collective_costs.nccl_model import RING_STEPS, Choice, Place, available, bandwidth, latency_ns
from gpuscope.when_used import dataclass

SPREAD = sqrt(2)
"""A prediction by NCCL's model is taken as good within this factor either way, a factor of two in all: by so
much NCCL's own figures for one and the same hardware have changed between releases (a ring with LL between
hosts had a quarter of Simple's bandwidth in 2.18 and has half of it in 2.29)."""


@dataclass(frozen=True)
class Estimate:
    """ns of one collective once all ranks have arrived; `low` and `high` bound it."""

    ns: int
    low: int
    high: int
    basis: str


def changed(now: Choice, change: Algorithm) -> Choice:
    """NCCL's present choice with what a change of the replay asks for."""
    return Choice(
        algorithm=change.algorithm or now.algorithm,
        protocol=change.protocol or now.protocol,
        channels=change.channels or now.channels,
    )


def has_algorithms(op: str) -> bool:
    """Whether NCCL chooses between algorithms for an operation: not for sends and what is made of them."""
    return op in RING_STEPS


def chosen_unasked(op: str, nbytes: int, place: Place, now: Choice, fitted: CostModel) -> Choice:
    """What NCCL's cost model chooses by itself, over links that carry what they carry by `now`: the least time.

    NCCL takes LL128 where the platform has it, which is within NVLink (`ncclTopoTuneModel`).
    """
    factor = busbw_factor(op, place.ranks)
    moved = fitted.beta * (factor or 0.0) * nbytes
    if moved <= 0 or not available(op, now, place):
        return now
    links = nbytes / moved / bandwidth(op, nbytes, now, place, 1.0)
    candidates = [
        Choice(algorithm, protocol, now.channels)
        for algorithm in BASE_LATENCY
        for protocol in PROTOCOLS
        if protocol != "ll128" or place.nvlink
    ]
    return min(
        (one for one in candidates if available(op, one, place)),
        key=lambda one: latency_ns(op, nbytes, one, place) + nbytes / bandwidth(op, nbytes, one, place, links),
    )


def predict(
    op: str, nbytes: int, place: Place, now: Choice | None, then: Choice | None, fitted: CostModel, forced: bool = True
) -> Estimate | Refused:
    """What `op` over an array of `nbytes` takes by `then`, given the costs fitted while NCCL chose `now`.

    Unchanged, it is the fit with its own error. Another algorithm or protocol scales the fit's α and β by the
    ratios of NCCL's model, within `SPREAD`. Fewer channels carry between their share and all of the bandwidth,
    more channels between all of it and their share: a trace of one setting does not show which. `forced`: whether a
    variable makes NCCL choose `then`, which it must not for LL128.
    """
    factor = busbw_factor(op, place.ranks)
    refusal = _refusal(op, place, now, then, fitted, factor, forced)
    if refusal is not None or now is None or then is None or factor is None or fitted.error is None:
        return refusal or Refused("nothing to predict from")
    same = (now.algorithm, now.protocol) == (then.algorithm, then.protocol)
    fixed, moved = fitted.alpha, fitted.beta * factor * nbytes
    if not same:
        fixed *= latency_ns(op, nbytes, then, place) / latency_ns(op, nbytes, now, place)
        moved = _moved(op, nbytes, place, now, then, moved)
    few, many = _by_channels(now.channels, then.channels)
    spread = (1 + fitted.error) * (1.0 if same else SPREAD)
    best, worst = fixed + moved * few, fixed + moved * many
    basis = f"{fitted.basis}, off by {100 * fitted.error:.0f} %"
    if not same:
        basis += f"; {then.algorithm}/{then.protocol} vs. {now.algorithm}/{now.protocol} by NCCL 2.29's cost model"
    if few != many:
        basis += "; whether the links or the channels limit the bandwidth is unknown"
    return Estimate(round((best + worst) / 2), round(best / spread), round(worst * spread), basis)


def _refusal(
    op: str,
    place: Place,
    now: Choice | None,
    then: Choice | None,
    fitted: CostModel,
    factor: float | None,
    forced: bool,
) -> Refused | None:
    if now is None or then is None:
        return Refused(
            "which algorithm NCCL chose is not recorded: add a log of NCCL_DEBUG=INFO with "
            "NCCL_DEBUG_SUBSYS=INIT,ENV,TUNING"
        )
    if fitted.assumed:
        return Refused(f"the cost of {op} is not fitted ({fitted.basis}): record messages of at least three sizes")
    if forced and then.protocol == "ll128" and now.protocol != "ll128":
        return Refused("LL128 is never forced: where the platform does not support it, it corrupts data")
    if factor is None or not available(op, now, place):
        return Refused(f"NCCL's model has no {now.algorithm}/{now.protocol} for {op} over {place.ranks} ranks")
    if not available(op, then, place):
        return Refused(
            f"NCCL has no {then.algorithm}/{then.protocol} for {op} there, or only with a network that reduces, "
            "whose bandwidth no trace records"
        )
    if then.channels is not None and then.channels != now.channels and now.channels is None:
        return Refused("how many channels NCCL used is not recorded: add a log of NCCL_DEBUG=INFO")
    return None


def _moved(op: str, nbytes: int, place: Place, now: Choice, then: Choice, moved: float) -> float:
    """ns for the bytes by `then`, given that `now` takes `moved` for them."""
    if moved <= 0:
        return 0.0
    # What the links carry, as far as `now` shows it: caps (at hundreds of GB/s) hide any more.
    unit = bandwidth(op, nbytes, now, place, 1.0)
    links = nbytes / moved / unit
    return nbytes / bandwidth(op, nbytes, then, place, links)


def _by_channels(now: int | None, then: int | None) -> tuple[float, float]:
    """Factors on the time for the bytes: at best and at worst."""
    if now is None or then is None or now == then:
        return 1.0, 1.0
    share = now / then
    return (share, 1.0) if share < 1 else (1.0, share)
