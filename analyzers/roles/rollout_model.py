"""What a rollout takes, from the lengths of its responses: one part that only the longest response sets, and one that
all tokens share and more GPUs divide.

A decoding step costs a fixed time and a time per response that still runs. Summed over a rollout the first goes with
the longest response, the second with all tokens: `rollout = a · longest + b · mean + c`, fitted to the steps. What is
the same in all of them, as a reward's own time, no GPU shortens.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import exp, log
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.averages import median
from gpuscope.student import student
from gpuscope.trace.columns.table import Array
from gpuscope.when_used import dataclass

if TYPE_CHECKING:
    from statistics import NormalDist

FEWEST = 8
"""Steps from which the three can be told apart, and how well."""
MISSED = 0.05
"""Probability on either side of a range that holds nine times in ten."""
POOR_FIT = 0.10
"""Median residual, of the rollout, from which the model does not describe it."""
USUAL_SAMPLES = 512
"""Responses of a step where their number is not logged; its logarithm matters."""


@cache
def _normal() -> NormalDist:
    from statistics import NormalDist

    return NormalDist()


@dataclass(frozen=True)
class Lengths:
    """Tokens of the responses of one step."""

    mean: float
    longest: float
    clipped: float = 0.0
    """The share of them that a limit cut off."""
    samples: int = USUAL_SAMPLES

    def capped(self, cap: float) -> float:
        """The mean with every response cut at `cap`, of lengths spread log-normally with this mean and maximum."""
        if cap >= self.longest:
            return self.mean
        beyond = self.clipped or 1 / (self.samples + 1)
        place = _normal().inv_cdf(1 - min(beyond, 0.99))
        low, high = 0.01, 5.0
        for _ in range(40):  # the wider they spread, the lower lies the mean under the same maximum
            spread = (low + high) / 2
            if _mean_below(self.longest, log(self.longest) - place * spread, spread) > self.mean:
                low = spread
            else:
                high = spread
        return min(self.mean, _mean_below(cap, log(self.longest) - place * low, low))


def _mean_below(cap: float, middle: float, spread: float) -> float:
    """The mean of a log-normal variable that is cut at `cap`."""
    at = (log(cap) - middle) / spread
    whole = exp(min(middle + spread**2 / 2, 700.0))
    return whole * _normal().cdf(at - spread) + cap * (1 - _normal().cdf(at))


@dataclass(frozen=True)
class Shares:
    """Of a rollout: what all tokens share, and what goes with the longest response; the rest is the same always."""

    tokens: float
    longest: float

    def moved(self, by: float) -> Shares:
        """With `by` more for the tokens, at the cost of the longest response."""
        tokens = min(max(self.tokens + by, 0.0), 1.0)
        return Shares(tokens, min(max(self.longest + self.tokens - tokens, 0.0), 1 - tokens))

    def on(self, rollout: int, gpus: float, divided: float) -> int:
        """A rollout at `gpus` times the GPUs, ns, that divide `divided` of what tokens share."""
        return round(rollout * (1 - self.tokens + self.tokens * (divided / gpus + 1 - divided)))

    def cut(self, rollout: int, lengths: Lengths, cap: float) -> int:
        """A rollout with responses of at most `cap` tokens, ns."""
        fewer = self.tokens * (1 - lengths.capped(cap) / lengths.mean)
        return round(rollout * (1 - fewer - self.longest * (1 - min(cap / lengths.longest, 1.0))))


@dataclass(frozen=True)
class RolloutModel:
    """A fit to the steady steps, and what else fits them nearly as well."""

    shares: Shares
    cases: tuple[Shares, ...]


UNKNOWN = RolloutModel(Shares(0.5, 0.5), (Shares(0.0, 1.0), Shares(1.0, 0.0)))
"""Where nothing tells."""


def fitted(rollouts: Sequence[int], lengths: Sequence[Lengths]) -> RolloutModel | None:
    """The model of these steps; None where there are too few, or where it does not describe them.

    The part that is always the same counts where it stands out beyond chance; the range holds both.
    """
    if len(rollouts) < FEWEST or len(lengths) != len(rollouts):
        return None
    took = np.array(rollouts, float) / float(median(rollouts))
    design = np.array([(one.mean, one.longest, 1.0) for one in lengths])
    design /= np.median(design, axis=0)
    fits = [_fit(design[:, :2], took), _fit(design, took)]
    if median(np.abs(took - design @ fits[1].factors)) > POOR_FIT:
        return None
    chosen = fits[int(fits[1].stands_out)]
    cases = (fit.shares.moved(by) for fit in fits for by in (-fit.off, fit.off))
    return RolloutModel(chosen.shares, tuple(cases))


@dataclass(frozen=True)
class _Fit:
    factors: Array
    off: float
    """How far the tokens' part may lie off, nine times in ten."""
    stands_out: bool
    """Whether the last column's factor is larger than chance makes it."""

    @property
    def shares(self) -> Shares:
        tokens, longest = (min(float(one), 1.0) for one in self.factors[:2])
        return Shares(tokens, min(longest, 1 - tokens))


def _fit(design: Array, took: Array) -> _Fit:
    """Least squares without negative factors; what is uncertain is that of the fit with all of them."""
    free = np.linalg.lstsq(design, took, rcond=None)[0]
    freedom = len(took) - design.shape[1]
    residual = took - design @ free
    errors = np.sqrt(np.diag(np.linalg.pinv(design.T @ design)) * float(residual @ residual) / freedom)
    limit = student(MISSED, freedom)
    kept = list(range(design.shape[1]))
    found = free
    while len(kept) > 1 and found.min() < 0:
        kept.pop(int(np.argmin(found)))
        found = np.linalg.lstsq(design[:, kept], took, rcond=None)[0]
    factors = np.zeros(design.shape[1])
    factors[kept] = np.maximum(found, 0.0)
    # Where every longest response is as long as the limit, nothing tells it from what is always the same.
    apart = np.linalg.matrix_rank(design) == design.shape[1]
    return _Fit(factors, float(limit * errors[0]), bool(apart and free[-1] > limit * errors[-1]))
