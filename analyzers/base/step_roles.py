"""What each step of a run is: set-up, warm-up, steady, an outlier, or cut off (definitions: «Steps»).

What is judged is the steady state. Every step number has one role for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import ceil

from gpuscope.averages import lower_median
from gpuscope.when_used import dataclass


class Role(StrEnum):
    """The role of a step; `setup` is what ran before the first one."""

    SETUP = "setup"
    PARTIAL = "partial"
    WARMUP = "warmup"
    OUTLIER = "outlier"
    STEADY = "steady"
    BEFORE_SHIFT = "before_shift"


MAD_TO_SIGMA = 1.4826
"""Scales the median absolute deviation to the standard deviation of a normal distribution."""
LONG_SIGMAS = 3.0
LONG_FRACTION = 0.1
"""A step is long where it exceeds the usual one by three deviations and by a tenth of it."""
FEW_STEPS = 8
"""With fewer whole steps their deviation tells nothing of later ones."""
LONG_OF_FEW = 0.3
"""By what part of the usual step one of few is longer where it is long after the warm-up."""
OUTLIERS_AT_MOST = 0.2
"""Share of the whole steps after the warm-up that may be outliers; more often it is how the job runs."""
COMPILING = 0.05
"""Share of a step in compilation, module loading or autotuning from which a leading step is warm-up."""
CAPTURE = "capture"
"""Phase of a server's step that captures a graph."""
MIN_STEADY = 2
"""Steady steps that a verdict on the steady state needs."""
SHIFT = 1.3
"""By what factor every step on one side of a shift exceeds every step on the other."""
LATER_LEAST = 0.2
"""Share of the steps that those after a shift must exceed: fewer are outliers."""
SPIKE = 2.0
"""Single steps that take so many times their side's median are no part of a shift…"""
SPIKES_AT_MOST = 0.2
"""… as long as they are at most this share of its side."""


@dataclass(frozen=True)
class StepFacts:
    """What decides the role of one step: its duration (ns, the largest over ranks), whether the recording cut it
    off, the share of it that was spent compiling, loading modules or autotuning (the largest over ranks), what
    training needs that it holds (on any rank), and the phase of a server's step."""

    duration: int
    cut: bool = False
    compiling: float = 0.0
    needed: frozenset[str] = frozenset()
    phase: str = ""

    def joined(self, other: StepFacts) -> StepFacts:
        """The same step of two ranks."""
        return StepFacts(
            max(self.duration, other.duration),
            self.cut or other.cut,
            max(self.compiling, other.compiling),
            self.needed | other.needed,
            self.phase or other.phase,
        )


@dataclass(frozen=True)
class Usual:
    """How long a step usually takes: median and scaled deviation over the later half of the whole steps, ns."""

    median: float
    deviation: float
    steps: int
    """Whole steps that it is known from, those of the earlier half included."""

    @property
    def margin(self) -> float:
        """By how much a step may differ and still be usual, ns."""
        return max(LONG_SIGMAS * self.deviation, LONG_FRACTION * self.median)

    def long(self, duration: int) -> bool:
        """Whether a step takes longer than usual."""
        return duration > self.median + self.margin

    def outlying(self, duration: int) -> bool:
        """Whether a step after the warm-up takes longer than usual."""
        return duration > (1 + LONG_OF_FEW) * self.median if self.steps < FEW_STEPS else self.long(duration)

    def fast(self, duration: int) -> bool:
        """Whether a step takes less than usual by as much."""
        return duration < self.median - self.margin


def usual(steps: Sequence[StepFacts]) -> Usual | None:
    """The usual step, from the later half of the whole steps but the last one; None where there is none."""
    whole = [step.duration for step in steps[:-1] if not step.cut] or [step.duration for step in steps if not step.cut]
    if not whole:
        return None
    half = whole[-ceil(len(whole) / 2) :]
    median = lower_median(half)  # the lower one: half of the steps may be long
    return Usual(median, MAD_TO_SIGMA * lower_median(abs(duration - median) for duration in half), len(whole))


