"""The steps of a run, one value per step.

The ranks of a step wait for each other, so their step times are one observation, not several: the mean over ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from gpuscope.report.schema.document import Report, StepEntry

Value = Callable[[StepEntry], int]


@dataclass(frozen=True)
class Series:
    """The steps that all ranks have, in order; each with the entries of its ranks."""

    steps: tuple[tuple[StepEntry, ...], ...]

    def values(self, of: Value) -> list[float]:
        """Per step the mean over ranks of `of`."""
        return [fmean(of(entry) for entry in entries) for entries in self.steps]

    @property
    def durations(self) -> list[float]:
        """Step times, ns."""
        return self.values(lambda entry: entry["dur_ns"])


def series(report: Report) -> Series:
    """The steps of a report. What ran before the first one is none; nor is a step that a rank lacks."""
    lanes = {(entry["rank"], entry["device"]) for entry in report["ranks"] if entry["steps"]}
    by_step: dict[int, list[StepEntry]] = {}
    for entry in report["steps"]:
        if entry["step"] is not None:
            by_step.setdefault(entry["step"], []).append(entry)
    whole = [tuple(own) for _, own in sorted(by_step.items()) if len(own) == len(lanes)]
    return Series(tuple(whole))


def mean_window_ns(report: Report) -> int | None:
    """Mean over ranks; None without ranks."""
    return mean([entry["window_ns"] for entry in report["ranks"]])


def mean(values: Sequence[float]) -> int | None:
    """Rounded to whole ns; None of nothing."""
    return round(fmean(values)) if values else None
