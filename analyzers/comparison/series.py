"""The steady steps of a run, one value per step.

The ranks of a step wait for each other, so their step times are one observation, not several: the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gpuscope.averages import fmean, lower_median, whole_mean
from gpuscope.schema.document import Report, StepEntry, StepTime
from gpuscope.when_used import dataclass

Value = Callable[[StepEntry], int]


@dataclass(frozen=True)
class Series:
    """The judged steps that all ranks have, in order; each with the entries of its ranks."""

    steps: tuple[tuple[StepEntry, ...], ...]
    of_run_ns: Mapping[str, int]
    """By step number how long it takes the run, where that is not the largest over the ranks."""
    told: StepTime | None
    """What the report says of the same steps."""

    def values(self, of: Value) -> list[float]:
        """Per step the mean over ranks of `of`."""
        return [fmean(of(entry) for entry in entries) for entries in self.steps]

    @property
    def durations(self) -> list[float]:
        """Step times, ns: the largest over the ranks, or from begin to begin where they take turns being late."""
        return [
            float(self.of_run_ns.get(str(entries[0]["step"])) or max(entry["dur_ns"] for entry in entries))
            for entries in self.steps
        ]


def series(report: Report) -> Series:
    """The steady steps of a report; all of them where fewer than two are. A step that a rank lacks is none."""
    lanes = {(entry["rank"], entry["device"]) for entry in report["ranks"] if entry["steps"]}
    by_step: dict[int, list[StepEntry]] = {}
    for entry in report["steps"]:
        if entry["step"] is not None:
            by_step.setdefault(entry["step"], []).append(entry)
    whole = [tuple(own) for _, own in sorted(by_step.items()) if len(own) == len(lanes)]
    steady = [own for own in whole if all(entry["role"] == "steady" for entry in own)]
    told = report["step_time"]
    return Series(tuple(steady if len(steady) > 1 else whole), told.get("of_run_ns", {}) if told else {}, told)


def step(own: Series) -> int | None:
    """«The step», ns: the median of the steps; None without any."""
    if own.told is not None and own.told["steps"] == len(own.steps):
        return own.told["median_ns"]
    return round(lower_median(own.durations)) if own.steps else None


def mean_window_ns(report: Report) -> int | None:
    """Mean over ranks; None without ranks."""
    return whole_mean(entry["window_ns"] for entry in report["ranks"])