def roles(steps: Sequence[StepFacts]) -> list[Role]:
    """The role of each step in order; what ran before the first step is none of them. Where the step time shifts for
    good, only steps after that are steady.

    The last step lacks the wait for its successor's input: it counts as cut off where enough other steps
    are steady, else as whole.
    """
    found = _without_shift(steps)
    if (first := shift(steps, found)) is not None:
        later = _without_shift(steps[first:])
        if later.count(Role.STEADY) >= MIN_STEADY:
            return [Role.BEFORE_SHIFT if role == Role.STEADY else role for role in found[:first]] + later
    return found


def shift(steps: Sequence[StepFacts], found: Sequence[Role]) -> int | None:
    """Which step is the first after the step time shifts, the last time that it does; None where it does not."""
    steady = [place for place, role in enumerate(found) if role == Role.STEADY]
    if is_server(steps):
        return None
    for split in range(len(steady) - MIN_STEADY, MIN_STEADY - 1, -1):
        if len(steady) - split <= LATER_LEAST * len(steady):
            continue
        before, since = (
            _without_spikes([steps[at].duration for at in side]) for side in (steady[:split], steady[split:])
        )
        if min(len(before), len(since)) < MIN_STEADY:
            continue
        if min(since) > SHIFT * max(before) or min(before) > SHIFT * max(since):
            return steady[split]
    return None


def _without_spikes(side: Sequence[int]) -> Sequence[int]:
    most = SPIKE * lower_median(side)
    usual_ones = [duration for duration in side if duration <= most]
    return usual_ones if len(side) - len(usual_ones) <= SPIKES_AT_MOST * len(side) else side


def _without_shift(steps: Sequence[StepFacts]) -> list[Role]:
    typical = usual(steps)
    if typical is None:
        return [Role.PARTIAL] * len(steps)
    without_last = _roles([*steps[:-1], StepFacts(steps[-1].duration, cut=True)], typical)
    if steps[-1].cut or without_last.count(Role.STEADY) >= MIN_STEADY:
        return without_last
    return _roles(steps, typical)


def is_server(steps: Sequence[StepFacts]) -> bool:
    """Whether these are a server's steps, whose length follows their batch: none of them is usual."""
    return any(step.phase for step in steps)


def _roles(steps: Sequence[StepFacts], typical: Usual) -> list[Role]:
    found = [Role.PARTIAL if step.cut else Role.STEADY for step in steps]
    if is_server(steps):
        compiles = [step.phase == CAPTURE or step.compiling >= COMPILING for step in steps]
        return [Role.WARMUP if own and role == Role.STEADY else role for own, role in zip(compiles, found, strict=True)]
    whole = [index for index, step in enumerate(steps) if not step.cut]
    first = 0
    while first < len(whole) and _warming(steps[whole[first]], typical):
        found[whole[first]] = Role.WARMUP
        first += 1
    after = whole[first:]
    long = {index for index in after if typical.outlying(steps[index].duration)}
    usually = frozenset[str]().union(*(steps[index].needed for index in after if index not in long))
    # With gradients accumulated, the step that alone holds the update is long and yet what training needs.
    late = [index for index in sorted(long) if steps[index].needed <= usually]
    if len(late) <= OUTLIERS_AT_MOST * len(after) or (len(late) == 1 and len(after) - len(long) >= MIN_STEADY):
        for index in late:
            found[index] = Role.OUTLIER
    return found


def _warming(step: StepFacts, typical: Usual) -> bool:
    return typical.long(step.duration) or step.compiling >= COMPILING


def leading_fast(steps: Sequence[StepFacts], found: Sequence[Role]) -> int:
    """How many steady steps at the beginning are faster than the later ones: the step time shifts after them."""
    typical = None if is_server(steps) else usual(steps)
    steady = [step for step, role in zip(steps, found, strict=True) if role == Role.STEADY]
    count = 0
    while typical is not None and count < len(steady) and typical.fast(steady[count].duration):
        count += 1
    return count if len(steady) - count >= MIN_STEADY else 0
