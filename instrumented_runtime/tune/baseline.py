"""The command as it stands, run until its spread allows a verdict on others."""

from __future__ import annotations

import math
from collections.abc import Callable

from gpuscope.instrumented_runtime.tune.decision import LEAST_GAIN, LEAST_ROUNDS
from gpuscope.instrumented_runtime.tune.measured import Run
from gpuscope.instrumented_runtime.tune.noise import Noise, noise

LEAST, MOST = 2, 4
"""Runs of the baseline: two show what runs differ by, and more than four cost more than they tell."""
GAIN_WANTED = 0.05
"""Share of the step that the spread should let a change be seen to gain in its first runs."""


def baseline(take: Callable[[], Run | None], most: int = MOST) -> list[Run]:
    """Runs of the command as it stands; ends at the first that failed, which is then the last of them, and where the
    budget ends."""
    runs: list[Run] = []
    while len(runs) < max(min(most, MOST), LEAST):
        run = take()
        if run is None:
            break
        runs.append(run)
        known = noise([runs])
        if run.failed is not None or (len(runs) >= LEAST and known and provable(known, len(runs)) <= GAIN_WANTED):
            break
    return runs


def provable(known: Noise, runs: float) -> float:
    """The least gain that can be proved with so many runs of the best and the first ones of a change, whose own spread
    adds to what is known of the noise."""
    more = Noise(known.variance, known.freedom + LEAST_ROUNDS - 1)
    return -math.expm1(math.log1p(-LEAST_GAIN) - more.interval(0.0, runs, LEAST_ROUNDS).half)
