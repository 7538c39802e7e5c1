"""What each step of a run is: set-up, warm-up, steady, an outlier, or cut off (definitions: «Steps»).

What is judged is the steady state. Every step number has one role for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil

import numpy as np


class Role(StrEnum):
    """The role of a step; `setup` is what ran before the first one."""

    SETUP = "setup"
    PARTIAL = "partial"
    WARMUP = "warmup"
    OUTLIER = "outlier"
    STEADY = "steady"


MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to the standard deviation of a normal distribution."""
LONG_SIGMAS = 3.0
LONG_FRACTION = 0.1
"""A step is long where it exceeds the usual one by three deviations and by a tenth of it."""
OUTLIERS_AT_MOST = 0.2
"""Share of the whole steps after the warm-up that may be outliers; more often it is how the job runs."""
COMPILING = 0.05
"""Share of a step in compilation, module loading or autotuning from which a leading step is warm-up."""
MIN_STEADY = 2
"""Steady steps that a verdict on the steady state needs."""


@dataclass(frozen=True)
class StepFacts:
    """What decides the role of one step: its duration (ns, the largest over ranks), whether the recording cut it
    off, and the share of it that was spent compiling, loading modules or autotuning (the largest over ranks)."""

    duration: int
    cut: bool = False
    compiling: float = 0.0


@dataclass(frozen=True)
class Usual:
    """How long a step usually takes: median and scaled deviation over the later half of the whole steps, ns."""

    median: float
    deviation: float

    @property
    def margin(self) -> float:
        """By how much a step may differ and still be usual, ns."""
        return max(LONG_SIGMAS * self.deviation, LONG_FRACTION * self.median)

    def long(self, duration: int) -> bool:
        """Whether a step takes longer than usual."""
        return duration > self.median + self.margin

    def fast(self, duration: int) -> bool:
        """Whether a step takes less than usual by as much."""
        return duration < self.median - self.margin


def usual(steps: Sequence[StepFacts]) -> Usual | None:
    """The usual step, from the later half of the whole steps but the last one; None where there is none."""
    whole = [step.duration for step in steps[:-1] if not step.cut] or [step.duration for step in steps if not step.cut]
    if not whole:
        return None
    half = np.array(whole[-ceil(len(whole) / 2) :], np.float64)
    median = float(np.median(half))
    return Usual(median, MAD_TO_SIGMA * float(np.median(np.abs(half - median))))


def roles(steps: Sequence[StepFacts]) -> list[Role]:
    """The role of each step in order; what ran before the first step is none of them.

    The last step lacks the wait for its successor's input: it counts as cut off where enough other steps
    are steady, else as whole.
    """
    typical = usual(steps)
    if typical is None:
        return [Role.PARTIAL] * len(steps)
    without_last = _roles([*steps[:-1], StepFacts(steps[-1].duration, cut=True)], typical)
    if steps[-1].cut or without_last.count(Role.STEADY) >= MIN_STEADY:
        return without_last
    return _roles(steps, typical)


def _roles(steps: Sequence[StepFacts], typical: Usual) -> list[Role]:
    found = [Role.PARTIAL if step.cut else Role.STEADY for step in steps]
    whole = [index for index, step in enumerate(steps) if not step.cut]
    first = 0
    while first < len(whole) and _warming(steps[whole[first]], typical):
        found[whole[first]] = Role.WARMUP
        first += 1
    after = whole[first:]
    late = [index for index in after if typical.long(steps[index].duration)]
    if len(late) <= OUTLIERS_AT_MOST * len(after):
        for index in late:
            found[index] = Role.OUTLIER
    return found


def _warming(step: StepFacts, typical: Usual) -> bool:
    return typical.long(step.duration) or step.compiling >= COMPILING


def leading_fast(steps: Sequence[StepFacts], found: Sequence[Role]) -> int:
    """How many steady steps at the beginning are faster than the later ones: the step time shifts after them."""
    typical = usual(steps)
    steady = [step for step, role in zip(steps, found, strict=True) if role == Role.STEADY]
    count = 0
    while typical is not None and count < len(steady) and typical.fast(steady[count].duration):
        count += 1
    return count if len(steady) - count >= MIN_STEADY else 0
