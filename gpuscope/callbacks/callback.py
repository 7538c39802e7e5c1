"""What a callback is given, and the names under which it appears everywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Protocol

from gpuscope.when_used import dataclass

_NS = 1e9
_SCALED: Mapping[str, tuple[str, float]] = {
    "step_ns": ("step_seconds", _NS),
    "data_wait_ns": ("data_wait_seconds", _NS),
    "exposed_communication_ns": ("exposed_communication_seconds", _NS),
    "gc_ns": ("gc_seconds", _NS),
    "checkpoint_ns": ("checkpoint_seconds", _NS),
    "tokens_per_s": ("tokens_per_second", 1),
    "mfu": ("mfu_ratio", 1),
    "peak_allocated_bytes": ("peak_allocated_bytes", 1),
    "peak_reserved_bytes": ("peak_reserved_bytes", 1),
    "peak_host_bytes": ("peak_host_bytes", 1),
    "allocator_retries": ("allocator_retries", 1),
    "joules": ("energy_joules", 1),
    "goodput": ("goodput_ratio", 1),
    "loss": ("loss", 1),
    "gradient_norm": ("gradient_norm", 1),
    "learning_rate": ("learning_rate", 1),
}
"""Keys of a line of `measures/rank{r}.jsonl`: the name outside, in base units, and what to divide by."""
MEASURES = tuple(name for name, _ in _SCALED.values())
VERDICT_MEASURES = ("verdict_share_ratio", "verdict_confidence_ratio", "verdict_step_seconds")


@dataclass(frozen=True)
class StepMeasures:
    """What one rank measured in one step."""

    step: int
    rank: int
    end_ns: int
    """Since the epoch."""
    values: Mapping[str, float]
    """By name of `MEASURES`, in base units (seconds, bytes, ratios); what was not measured is absent."""


@dataclass(frozen=True)
class WindowVerdict:
    """The verdict on the windows of a run that are finished."""

    windows: int
    """Trace files that it rests on."""
    step: int
    """The newest step measured when it was made; 0 where none is."""
    end_ns: int
    """When it was made, ns since the epoch."""
    sentence: str
    bound_by: str | None
    """cpu, communication, memory or compute; None where the verdict abstains."""
    cause: str | None
    share_frac: float
    confidence: float
    step_ns: int | None
    """The step's median over the judged steps."""

    @property
    def values(self) -> dict[str, float]:
        """By name of `VERDICT_MEASURES`, in base units."""
        found = {"verdict_share_ratio": self.share_frac, "verdict_confidence_ratio": self.confidence}
        return found if self.step_ns is None else {**found, "verdict_step_seconds": self.step_ns / _NS}


@dataclass(frozen=True)
class AlertChange:
    """An alert of `gpuscope watch` has begun, or is over."""

    code: str
    """falls_behind, slow_link, stands_still…"""
    ranks: tuple[int, ...]
    message: str
    step: int
    """The newest step measured."""
    end_ns: int
    over: bool = False


class Callback(Protocol):
    """Receives what a run measures, as it comes. A failure of one is reported and ends that one alone."""

    def on_step(self, measures: StepMeasures) -> None:
        """One rank has ended a step. Steps of a rank come in order; those of different ranks interleave."""

    def on_verdict(self, verdict: WindowVerdict) -> None:
        """A window has been finished, and all finished windows were analysed."""

    def on_alert(self, alert: AlertChange) -> None:
        """An alert has begun or is over. A callback of your own may lack this method."""

    def close(self) -> None:
        """The run has ended, or nobody follows it any more."""


def step_measures(line: Mapping[str, Any]) -> StepMeasures:
    """A line of `measures/rank{r}.jsonl`. Raises `KeyError`, `TypeError` or `ValueError` where it is none."""
    values = {
        name: value / divisor
        for key, (name, divisor) in _SCALED.items()
        if isinstance(value := line.get(key), int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
    return StepMeasures(int(line["step"]), int(line["rank"]), int(line["end_ns"]), values)
