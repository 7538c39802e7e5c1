"""What a rollout takes, from the lengths of its responses: one part that only the longest response sets, and one that
all tokens share and more GPUs divide.

A decoding step costs a fixed time and a time per response that still runs. Summed over a rollout the first goes with
the longest response, the second with all tokens: `rollout = a · longest + b · mean`. Both are fitted to the steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt
from statistics import NormalDist, median

import numpy as np

from gpuscope.student import student

FEWEST = 6
"""Steps from which two unknowns can be told apart, and how well."""
MISSED = 0.05
"""Probability on either side of a range that holds nine times in ten."""
POOR_FIT = 0.10
"""Median residual, of the rollout, from which the model does not describe it."""
USUAL_SAMPLES = 512
"""Responses of a step where their number is not logged; its logarithm matters."""
_NORMAL = NormalDist()


@dataclass(frozen=True)
class Lengths:
    """Tokens of the responses of one step."""

    mean: float
    longest: float
    clipped: float = 0.0
    samples: int = USUAL_SAMPLES

    def capped(self, cap: float) -> float:
        """The mean with every response cut at `cap`, of lengths spread log-normally with this mean and maximum."""
        spread = self._sigma()
        if cap >= self.longest or not spread:
            return min(self.mean, cap)
        middle = log(self.mean) - spread**2 / 2
        at = (log(cap) - middle) / spread
        below = self.mean * _NORMAL.cdf(at - spread) + cap * (1 - _NORMAL.cdf(at))
        whole = self.mean if not self.clipped else self._clipped_mean(middle, spread)
        return min(self.mean, below * self.mean / whole)

    def _sigma(self) -> float:
        """The deviation of the logarithms: the longest of n lies where one in n does, a cap where it clips."""
        if self.longest <= self.mean * 1.001:
            return 0.0
        place = _NORMAL.inv_cdf(1 - (self.clipped or 1 / (self.samples + 1)))
        under = max(place, 0.0) ** 2 - 2 * log(self.longest / self.mean)
        return max(place, 0.0) - sqrt(under) if under > 0 else max(place, 0.1)

    def _clipped_mean(self, middle: float, spread: float) -> float:
        at = (log(self.longest) - middle) / spread
        return self.mean * _NORMAL.cdf(at - spread) + self.longest * (1 - _NORMAL.cdf(at))


@dataclass(frozen=True)
class RolloutModel:
    """A fit to the steady steps. `shared` is the part of a rollout that all tokens share, 0 to 1, its range beside it;
    the rest goes with the longest response."""

    shared: float
    low: float
    high: float

    def scaled(self, rollout: int, lengths: Lengths | None, gpus: float, cap: float | None, shared: float) -> int:
        """A rollout at `gpus` times the GPUs, with responses of at most `cap` tokens, ns."""
        all_tokens, longest = rollout * shared, rollout * (1 - shared)
        if cap is not None and lengths is not None:
            all_tokens *= lengths.capped(cap) / lengths.mean
            longest *= min(cap / lengths.longest, 1.0)
        return round(all_tokens / gpus + longest)


def fitted(rollouts: Sequence[int], lengths: Sequence[Lengths]) -> RolloutModel | None:
    """The model of these steps; None where there are too few, or where it does not describe them."""
    if len(rollouts) < FEWEST or len(lengths) != len(rollouts):
        return None
    took = np.array(rollouts, float)
    design = np.array([(one.longest, one.mean) for one in lengths])
    try:
        inverse = np.linalg.inv(design.T @ design)
    except np.linalg.LinAlgError:
        return None
    solved = inverse @ design.T @ took
    longest, mean = (float(value) for value in solved)
    if mean < 0 or longest < 0:  # one of the two explains all there is
        longest, mean = (0.0, _alone(design[:, 1], took)) if longest < 0 else (_alone(design[:, 0], took), 0.0)
    residual = took - design @ np.array([longest, mean])
    if median(np.abs(residual)) > POOR_FIT * median(rollouts):
        return None
    error = sqrt(float(residual @ residual) / (len(rollouts) - 2) * float(inverse[1, 1]))
    typical, usual = float(np.median(design[:, 1])), float(np.median(took))
    shared, off = mean * typical / usual, student(MISSED, len(rollouts) - 2) * error * typical / usual
    return RolloutModel(*(min(max(value, 0.0), 1.0) for value in (shared, shared - off, shared + off)))


def _alone(column: np.ndarray, took: np.ndarray) -> float:  # type: ignore[type-arg]
    return float(column @ took / (column @ column))
