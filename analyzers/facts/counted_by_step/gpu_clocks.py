"""Clocks and power of each rank's GPU in the judged steps, and what held the clocks down, as NVML told the recorder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gpuscope.analyzers.facts.counted_by_step.step_counts import recorded_steps
from gpuscope.catalogue.findings.device import CLOCK_HOLDERS
from gpuscope.trace.trace import Trace
from gpuscope.when_used import dataclass
from gpuscope.words import units

KEY = "gpuscope_gpu"
HELD = 0.1
"""Share of the samples from which on a clock is said to be held down."""
LOWER = 0.03
"""By which a clock must lie below the median of the peers' to be called lower."""


@dataclass(frozen=True)
class GpuClocks:
    """Of one rank's GPU over some steps."""

    samples: int
    mhz: float | None
    """Mean clock of the multiprocessors."""
    watts: float | None
    """Mean board power."""
    held: Mapping[str, float]
    """Share of the samples in which each of `CLOCK_HOLDERS` held the clock down; those that never did are left out."""

    @property
    def holder(self) -> str | None:
        """What held the clock down most often, if that is often."""
        most = max(self.held, key=lambda name: self.held[name], default=None)
        return most if most is not None and self.held[most] >= HELD else None

    def told(self) -> str:
        """«held down by its power cap in 92 % of the samples», or nothing."""
        if self.holder is None:
            return ""
        return f"held down by {CLOCK_HOLDERS[self.holder]} in {units.share(self.held[self.holder])} of the samples"


def gpu_clocks(trace: Trace, rank: int, steps: Sequence[int]) -> GpuClocks | None:
    """A rank's clocks over those of `steps` in which they were sampled; None where they were in none."""
    counted = recorded_steps(trace, rank, KEY)
    rows = [row for step in steps if (row := counted.get(step)) is not None and (row.get("samples") or 0) > 0]
    samples = sum(row.get("samples") or 0 for row in rows)
    if not samples:
        return None
    held = {name: sum(row.get(name) or 0 for row in rows) / samples for name in CLOCK_HOLDERS}
    watts = _mean(rows, "power_mw")
    return GpuClocks(
        samples,
        _mean(rows, "sm_mhz"),
        watts / 1000 if watts is not None else None,
        {name: min(share, 1.0) for name, share in held.items() if share > 0},
    )


def _mean(rows: Sequence[Mapping[str, int | None]], column: str) -> float | None:
    known = [(value, row.get("samples") or 0) for row in rows if (value := row.get(column)) is not None]
    weight = sum(count for _, count in known)
    return sum(value * count for value, count in known) / weight if weight else None


def lower_clock(rank: int, clocks: Mapping[int, GpuClocks]) -> str:
    """A clause saying that a rank's clock is lower than its peers', and what holds it down; empty where it is not."""
    own = clocks.get(rank)
    peers = [one.mhz for other, one in clocks.items() if other != rank and one.mhz is not None]
    if own is None or own.mhz is None or not peers:
        return ""
    usual = float(np.median(peers))
    if own.mhz >= (1 - LOWER) * usual:
        return ""
    why = f", {own.told()}" if own.told() else ""
    return f"its SM clock is {own.mhz:,.0f} MHz, {usual:,.0f} MHz on its peers{why}"
